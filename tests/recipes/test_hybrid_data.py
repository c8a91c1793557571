"""Training data of the hybrid task: what a plain loop would make, the same bytes by any number of processes."""

import pickle
from dataclasses import replace
from functools import partial
from operator import truediv
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from murmur.recipes import hybrid_data
from murmur.recipes.corpora import SpeechSet
from murmur.recipes.hybrid_config import FrontEnd, HmmStages
from murmur.recipes.hybrid_data import HybridData, Targets, speed_parts
from murmur.recipes.hybrid_hmm import HmmHalf
from murmur.speech import processes, shard_statistics, shards
from murmur.speech.cmvn import normalise_all, statistics_of_all
from murmur.speech.corpus import Audio, Corpus, Utterance
from murmur.speech.features import LogMel, features_of
from murmur.speech.hybrid import speed_copy

SPEEDS = (1.0, 0.8, 1.1)


def spoken(folder: Path, count: int) -> Corpus:
    """Random sounds of 0.4 to 1 s at 8 kHz, of three speakers that take turns."""
    folder.mkdir()
    rng, found = np.random.default_rng(count), []
    for i in range(count):
        path = folder / f"{i:02}.flac"
        soundfile.write(path, rng.uniform(-0.5, 0.5, int(rng.integers(3200, 8000))), 8000)
        found.append(Utterance(f"u{i:02}", f"s{i % 3}", "YES", Audio(path)))
    return Corpus(tuple(found))


@pytest.fixture
def half(tmp_path, monkeypatch):
    for module, name in ((hybrid_data, "UTTERANCES_PER_SHARD"), (shards, "UTTERANCES_PER_SHARD")):
        monkeypatch.setattr(module, name, 4)
    monkeypatch.setattr(shard_statistics, "UTTERANCES_PER_JOB", 4)
    material = SpeechSet(spoken(tmp_path / "train", 11), spoken(tmp_path / "dev", 2), Corpus(()), tmp_path / "none")
    front = FrontEnd(bins=9, speeds=SPEEDS, storage="uint8")
    return HmmHalf(material, tmp_path / "none", front, HmmStages(), tmp_path / "cache")


@pytest.fixture
def targets(half):
    """Pdfs of all utterances but one, as many as there are frames at speed 1."""
    rng = np.random.default_rng(1)
    found = {
        part: {u.id: rng.integers(5, size=len(half.network_features(corpus)[u.id])) for u in corpus.utterances}
        for part, corpus in (("train", half.material.train), ("dev", half.material.dev))
    }
    del found["train"]["u03"]
    return Targets(found["train"], found["dev"], torch.zeros(5))


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
    began, pool, make = [], processes.ProcessPoolExecutor, hybrid_data.make

    def at_once(*shards_and_how, **more):
        monkeypatch.setattr(processes, "START_SECONDS", 0.0)
        return make(*shards_and_how, **more)

    monkeypatch.setattr(processes, "ProcessPoolExecutor", lambda *a, **k: began.append(a[0]) or pool(*a, **k))
    monkeypatch.setattr(hybrid_data, "cores_here", lambda: 2)
    monkeypatch.setattr(hybrid_data, "make", at_once)  # the features have been made here: to save time
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
    found = shard_statistics.normalisation(store, "speaker", 2)
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
