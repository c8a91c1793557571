from dataclasses import replace

import numpy as np
import pytest

from murmur.speech.hmm import blocks
from murmur.speech.hmm.align import align, align_adapted
from murmur.speech.hmm.em_loop import EmConfig
from murmur.speech.hmm.fmllr import AdaptedPair, FmllrConfig, estimate_transforms, identity, transforms_from_paths
from murmur.speech.hmm.grow import TreeConfig
from murmur.speech.hmm.monophone import train_monophone
from murmur.speech.hmm.passes import AlignOptions, accumulate, realign
from murmur.speech.hmm.sat import SatConfig, train_sat
from murmur.speech.hmm.storage import load_transforms, save_transforms

EM = EmConfig(gaussians=20, passes=6, grow_passes=4, align_passes=(2, 3, 4, 5), min_gaussian_frames=3)
FMLLR = FmllrConfig(min_frames=50)
SAT = SatConfig((2, 4), FMLLR, FMLLR, TreeConfig(leaves=16, min_frames=8, min_gain=1.0), EM)
SPEAKERS = ("a", "b", "c", "d")


def distorted(corpus):
    """The corpus as four speakers hear it, each through an affine map of its own, without the mean over the speaker."""
    random = np.random.default_rng(1)
    speakers = {u: SPEAKERS[i % len(SPEAKERS)] for i, u in enumerate(sorted(corpus.feats))}
    maps = {s: np.eye(4) + 0.35 * random.standard_normal((4, 4)) for s in SPEAKERS}
    feats = {u: x @ maps[speakers[u]].T for u, x in corpus.feats.items()}
    means = {s: np.concatenate([x for u, x in feats.items() if speakers[u] == s]).mean(0) for s in SPEAKERS}
    return {u: (x - means[speakers[u]]).astype(np.float32) for u, x in feats.items()}, speakers


@pytest.fixture(scope="module")
def spoken(corpus):
    return distorted(corpus)


@pytest.fixture(scope="module")
def mono(corpus, spoken):
    return train_monophone(corpus.lang, spoken[0], corpus.texts, EM)


@pytest.fixture(scope="module")
def sat(corpus, spoken, mono):
    return train_sat(mono.model, spoken[0], corpus.texts, spoken[1], SAT)


def pair_of(trained):
    return AdaptedPair(trained.model, trained.unadapted)


def adapted_likelihood(model, feats, tids, transforms, speakers):
    """Mean over frames of log |det A| + log p(W xi | pdf): the density of the frames before adaptation."""
    total = frames = 0
    for u, x in feats.items():
        transform = transforms.get(speakers[u], identity(4))
        scores = model.loglikes((x @ transform[:, :-1].T + transform[:, -1]).astype(np.float32))
        total += scores[np.arange(len(x)), model.transitions.pdf_of[tids[u]]].sum()
        total += len(x) * np.linalg.slogdet(transform[:, :-1])[1]
        frames += len(x)
    return total / frames


def test_training_adapts_every_speaker_and_explains_the_frames_better(corpus, spoken, mono, sat):
    feats, speakers = spoken
    assert set(sat.transforms) == set(SPEAKERS)
    assert set(sat.tids) == set(corpus.texts)
    found = adapted_likelihood(sat.model, feats, sat.tids, sat.transforms, speakers)
    plain = train_sat(mono.model, feats, corpus.texts, speakers, replace(SAT, fmllr=FmllrConfig(min_frames=1e9)))
    assert all(np.array_equal(w, identity(4)) for w in plain.transforms.values())
    assert found > adapted_likelihood(plain.model, feats, plain.tids, {}, speakers) + 0.3
    assert found > adapted_likelihood(sat.model, feats, sat.tids, {}, speakers) + 0.3


def test_the_twin_has_the_same_gaussians_and_fits_unadapted_frames(corpus, spoken, sat):
    feats, speakers = spoken
    twin, model = sat.unadapted, sat.model
    assert np.array_equal(twin.mixtures.weights, model.mixtures.weights)
    assert not np.array_equal(twin.mixtures.means, model.mixtures.means)
    by_twin = adapted_likelihood(twin, feats, sat.tids, {}, speakers)
    assert by_twin > adapted_likelihood(model, feats, sat.tids, {}, speakers)
    with pytest.raises(ValueError, match="different Gaussians"):
        AdaptedPair(model, replace(model, mixtures=replace(twin.mixtures, **first_split(twin.mixtures))))


def first_split(mixtures):
    """The fields of mixtures whose first Gaussian is there twice."""
    twice = {"sizes": mixtures.sizes + np.eye(1, mixtures.num_pdfs, dtype=np.int64)[0]}
    for name in ("weights", "means", "variances"):
        values = getattr(mixtures, name)
        twice[name] = np.concatenate([values[:1], values])
    return twice


def test_without_transforms_the_twin_is_the_model_up_to_one_step(corpus, spoken, mono):
    feats, speakers = spoken
    plain = train_sat(mono.model, feats, corpus.texts, speakers, replace(SAT, fmllr=FmllrConfig(min_frames=1e9)))
    again = plain.unadapted.mixtures
    difference = np.abs(again.means - plain.model.mixtures.means) / np.sqrt(plain.model.mixtures.variances)
    assert difference.max() < 0.5


def take_paths(block, paths):
    block.tids = {u: paths[u] for u in block.feats}


def test_a_new_set_of_the_speakers_is_adapted_in_two_passes(corpus, spoken, sat):
    feats, speakers = spoken
    first = align(sat.unadapted, feats, corpus.texts)
    found = transforms_from_paths(pair_of(sat), feats, first, speakers, FMLLR)
    adapted = adapted_likelihood(sat.model, feats, first, found, speakers)
    assert adapted > adapted_likelihood(sat.model, feats, first, {}, speakers) + 0.3
    with blocks.Workers(blocks.cut_into_blocks(feats, dict.fromkeys(feats, ""), speakers)) as workers:
        workers.map(take_paths, first)
        once = estimate_transforms(workers, sat.unadapted, sat.model, FMLLR, {})
    assert adapted > adapted_likelihood(sat.model, feats, first, once, speakers)  # the second estimate is better
    second = align_adapted(pair_of(sat), feats, corpus.texts, speakers, FMLLR)
    assert set(second) == set(corpus.texts)
    unadapted = adapted_likelihood(sat.model, feats, align(sat.model, feats, corpus.texts), {}, speakers)
    assert adapted_likelihood(sat.model, feats, second, found, speakers) > unadapted + 0.3


def test_speakers_with_too_few_frames_are_aligned_by_the_model_of_unadapted_features(corpus, spoken, sat, caplog):
    feats, speakers = spoken
    plain = align(sat.unadapted, feats, corpus.texts)
    none = align_adapted(pair_of(sat), feats, corpus.texts, speakers, FmllrConfig(min_frames=1e9))
    assert all(np.array_equal(none[u], plain[u]) for u in feats)
    assert f"{len(set(speakers.values()))} speakers are not adapted to" in caplog.text
    caplog.clear()
    apart = {u: "short" if u == min(feats) else speaker for u, speaker in speakers.items()}
    limit = FmllrConfig(min_frames=1.5 * len(feats[min(feats)]))
    found = align_adapted(pair_of(sat), feats, corpus.texts, apart, limit)
    assert "not adapted to" not in caplog.text
    assert np.array_equal(found[min(feats)], plain[min(feats)])
    assert any(not np.array_equal(found[u], plain[u]) for u in feats if u != min(feats))


def test_log_likelihoods_of_adapted_frames_are_those_of_the_frames_themselves(corpus, spoken, sat):
    """p(x) = p(A x + b) |det A|: a transform of both frames and model changes nothing."""
    feats, speakers = spoken
    dim = sat.model.mixtures.dim
    rng = np.random.default_rng(1)
    scale_D, shift_D = rng.uniform(0.2, 5.0, dim), rng.normal(size=dim)
    transform = np.concatenate([np.diag(scale_D), shift_D[:, None]], 1)
    plain, moved = sat.unadapted.mixtures, sat.unadapted.mixtures
    moved = replace(moved, means=plain.means * scale_D + shift_D, variances=plain.variances * scale_D**2)
    (block,) = blocks.cut_into_blocks(feats, corpus.texts, speakers)
    realign(block, sat.unadapted, AlignOptions())
    paths, wanted = block.tids, accumulate(block, sat.unadapted)
    block.transforms = dict.fromkeys(set(speakers.values()), transform)
    model = replace(sat.unadapted, mixtures=moved)
    realign(block, model, AlignOptions())
    assert np.mean(np.concatenate([block.tids[u] == path for u, path in paths.items()])) > 0.99
    assert accumulate(block, model).mixtures.log_likelihood == pytest.approx(wanted.mixtures.log_likelihood, rel=1e-4)


def test_a_speaker_without_an_aligned_utterance_keeps_the_transform(spoken, sat):
    feats, speakers = spoken
    with blocks.Workers(blocks.cut_into_blocks(feats, dict.fromkeys(feats, ""), speakers)) as workers:
        workers.map(take_paths, {u: tids if speakers[u] != "a" else tids[:0] for u, tids in sat.tids.items()})
        workers.map(drop_empty)
        estimate_transforms(workers, sat.model, sat.model, FMLLR, sat.transforms)
        held = [block.transforms for block in workers.map(itself)]
    assert all(np.array_equal(each["a"], sat.transforms["a"]) for each in held if "a" in each)
    assert any("a" in each for each in held)


def drop_empty(block):
    block.tids = {u: tids for u, tids in block.tids.items() if len(tids)}


def itself(block):
    return block


def test_passes_that_are_never_reached_are_refused():
    with pytest.raises(ValueError, match=r"fmllr_passes names \[0, 7\], and em.passes = 6"):
        replace(SAT, fmllr_passes=(0, 2, 7))


def test_paths_that_end_early_and_short_speakers_do_not_count(spoken, sat):
    feats, speakers = spoken
    cut = {u: tids if speakers[u] == "a" else tids[:-1] for u, tids in sat.tids.items()}
    found = transforms_from_paths(pair_of(sat), feats, cut, speakers, FMLLR)
    assert set(found) == {"a"}
    assert transforms_from_paths(pair_of(sat), feats, {}, speakers, FMLLR) == {}
    least = replace(FMLLR, min_frames=1e6)
    assert transforms_from_paths(pair_of(sat), feats, cut, speakers, least) == {}


def test_silence_of_weight_zero_is_as_if_it_were_not_there(spoken, sat):
    feats, speakers = spoken
    silent = {u: sat.model.transitions.phone_of[t] <= sat.model.lang.num_silence for u, t in sat.tids.items()}
    louder = {u: np.where(silent[u][:, None], x + 7, x) for u, x in feats.items()}
    left_out = [transforms_from_paths(pair_of(sat), x, sat.tids, speakers, FMLLR)["a"] for x in (feats, louder)]
    assert np.array_equal(*left_out)
    weighed = replace(FMLLR, silence_weight=0.5)
    kept = [transforms_from_paths(pair_of(sat), x, sat.tids, speakers, weighed)["a"] for x in (feats, louder)]
    assert not np.allclose(*kept)
    with pytest.raises(ValueError, match="silence_weight in 0"):
        FmllrConfig(silence_weight=1.5)


def test_blocks_and_processes_change_the_transforms_by_rounding_alone(spoken, sat, monkeypatch):
    feats, speakers = spoken
    one = transforms_from_paths(pair_of(sat), feats, sat.tids, speakers, FMLLR)
    monkeypatch.setattr(blocks, "BLOCK_FRAMES", 300)
    many = transforms_from_paths(pair_of(sat), feats, sat.tids, speakers, FMLLR)
    others = transforms_from_paths(pair_of(sat), feats, sat.tids, speakers, FMLLR, jobs=2)
    for speaker in SPEAKERS:
        np.testing.assert_allclose(many[speaker], one[speaker], atol=1e-6)
        assert np.array_equal(many[speaker], others[speaker])


def test_transforms_are_read_back_to_the_bit(sat, tmp_path):
    path = tmp_path / "transforms.npz"
    save_transforms(sat.transforms, path)
    found = load_transforms(path)
    assert found.keys() == sat.transforms.keys()
    assert all(np.array_equal(found[s], sat.transforms[s]) for s in found)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match="transforms"):
        load_transforms(path)
    save_transforms({}, path)
    assert load_transforms(path) == {}
