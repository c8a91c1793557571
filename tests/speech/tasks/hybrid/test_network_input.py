"""Input of the network: spectrum, adapted features and i-vectors; copies at other speeds; use without the corpus."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")


from murmur.core.errors import SettingError
from murmur.speech.corpus.kaldi_dir import read_data_dir
from murmur.speech.features.analysis import deltas
from murmur.speech.features.augment import ChangeOfColumns, SpecAugment
from murmur.speech.features.chunks import Chunks
from murmur.speech.features.derived import DerivedFeatures
from murmur.speech.hmm.em_loop import EmConfig
from murmur.speech.hmm.fmllr import FmllrConfig
from murmur.speech.hmm.grow import TreeConfig
from murmur.speech.hmm.ivector import IvectorConfig, Sums, UbmConfig
from murmur.speech.hmm.model import adapt
from murmur.speech.hmm.sat import SatConfig
from murmur.speech.hmm.triphone import TriphoneConfig
from murmur.speech.models import Blstm, Conformer, Convolutions, Dnn, Lstm, Tdnn, TdnnF
from murmur.speech.recognition.trained_run import TransformSearch
from murmur.speech.tasks.graph_sources import Search
from murmur.speech.tasks.hybrid import data as hybrid_data
from murmur.speech.tasks.hybrid import stage as ivector_stage
from murmur.speech.tasks.hybrid.config import ChainMmi, Decoding, FrontEnd, HmmStages, NetworkInput
from murmur.speech.tasks.hybrid.task import HybridTask
from murmur.speech.tasks.recogniser import PortableRecogniser
from murmur.speech.tasks.word_search import WordSearch
from tests.support.plateaus import make_set
from tests.support.tones import make_tones

EM = EmConfig(gaussians=30, passes=5, grow_passes=4, align_passes=(2, 3, 4), min_gaussian_frames=3)
TREE = TreeConfig(leaves=16, min_frames=10, min_gain=1.0)
FMLLR = FmllrConfig(min_frames=50)
IVECTOR = IvectorConfig(dims=3, passes=3, scale=0.2, utterances=2, ubm=UbmConfig(gaussians=5, passes=3))
BINS, CEPSTRA, SPEED = 12, 39, 1.25
FULL = NetworkInput(deltas=1, fmllr=True, ivector=IVECTOR)
SIZES = {"train": 48, "dev": 8, "test": 8}
SPECTRUM = 2 * BINS
FMLLR_COLUMNS, IVECTOR_COLUMNS = slice(SPECTRUM, SPECTRUM + CEPSTRA), slice(SPECTRUM + CEPSTRA, None)
NO_MASKS = SpecAugment(time_masks=0, bin_masks=0)
NETWORKS = [
    Dnn(hidden=8, layers=1),
    Tdnn(hidden=8, dropout=0.0),
    TdnnF(hidden=16, bottleneck=8),
    Lstm(hidden=8, layers=1),
    Blstm(hidden=8, layers=1),
    Conformer(hidden=8, layers=1, heads=2, kernel=3),
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A task with a speaker-adapted Gaussian system whose network takes the spectrum alone."""
    root = tmp_path_factory.mktemp("tones")
    return HybridTask(
        corpus=make_tones(root / "set", SIZES),
        front=FrontEnd(bins=BINS),
        hmm=HmmStages(monophone=EM, triphone=TriphoneConfig(TREE, EM), sat=SatConfig((2,), FMLLR, FMLLR, TREE, EM)),
        network=Tdnn(hidden=16, dropout=0.0),
        chunks=Chunks(frames=20, size=8),
        augment=NO_MASKS,
        decoding=Decoding(gmm=Search(scales=(0.1,)), network=Search(scales=(0.3,))),
        cache=root / "cache",
    )


def with_input(task, wanted, **more):
    return replace(task, front=replace(task.front, input=wanted, **more))


@pytest.fixture(scope="module")
def full(plain):
    return with_input(plain, FULL)


@pytest.mark.parametrize("part", ["train", "test"])
def test_the_columns_are_those_of_the_parts(plain, full, part):
    half, corpus = full.hmms, full.utterances(part)
    found = half.network_features(corpus)
    spectrum, cepstra = plain.hmms.network_features(corpus), plain.hmms.features(corpus)
    transforms, model = half.transforms(corpus, 1.0), half.trained[-1].model
    assert found.keys() == spectrum.keys()
    for name, feats in found.items():
        assert feats.shape[1] == half.network_dims == SPECTRUM + CEPSTRA + IVECTOR.dims
        assert np.array_equal(feats[:, :SPECTRUM], deltas(spectrum[name], 1))
        adapted = adapt(transforms[corpus.speakers[name]], model.features(cepstra[name]))
        assert np.array_equal(feats[:, FMLLR_COLUMNS], adapted)
        assert not np.array_equal(adapted, cepstra[name])
        assert (feats[:, IVECTOR_COLUMNS] == feats[0, IVECTOR_COLUMNS]).all()


def test_an_ivector_is_the_extractors_answer_for_two_utterances_in_training_and_for_the_speaker_elsewhere(full):
    half, size = full.hmms, {"train": 2, "test": 2}
    for part, in_training in (("train", True), ("test", False)):
        corpus = full.utterances(part)
        feats, points = half.features(corpus), half.network_features(corpus)
        speaker = corpus.speakers[next(iter(feats))]
        own = sorted(name for name in feats if corpus.speakers[name] == speaker)
        assert len(own) >= size[part]
        group = own[:2] if in_training else own
        total = Sums.none(half.extractor.ubm)
        for name in group:
            total += Sums.of(half.extractor.ubm, feats[name], IVECTOR.scale)
        expected = half.extractor.ivector(total).astype(np.float32)
        assert np.abs(expected).max() > 0
        for name in own:
            assert np.array_equal(points[name][0, IVECTOR_COLUMNS], expected) == (name in group)


def test_masks_and_warps_touch_the_spectrum_alone_and_treat_derivatives_alike(full):
    masks = SpecAugment(time_masks=2, time_frames=15, bin_masks=2, bins=6)
    clean, masked = full.minibatch(3).feats, replace(full, augment=masks).minibatch(3).feats
    warped = replace(full, augment=replace(NO_MASKS, warp=0.3)).minibatch(3).feats
    for changed in (masked, warped):
        assert torch.equal(changed[..., SPECTRUM:], clean[..., SPECTRUM:])
        assert not torch.equal(changed[..., :BINS], clean[..., :BINS])
        assert not torch.equal(changed[..., BINS:SPECTRUM], clean[..., BINS:SPECTRUM])
    zero = masked[..., :BINS] == 0
    assert 0.05 < zero.float().mean() < 0.9
    assert torch.equal(zero, masked[..., BINS:SPECTRUM] == 0)
    assert torch.equal(masked[..., :SPECTRUM][~zero.repeat(1, 1, 2)], clean[..., :SPECTRUM][~zero.repeat(1, 1, 2)])


def test_masks_treat_the_derivatives_of_a_sets_own_features_alike(plain):
    augment = SpecAugment(bin_masks=1, bins=4)
    for order in (None, 2):
        task = replace(with_input(plain, NetworkInput(deltas=order)), augment=augment)
        assert isinstance(task.change, SpecAugment) == (order is None)  # log-mel bins have derivatives on request
    root = make_set(plain.cache.parent / "ready", {"train": 6, "dev": 2, "test": 2})
    own = HybridTask(corpus=root, hmm=plain.hmm, augment=augment, cache=plain.cache)
    assert own.change == ChangeOfColumns(augment, 13, 3)


def test_without_spectrum_masks_over_time_touch_the_adapted_features_alone(plain):
    task = with_input(plain, NetworkInput(spectrum=False, fmllr=True, ivector=IVECTOR))
    clean = task.minibatch(0).feats
    masked = replace(task, augment=SpecAugment(time_masks=2, bin_masks=0)).minibatch(0).feats
    assert torch.equal(masked[..., CEPSTRA:], clean[..., CEPSTRA:])
    assert (masked[..., :CEPSTRA] == 0).all(-1).any()


def test_copies_at_another_speed_have_transforms_and_ivectors_of_their_own(full):
    task = with_input(full, FULL, speeds=(1.0, SPEED))
    half, train = task.hmms, task.material.train
    store, expected = task.data.train, half.network_features(train, SPEED)
    copies = {name: store.feats(i) for i, name in enumerate(store.names) if name.startswith(f"sp{SPEED:g}-")}
    assert len(copies) == len(half.trained[-1].tids)
    slow = half.network_features(train)
    for name, feats in copies.items():
        own = name.removeprefix(f"sp{SPEED:g}-")
        assert np.array_equal(feats, expected[own])
        assert len(feats) < len(slow[own])
        assert not np.array_equal(feats[0, IVECTOR_COLUMNS], slow[own][0, IVECTOR_COLUMNS])
    transforms = half.transforms(train, SPEED)
    assert transforms.keys() == half.transforms(train, 1.0).keys()
    apart = [np.abs(transforms[s] - half.transforms(train, 1.0)[s]).max() for s in transforms]
    assert min(apart) > 1e-3
    refusing = replace(task, absent="refuse")
    with pytest.raises(SettingError, match="transforms of train at speed"):
        refusing.hmms.transforms(refusing.material.train, 1.5)


def test_processes_and_shards_change_no_bit(plain, monkeypatch):
    task = with_input(plain, replace(FULL, deltas=None))
    first = {name: task.data.train.feats(i) for i, name in enumerate(task.data.train.names)}
    shutil.rmtree(task.data.train.folder)
    monkeypatch.setattr(hybrid_data, "whole_host", lambda _: 2)
    monkeypatch.setattr(hybrid_data, "UTTERANCES_PER_SHARD", 7)
    again = replace(task)
    assert len(list(again.data.train.folder.glob("*.feats.npy"))) == 7
    assert again.data.train.names == tuple(first)
    for i, name in enumerate(again.data.train.names):
        assert np.array_equal(again.data.train.feats(i), first[name])


def test_the_extractor_is_stored_and_read_and_its_background_model_is_kept(plain, monkeypatch, caplog):
    task, calls, trained = with_input(plain, NetworkInput(ivector=IVECTOR)), [], ivector_stage.train_ubm
    monkeypatch.setattr(ivector_stage, "train_ubm", lambda *a: calls.append(1) or trained(*a))
    monkeypatch.setattr(
        ivector_stage, "train", lambda *a, own=ivector_stage.train, **k: calls.append(2) or own(*a, **k)
    )
    config = replace(IVECTOR, seed=5, ubm=replace(IVECTOR.ubm, seed=7))
    task = with_input(plain, NetworkInput(ivector=config))
    stage = task.hmms.ivector_stage
    assert stage.untrained()
    assert any("i-vectors of 3 values" in str(line) for line in task.unprepared())
    with caplog.at_level("INFO"):
        first = task.hmms.extractor
    assert "background model 3/3" in caplog.text
    assert "i-vector extractor 3/3" in caplog.text
    assert calls == [1, 2]
    assert np.array_equal(replace(task).hmms.extractor.matrix, first.matrix)
    assert calls == [1, 2]
    assert not any("i-vectors" in str(line) for line in task.unprepared())
    stage.files[1].write_bytes(stage.files[1].read_bytes()[:-50])  # cut short
    assert np.array_equal(replace(task).hmms.extractor.matrix, first.matrix)
    assert calls == [1, 2, 2]
    stage.files[1].unlink()
    with pytest.raises(SettingError, match=r"extractor of i-vectors ivector-\w+\.npz"):
        _ = replace(task, absent="refuse").hmms.extractor


@pytest.mark.parametrize("part", ["train", "dev"])
def test_derivatives_of_log_mel_are_normalised_too(plain, part):
    """All columns of a speaker have mean 0 and deviation 1, at all speeds, and training frames are the same."""
    task = with_input(plain, NetworkInput(deltas=2), normalised="all", speeds=(1.0, SPEED))
    corpus, static = task.utterances(part), with_input(plain, NetworkInput(deltas=2)).hmms
    for speed in (1.0, SPEED):
        found, before = task.hmms.network_features(corpus, speed), static.network_features(corpus, speed)
        for speaker in sorted(set(corpus.speakers.values())):
            own = [name for name in found if corpus.speakers[name] == speaker]
            columns = np.concatenate([found[name] for name in own])
            assert columns.shape[1] == task.hmms.network_dims == 3 * BINS
            np.testing.assert_allclose(columns.mean(0), 0.0, atol=1e-5)
            np.testing.assert_allclose(columns.std(0), 1.0, atol=1e-4)
            assert np.concatenate([before[name] for name in own])[:, BINS:].std(0).max() < 0.8
        assert all(np.allclose(found[name][:, :BINS], before[name][:, :BINS], atol=1e-5) for name in found)
    if part == "dev":
        assert all(
            np.array_equal(feats, task.hmms.network_features(corpus)[n]) for n, feats in task.data.dev_feats.items()
        )
        return
    copies = {f"sp{SPEED:g}-{name}": feats for name, feats in task.hmms.network_features(corpus, SPEED).items()}
    every, store = {**task.hmms.network_features(corpus), **copies}, task.data.train
    assert len(store.names) == len(every)
    assert all(np.array_equal(store.feats(i), every[name]) for i, name in enumerate(store.names))


def test_features_of_one_speaker_alone_are_those_of_the_set(plain):
    """As `murmur transcribe --adapt` computes them."""
    half, test = plain.hmms, plain.material.test
    feats, store = half.features(test), half.store(test, half.cepstra)
    for speaker in sorted(set(test.speakers.values())):
        names = [name for name in feats if test.speakers[name] == speaker]
        found = DerivedFeatures.gaussian({name: store[name] for name in names}, dict.fromkeys(names, ""))
        assert all(np.array_equal(found[name], feats[name]) for name in names)


SAVED = [
    (FULL, "static"),
    (FULL, "all"),
    (NetworkInput(ivector=IVECTOR), "static"),
    (NetworkInput(spectrum=False, fmllr=True), "static"),
    (NetworkInput(deltas=2), "all"),
]


@pytest.mark.parametrize(("wanted", "normalised"), SAVED)
def test_a_saved_recogniser_gives_the_same_scores_without_corpus_and_cache(wanted, normalised, plain, tmp_path):
    task = with_input(plain, wanted, normalised=normalised)
    torch.manual_seed(1)
    network = task.model()
    scorer = task.network_scorer(network, task.targets.log_prior, "test")
    expected = {name: scorer(name) for name in task.material.test.texts}
    task.recogniser().save(tmp_path / "recogniser")
    moved = shutil.move(tmp_path / "recogniser", tmp_path / "elsewhere")
    recogniser = PortableRecogniser.open(moved)
    acoustic, passes = recogniser.acoustic, None
    if wanted.spectrum:
        order = task.hmms.delta_order if normalised == "all" else 0
        assert acoustic.training()[0].shape == ((order + 1) * BINS,)
    if wanted.fmllr:
        settings = acoustic.speakers.first_pass
        search = WordSearch(recogniser.graphs, settings.grammar, recogniser.cache)
        passes = TransformSearch(acoustic.speakers.gaussians, search, settings.options)
    test = read_data_dir(task.corpus / "data" / "test")
    feats = acoustic.features(test, tmp_path / "features", passes)
    assert feats.keys() == expected.keys()
    for name, scores in expected.items():
        assert np.array_equal(acoustic.scores(network, feats[name]), scores)


def test_transforms_of_one_speaker_alone_are_those_of_the_set(full):
    """Speakers are decoded here or in processes, alone or together: their transforms are the same."""
    speakers = full.speaker_inputs
    search = WordSearch(full._words.sources, speakers.first_pass.grammar, full.cache)
    passes = TransformSearch(speakers.gaussians, search, speakers.first_pass.options)
    test = full.material.test
    feats, every = full.hmms.features(test), full.hmms.transforms(test, 1.0)
    assert len(every) == 4
    for speaker, transform in every.items():
        own = {name: x for name, x in feats.items() if test.speakers[name] == speaker}
        np.testing.assert_allclose(passes(own, test.speakers)[speaker], transform, atol=1e-5)


@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: type(n).__name__)
def test_every_model_takes_the_input(full, network):
    task = replace(full, network=network)
    model = task.model()
    loss = task.loss(model, task.minibatch(0))
    loss.total.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    assert np.isfinite(task.evaluate(model)["loss"])


def test_frames_of_another_input_have_a_folder_of_their_own(plain):
    names = [hybrid_data._folder(task.hmms, plain.targets) for task in (plain, with_input(plain, NetworkInput()))]
    assert names[0] == names[1] != hybrid_data._folder(with_input(plain, FULL).hmms, plain.targets)
    assert plain.change is plain.augment


def test_the_dry_run_names_cepstra_at_other_speeds(plain, tmp_path):
    task = replace(with_input(plain, NetworkInput(ivector=IVECTOR), speeds=(0.9, 1.0)), cache=tmp_path)
    told = [unmade.what for unmade in task.unprepared()]
    assert any(line.startswith("cepstra at speed 0.9") for line in told)
    alone = replace(plain, front=replace(plain.front, speeds=(0.9, 1.0)), cache=tmp_path)
    assert not any(line.startswith("cepstra at speed") for line in (unmade.what for unmade in alone.unprepared()))


def test_refusals(plain):
    for wanted in (NetworkInput(ivector=IVECTOR), NetworkInput(fmllr=True), NetworkInput(deltas=1)):
        with pytest.raises(ValueError, match="neither transforms nor i-vectors of their own"):
            FrontEnd(speeds=(0.9, 1.0), perturb="on_the_fly", input=wanted)
    with pytest.raises(ValueError, match="says nothing about a frame"):
        NetworkInput(spectrum=False, ivector=IVECTOR)
    with pytest.raises(ValueError, match="deltas = 3"):
        NetworkInput(deltas=3)
    with pytest.raises(ValueError, match="deltas = 1"):
        NetworkInput(spectrum=False, fmllr=True, deltas=1)
    with pytest.raises(ValueError, match="they are no frequencies"):
        replace(with_input(plain, NetworkInput(ivector=IVECTOR)), network=Tdnn(front=Convolutions(bins=3)))
    chain = replace(with_input(plain, NetworkInput(ivector=IVECTOR)), criterion=ChainMmi(), network=Tdnn(stack=3))
    with pytest.raises(SettingError, match="chain models take the spectrum alone"):
        chain.check()
    acoustic = with_input(plain, FULL)._acoustic
    with pytest.raises(SettingError, match="transforms from a decoding pass"):
        acoustic.input({}, {}, {})
