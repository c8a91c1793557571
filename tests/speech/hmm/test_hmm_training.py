import itertools
import os
from dataclasses import replace

import numpy as np
import pytest

from murmur.execution.workers import WorkerDied
from murmur.speech.hmm import blocks
from murmur.speech.hmm.align import align, align_scores, phone_times, write_ctm
from murmur.speech.hmm.blocks import Workers, cut_into_blocks
from murmur.speech.hmm.em_loop import EmConfig
from murmur.speech.hmm.grow import TreeConfig
from murmur.speech.hmm.lda_mllt import LdaConfig, LdaMlltConfig, lda_stats, mllt_stats, train_lda_mllt
from murmur.speech.hmm.material import check_material
from murmur.speech.hmm.monophone import MonophoneConfig, align_flat, train_monophone
from murmur.speech.hmm.storage import load_alignments, load_model, save_alignments, save_model
from murmur.speech.hmm.triphone import TriphoneConfig, train_triphone
from tests.support.drawn_corpus import draw_corpus

CONFIG = EmConfig(gaussians=30, passes=8, grow_passes=6, align_passes=(2, 3, 4, 5, 6, 7), min_gaussian_frames=3)
TRI = TriphoneConfig(TreeConfig(leaves=18, min_frames=8, min_gain=1.0), replace(CONFIG, gaussians=36))


@pytest.fixture(scope="module")
def mono(corpus):
    return train_monophone(corpus.lang, corpus.feats, corpus.texts, CONFIG)


@pytest.fixture(scope="module")
def tri(corpus, mono):
    return train_triphone(mono.model, corpus.feats, corpus.texts, TRI)


def same_model(a, b):
    return all(
        np.array_equal(x, y)
        for x, y in [
            (a.log_probs, b.log_probs),
            (a.mixtures.sizes, b.mixtures.sizes),
            (a.mixtures.weights, b.mixtures.weights),
            (a.mixtures.means, b.mixtures.means),
            (a.mixtures.variances, b.mixtures.variances),
        ]
    )


def share_of_right_starts(corpus, trained, tolerance_frames=2):
    """Number of true phone starts with a start of the same phone near them."""
    right = total = 0
    for u, tids in trained.tids.items():
        found = [t.first_frame for t in phone_times(trained.model, tids) if t.phone != "SIL"]
        true = corpus.starts[u]
        right += sum(min(abs(np.array(found) - s)) <= tolerance_frames for s in true[1:-1])
        total += len(true[1:-1])
    return right / total


def test_flat_start_finds_the_phones(corpus, mono):
    assert mono.lost == {}
    assert set(mono.tids) == set(corpus.texts)
    assert share_of_right_starts(corpus, mono) > 0.75
    assert mono.history[-1].gaussians == 30


def test_likelihood_rises_while_the_alignments_stay(corpus):
    config = replace(CONFIG, gaussians=1, passes=6, align_passes=())
    history = train_monophone(corpus.lang, corpus.feats, corpus.texts, config).history
    likelihoods = [report.log_likelihood_per_frame for report in history]
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(likelihoods))


def test_triphones_have_more_pdfs_and_explain_the_data_better(mono, tri):
    assert tri.model.num_pdfs == 18
    assert mono.model.num_pdfs == 14
    assert tri.lost == {}
    assert tri.history[-1].log_likelihood_per_frame > mono.history[-1].log_likelihood_per_frame


def test_lda_mllt_trains_and_aligns(corpus, tri):
    config = LdaMlltConfig(LdaConfig(dim=5, context_frames=1, static_dim=3), (2, 4), TRI.tree, TRI.em)
    trained = train_lda_mllt(tri.model, corpus.feats, corpus.texts, config)
    assert trained.model.mixtures.dim == 5
    assert trained.model.projection.matrix.shape == (5, 9)
    assert set(align(trained.model, corpus.feats, corpus.texts)) == set(corpus.texts)
    again = train_triphone(trained.model, corpus.feats, corpus.texts, TRI)
    assert np.array_equal(again.model.projection.matrix, trained.model.projection.matrix)
    with pytest.raises(ValueError, match="static_dim = 13"):
        train_lda_mllt(tri.model, corpus.feats, corpus.texts)


def test_silence_of_weight_zero_leaves_lda_and_mllt_alone(corpus, tri):
    config = LdaConfig(dim=4, context_frames=0, static_dim=4)
    model, (block,) = tri.model, cut_into_blocks(corpus.feats, corpus.texts)
    block.tids = dict(tri.tids)
    speech = {u: model.transitions.phone_of[t] > model.lang.num_silence for u, t in tri.tids.items()}
    spoken = blocks.Block({u: x[speech[u]] for u, x in corpus.feats.items()}, corpus.texts)
    spoken.tids = {u: t[speech[u]] for u, t in tri.tids.items()}
    weighed, alone = lda_stats(block, model, config, 0.0), lda_stats(spoken, model, config)
    np.testing.assert_allclose(weighed.counts, alone.counts)
    np.testing.assert_allclose(weighed.first, alone.first, atol=1e-6)
    np.testing.assert_allclose(weighed.scatter, alone.scatter, rtol=1e-6, atol=1e-6)
    weighed, alone = mllt_stats(block, model, 0.0), mllt_stats(spoken, model)
    assert weighed.frames == alone.frames < sum(map(len, corpus.feats.values()))
    np.testing.assert_allclose(weighed.scatter, alone.scatter, rtol=1e-6, atol=1e-6)
    assert lda_stats(block, model, config).counts.sum() > weighed.frames


def test_same_seed_gives_the_same_bits_and_another_seed_others(corpus, mono):
    again = train_monophone(corpus.lang, corpus.feats, corpus.texts, CONFIG)
    assert same_model(mono.model, again.model)
    assert all(np.array_equal(mono.tids[u], again.tids[u]) for u in mono.tids)
    other = train_monophone(corpus.lang, corpus.feats, corpus.texts, replace(CONFIG, seed=1))
    assert not same_model(mono.model, other.model)


def test_number_of_processes_does_not_change_a_bit(corpus, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_FRAMES", 300)
    assert len(list(cut_into_blocks(corpus.feats, corpus.texts))) > 4
    one = train_monophone(corpus.lang, corpus.feats, corpus.texts, CONFIG, jobs=1)
    two = train_monophone(corpus.lang, corpus.feats, corpus.texts, CONFIG, jobs=2)
    assert same_model(one.model, two.model)
    assert all(np.array_equal(one.tids[u], two.tids[u]) for u in one.tids)


def die(block):
    os._exit(3)


def divide_by_zero(block):
    return 1 / 0


def test_failures_in_other_processes_surface(corpus, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_FRAMES", 500)
    with Workers(cut_into_blocks(corpus.feats, corpus.texts), jobs=2) as workers:
        with pytest.raises(ZeroDivisionError) as raised:
            workers.map(divide_by_zero)
        assert "in divide_by_zero" in raised.value.__notes__[0]
        with pytest.raises(WorkerDied, match=r"had block 1 of \d+ \(utterances u000 to u"):
            workers.map(die)


def test_unusable_utterances_are_named_with_the_reason(corpus):
    feats, texts = dict(corpus.feats), dict(corpus.texts)
    feats["short"], texts["short"] = feats["u000"][:5], "AB CA"
    feats["unknown"], texts["unknown"] = feats["u000"], "AB ZZ"
    feats["silent"], texts["silent"] = feats["u000"], " "
    feats["nan"], texts["nan"] = feats["u000"] * np.nan, "AB"
    feats["untold"] = feats["u000"]
    texts["unheard"] = "AB"
    material = check_material(corpus.lang, feats, texts, 4)
    assert material.losses.lost == {
        "nan": f"has {len(feats['u000'])} frames that are not finite",
        "short": "has 5 frames but its states need 12",
        "silent": "has an empty transcript",
        "unheard": "has no features",
        "unknown": "has words outside the lexicon: ZZ",
        "untold": "has no transcript",
    }
    with pytest.raises(ValueError, match=r"6 of 46 .* more than 1 %: nan has"):
        train_monophone(corpus.lang, feats, texts, CONFIG)


def test_one_lost_in_many_is_reported_and_does_not_stop_training():
    corpus = draw_corpus(100, seed=1)
    feats = {**corpus.feats, "u000": corpus.feats["u000"][:4]}
    trained = train_monophone(corpus.lang, feats, corpus.texts, replace(CONFIG, passes=1, grow_passes=1))
    assert list(trained.lost) == ["u000"]
    assert "need" in trained.lost["u000"]
    assert len(trained.tids) == 99


def test_features_of_another_kind_are_refused(corpus, mono):
    narrow = {u: x[:, :3] for u, x in corpus.feats.items()}
    with pytest.raises(ValueError, match="u000 has 3 features, 4 are needed"):
        align(mono.model, narrow, corpus.texts)
    constant = {u: np.concatenate([x, np.ones((len(x), 1), np.float32)], 1) for u, x in corpus.feats.items()}
    with pytest.raises(ValueError, match=r"features \[4\] are the same"):
        train_monophone(corpus.lang, constant, corpus.texts, CONFIG)


def test_realignment_by_scores_equals_the_mixtures_own(corpus, mono):
    own = align(mono.model, corpus.feats, corpus.texts)
    scores = {u: mono.model.loglikes(x) for u, x in corpus.feats.items()}
    given = align_scores(mono.model, scores, corpus.texts)
    same = [np.array_equal(own[u], given[u]) for u in own]
    assert np.mean(same) > 0.95


def test_stored_model_is_the_same_to_the_bit_and_goes_on_alike(corpus, tri, tmp_path):
    save_model(tri.model, tmp_path / "tri.npz")
    loaded = load_model(tmp_path / "tri.npz")
    assert same_model(tri.model, loaded)
    assert loaded.lang == tri.model.lang
    assert loaded.tree == tri.model.tree
    one, two = (align(m, corpus.feats, corpus.texts) for m in (tri.model, loaded))
    assert all(np.array_equal(one[u], two[u]) for u in one)
    assert [p.name for p in tmp_path.iterdir()] == ["tri.npz"]


def test_damaged_and_foreign_files_are_refused(mono, tri, tmp_path):
    path = tmp_path / "model.npz"
    save_model(mono.model, path)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(ValueError, match=r"model\.npz is damaged"):
        load_model(path)
    save_alignments(mono.model, mono.tids, path)
    with pytest.raises(ValueError, match="not 'murmur HMM-GMM 1'"):
        load_model(path)
    with pytest.raises(ValueError, match="another tree"):
        load_alignments(tri.model, path)
    with pytest.raises(FileNotFoundError):
        load_model(tmp_path / "absent.npz")


def test_alignments_round_trip_and_give_targets(mono, tmp_path):
    path = tmp_path / "ali.npz"
    save_alignments(mono.model, mono.tids, path)
    loaded = load_alignments(mono.model, path)
    assert list(loaded) == sorted(mono.tids)
    assert all(np.array_equal(loaded[u], mono.tids[u]) for u in loaded)
    pdfs = mono.model.pdf_ids(loaded)
    assert all(p.min() >= 0 and p.max() < mono.model.num_pdfs for p in pdfs.values())
    with pytest.raises(ValueError, match="utterance x"):
        save_alignments(mono.model, {"x": np.array([0, 1], dtype=np.int32)}, path)


def test_ctm_times_are_seconds_in_order(mono, tmp_path):
    path = tmp_path / "phones.ctm"
    write_ctm(mono.model, mono.tids, path)
    lines = [line.split() for line in path.read_text().splitlines()]
    first = [line for line in lines if line[0] == "u000"]
    assert float(first[0][2]) == 0.0
    assert sum(float(line[3]) for line in first) == pytest.approx(len(mono.tids["u000"]) * 0.01)


def test_loglikes_rank_the_aligned_pdfs_high(corpus, mono):
    u = "u001"
    scores, pdfs = mono.model.loglikes(corpus.feats[u]), mono.model.pdf_ids(mono.tids)[u]
    assert scores.shape == (len(pdfs), mono.model.num_pdfs)
    assert np.mean(scores.argmax(1) == pdfs) > 0.6


def test_without_a_seed_per_utterance_silences_would_coincide(corpus):
    block = next(cut_into_blocks(corpus.feats, dict.fromkeys(corpus.texts, "B B B")))
    model = train_monophone(corpus.lang, corpus.feats, corpus.texts, replace(CONFIG, passes=1, grow_passes=1)).model
    block.feats = {u: np.zeros((60, 4), np.float32) for u in block.feats}
    align_flat(block, model, seed=0)
    shapes = {tuple(t.phone for t in phone_times(model, tids)) for tids in block.tids.values()}
    assert len(shapes) >= 4, "optional silences fall differently in different utterances"


def test_of_several_flat_starts_the_likeliest_goes_on(corpus):
    few = {u: corpus.texts[u] for u in sorted(corpus.texts)[:6]}
    feats = {u: corpus.feats[u] for u in few}
    settings = {"gaussians": 1, "passes": 1, "grow_passes": 1, "align_passes": ()}
    single = [
        train_monophone(corpus.lang, feats, few, MonophoneConfig(**settings, seed=seed, flat_starts=1, trial_passes=4))
        for seed in range(3)
    ]
    several = train_monophone(corpus.lang, feats, few, MonophoneConfig(**settings, flat_starts=3, trial_passes=4))
    likelihoods = [t.history[0].log_likelihood_per_frame for t in single]
    assert max(likelihoods) > min(likelihoods)
    assert several.history[0].log_likelihood_per_frame == max(likelihoods)
