"""Training data of the hybrid task: equal to those of a plain loop, with the same bytes for any number of processes."""

import pickle
from dataclasses import replace
from functools import partial
from operator import truediv
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from murmur.engine.prefetch import Prefetch
from murmur.execution import processes
from murmur.speech.corpus.corpus import Audio, Corpus, CorpusError, StoredFeatures, Utterance
from murmur.speech.features import feature_store
from murmur.speech.features.analysis import LogMel, features_of
from murmur.speech.features.augment import SpecAugment
from murmur.speech.features.chunks import ChunkTable, speed_copy
from murmur.speech.features.cmvn import normalise, normalise_all, statistics_of_all
from murmur.speech.features.speed_and_noise import Noise
from murmur.speech.tasks.corpora import SpeechSet
from murmur.speech.tasks.hybrid import data as hybrid_data
from murmur.speech.tasks.hybrid.config import FrontEnd, HmmStages
from murmur.speech.tasks.hybrid.data import HybridData, Targets, speed_parts
from murmur.speech.tasks.hybrid.hmm import HmmHalf

SPEEDS = (1.0, 0.8, 1.1)


def spoken(folder: Path, count: int) -> Corpus:
    """Random sounds of 0.4 to 1 s at 8 kHz, of three speakers in turn."""
    folder.mkdir()
    rng, found = np.random.default_rng(count), []
    for i in range(count):
        path = folder / f"{i:02}.flac"
        soundfile.write(path, rng.uniform(-0.5, 0.5, int(rng.integers(3200, 8000))), 8000)
        found.append(Utterance(f"u{i:02}", f"s{i % 3}", "YES", Audio(path)))
    return Corpus(tuple(found))


@pytest.fixture
def half(tmp_path, monkeypatch):
    for module, name in ((hybrid_data, "UTTERANCES_PER_SHARD"), (feature_store, "UTTERANCES_PER_SHARD")):
        monkeypatch.setattr(module, name, 4)
    monkeypatch.setattr(feature_store, "UTTERANCES_PER_JOB", 4)
    material = SpeechSet(spoken(tmp_path / "train", 11), spoken(tmp_path / "dev", 2), Corpus(()), tmp_path / "none")
    front = FrontEnd(bins=9, speeds=SPEEDS, storage="uint8")
    return HmmHalf(material, tmp_path / "none", front, HmmStages(), tmp_path / "cache")


@pytest.fixture
def targets(half):
    """Pdfs of all utterances but one, one per frame at speed 1."""
    rng = np.random.default_rng(1)
    found = {
        part: {u.id: rng.integers(5, size=len(half.network_features(corpus)[u.id])) for u in corpus.utterances}
        for part, corpus in (("train", half.material.train), ("dev", half.material.dev))
    }
    del found["train"]["u03"]
    return Targets(found["train"], found["dev"], torch.zeros(5))


def test_a_part_at_another_rate_than_train_is_refused(half, tmp_path):
    soundfile.write(tmp_path / "wide.flac", np.random.default_rng(0).uniform(-0.5, 0.5, 16000), 16000)
    wide = Corpus((Utterance("w", "s", "YES", Audio(tmp_path / "wide.flac")),))
    for features in (half.network_features, half.features):
        with pytest.raises(CorpusError, match=r"wide\.flac is at 16000 Hz, not 8000: resample it"):
            features(wide)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_shards_are_those_of_a_plain_loop(half, targets):
    half = replace(half, front=replace(half.front, storage="float32"))
    store = HybridData.prepare(half, targets).train
    train = half.material.train
    wanted = []
    for speed in SPEEDS:
        raw = {u.id: features_of(u, LogMel(rate_hz=8000, bins=9, speed=speed)) for u in train.utterances}
        feats = normalise_all(raw, train.speakers, "speaker")
        wanted += [speed_copy(u, speed, feats[u], targets.train[u]) for u in feats if u in targets.train]
    assert store.names == tuple(copy.name for copy in wanted)
    for number, copy in enumerate(wanted):
        np.testing.assert_array_equal(store.feats(number), copy.feats)
        np.testing.assert_array_equal(store.targets(number), copy.targets)


def test_any_number_of_processes_makes_the_same_bytes(half, targets, monkeypatch, tmp_path, capsys):
    alone = HybridData.prepare(half, targets).train.folder
    began, run, make = [], processes.run_in_workers, hybrid_data.make

    def at_once(*shards_and_how, **more):
        monkeypatch.setattr(processes, "START_SECONDS", 0.0)
        return make(*shards_and_how, **more)

    monkeypatch.setattr(
        processes, "run_in_workers", lambda jobs, number, n: began.append(number) or run(jobs, number, n)
    )
    monkeypatch.setattr(hybrid_data, "whole_host", lambda _: 2)
    monkeypatch.setattr(hybrid_data, "make", at_once)  # the features were made here, to save time
    together = HybridData.prepare(replace(half, cache=tmp_path / "other"), targets).train.folder
    assert began == [2]
    assert len(list(alone.glob("*.feats.npy"))) == 9
    assert files(alone) == files(together)
    told = capsys.readouterr()
    assert all(what in told.err for what in ("features", "statistics", "shards"))
    assert not told.out


@pytest.mark.slow
def test_statistics_by_processes_are_those_of_a_loop(half, monkeypatch):
    monkeypatch.setattr(processes, "START_SECONDS", 0.0)
    store = half.network_store(half.material.train)
    found = feature_store.normalisation(store, "speaker", 2)
    for name, (mean_F, deviation_F) in statistics_of_all(store, store.corpus.speakers, "speaker").items():
        np.testing.assert_array_equal(found.of(name)[0], mean_F)
        np.testing.assert_array_equal(found.of(name)[1], deviation_F)


def test_parts_name_their_data_and_do_not_hold_it(half, targets):
    parts = speed_parts(half, targets.train, 0.8)
    assert [len(part.feats) for part in parts] == [4, 4, 2]
    list(parts[0].utterances())  # maps the features
    held = sum(np.asarray(feats_TF).nbytes for feats_TF in parts[0].feats.values())
    sent = len(pickle.dumps(parts[0])) - sum(pdfs_T.nbytes for pdfs_T in parts[0].targets.values())
    assert sent < held / 3
    again = pickle.loads(pickle.dumps(parts[0]))
    for mine, theirs in zip(parts[0].utterances(), again.utterances(), strict=True):
        np.testing.assert_array_equal(mine.feats, theirs.feats)


def test_a_mistake_in_a_process_ends_the_rest(monkeypatch):
    monkeypatch.setattr(processes, "START_SECONDS", 0.0)
    done = processes.in_processes([float, *[partial(truediv, 1, 0)] * 3], 2)
    assert next(done) == 0.0
    with pytest.raises(ZeroDivisionError):
        list(done)


@pytest.fixture
def on_the_fly(half):
    return replace(half, front=replace(half.front, perturb="on_the_fly"))


def batches(data: HybridData, numbers: range, ahead: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Minibatches as a learner gets them, with this many made in the background."""
    table = ChunkTable(data.train.lengths, 20, 7, 9, 4)
    make = partial(table.batch, corpus=data.train, change=SpecAugment(), versions=data.versions)
    loader = Prefetch(make, ahead)
    found = []
    for n in numbers:
        loader.expect(range(n, numbers.stop))
        batch = loader.get(n)
        found.append((batch.feats, batch.targets))
    loader.close()
    return found


def same(one: list[tuple[torch.Tensor, ...]], other: list[tuple[torch.Tensor, ...]]) -> bool:
    return all(torch.equal(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True))


@pytest.mark.parametrize("noise", [Noise(), Noise(0.5)], ids=["speeds", "noise"])
@pytest.mark.parametrize("scope", ["speaker", "utterance", "none"])
def test_speeds_and_noise_on_the_fly_are_the_same_bits_whoever_makes_them(on_the_fly, targets, scope, noise):
    half = replace(on_the_fly, front=replace(on_the_fly.front, cmvn=scope, noise=noise))
    data = HybridData.prepare(half, targets)
    assert len(data.train) == 10  # one copy
    assert (data.versions.noise is not None) == (noise.share > 0)
    wanted = batches(data, range(6))
    for ahead in (1, 3) if scope == "speaker" else (2,):
        assert same(wanted, batches(HybridData.load(half, targets), range(6), ahead))
    assert same(wanted[3:5], batches(data, range(3, 5)))  # resumed
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3 - min(threads, 2))
        assert same(wanted[:3], batches(data, range(3)))
    finally:
        torch.set_num_threads(threads)


def test_on_the_fly_normalises_by_the_statistics_of_speed_1(on_the_fly, targets):
    data = HybridData.prepare(on_the_fly, targets)
    normal = on_the_fly.network_features(on_the_fly.material.train)
    for number, name in enumerate(data.train.names):
        raw = features_of(on_the_fly.material.train.subset(lambda u, n=name: u.id == n).utterances[0], LogMel(8000, 9))
        mean_F, deviation_F = data.versions.pairs[data.versions.owners[number]]
        np.testing.assert_array_equal(normalise(raw, mean_F, deviation_F), normal[name])


def test_statistics_that_are_gone_or_of_other_utterances_are_made_again(on_the_fly, targets):
    data = HybridData.prepare(on_the_fly, targets)
    wanted = files(data.train.folder)
    for harm in (lambda p: p.unlink(), lambda p: np.save(p, np.zeros(3, np.int32)), lambda p: p.write_bytes(b"\x93N")):
        harm(data.train.folder / "cmvn-owners.npy")
        HybridData.load(on_the_fly, targets)
        assert files(data.train.folder) == wanted


def test_complete_data_is_not_written_again(on_the_fly, targets):
    """It may be read-only."""
    folder = HybridData.prepare(on_the_fly, targets).train.folder
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert (folder / "cmvn-pairs.npy") in before
    HybridData.prepare(on_the_fly, targets)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_on_the_fly_is_refused_without_audio_files(on_the_fly, targets):
    first, *others = on_the_fly.material.train.utterances
    command = replace(first, audio=replace(first.audio, command="cat x"))
    ready = replace(first, audio=None, features=StoredFeatures(Path("feats.npz"), "a"))
    for instead, says in ((command, "gets its audio from a command"), (ready, "brings only features")):
        material = replace(on_the_fly.material, train=Corpus((instead, *others)))
        with pytest.raises(ValueError, match=f"u00 {says}: extract the audio"):
            HybridData.prepare(replace(on_the_fly, material=material), targets)
    with pytest.raises(ValueError, match="nothing to draw"):
        FrontEnd(perturb="on_the_fly")


@pytest.mark.parametrize("rate", [None, 16000], ids=["none", "another rate"])
@pytest.mark.parametrize("way", [HybridData.prepare, HybridData.load])
def test_noise_that_cannot_be_used_is_told_before_any_preparation(on_the_fly, targets, tmp_path, rate, way):
    """It was taken for missing data, which was made again and again."""
    folder = tmp_path / "noise"
    folder.mkdir()
    if rate is not None:
        soundfile.write(folder / "hum.wav", np.zeros(400), rate)
    half = replace(on_the_fly, front=replace(on_the_fly.front, noise=Noise(0.5, recordings=folder)))
    says = r"noise\.recordings: there is no \.wav" if rate is None else r"hum\.wav is at 16000 Hz, not 8000"
    with pytest.raises(CorpusError, match=says):
        way(half, targets)
    assert not list(half.cache.glob("frames-*"))


def test_prepared_data_that_cannot_be_opened_is_made_once(half, targets, monkeypatch):
    def shut(folder):
        opened.append(folder)
        raise CorpusError("shut")

    opened = []
    monkeypatch.setattr(hybrid_data, "open_store", shut)
    with pytest.raises(CorpusError, match=r"^shut$"):
        HybridData.load(half, targets)
    assert len(opened) == 2
