"""Feature stores: the same numbers for any number of processes, found again, repaired after damage."""

import json
import os
import pickle

import numpy as np
import pytest
import soundfile

from murmur.execution import processes
from murmur.speech.corpus.corpus import Audio, Corpus, CorpusError, Utterance
from murmur.speech.features import feature_store, shards
from murmur.speech.features.analysis import LogMel, features_of
from murmur.speech.features.feature_store import AnalysedPart, is_prepared, missing_share, prepare, store_folder
from murmur.speech.features.shards import is_whole, make_shard, open_store

FRONT = LogMel(bins=8)


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setattr(feature_store, "UTTERANCES_PER_SHARD", 4)
    rng, utterances = np.random.default_rng(0), []
    for i in range(10):
        soundfile.write(tmp_path / f"{i}.flac", rng.uniform(-0.5, 0.5, 1600 + 160 * i), 16000)
        utterances.append(Utterance(f"u{i}", f"s{i % 3}", "YES", Audio(tmp_path / f"{i}.flac")))
    return Corpus(tuple(utterances))


def test_a_store_holds_the_features_of_every_utterance(corpus, tmp_path):
    store = prepare(corpus, FRONT, tmp_path / "cache")
    assert list(store) == [u.id for u in corpus.utterances]
    for utterance in corpus.utterances:
        np.testing.assert_array_equal(store[utterance.id], features_of(utterance, FRONT))
        assert store.frames(utterance.id) == len(store[utterance.id])
    assert store.hours == pytest.approx(sum(len(f) for f in store.values()) / 360000)
    assert "10 utterances, 3 speakers, 0 skipped" in store.summary()
    assert not store["u0"].flags.owndata
    assert len(pickle.dumps(store.part(["u0", "u9"]))) < 500  # names and places, no frames


def test_processes_change_nothing(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "START_SECONDS", 0.0)  # not even this little is done here
    alone, together = prepare(corpus, FRONT, tmp_path / "a"), prepare(corpus, FRONT, tmp_path / "b", processes=2)
    assert sorted(p.name for p in alone.folder.iterdir()) == sorted(p.name for p in together.folder.iterdir())
    for path in alone.folder.iterdir():
        assert path.read_bytes() == (together.folder / path.name).read_bytes()


def test_what_is_whole_is_found_and_what_is_not_is_made_again(corpus, tmp_path, monkeypatch):
    first = prepare(corpus, FRONT, tmp_path / "cache")
    wanted = {name: np.array(feats) for name, feats in first.items()}
    (first.folder / "00000.json").unlink()  # killed between the array and its JSON
    with (first.folder / "00001.feats.npy").open("r+b") as file:  # half written, or a bad disk
        file.truncate(300)
    damaged = bytearray((first.folder / "00002.feats.npy").read_bytes())
    damaged[-1] ^= 1
    (first.folder / "00002.feats.npy").write_bytes(damaged)
    assert not any(is_whole(first.folder, n) for n in range(3))
    made = []
    real = shards.make_shard
    monkeypatch.setattr(shards, "make_shard", lambda folder, n, *rest: (made.append(n), real(folder, n, *rest)))
    again = prepare(corpus, FRONT, tmp_path / "cache")
    assert made == [0, 1, 2]
    assert all((again[name] == wanted[name]).all() for name in wanted)
    prepare(corpus, FRONT, tmp_path / "cache")
    assert made == [0, 1, 2]


def test_another_analysis_or_corpus_gets_another_store(corpus, tmp_path):
    stores = [
        prepare(corpus, FRONT, tmp_path / "cache"),
        prepare(corpus, LogMel(bins=9), tmp_path / "cache"),
        prepare(corpus.subset(lambda u: u.id != "u3"), FRONT, tmp_path / "cache"),
    ]
    assert len({store.folder for store in stores}) == 3


def test_unusable_utterances_are_named_counted_and_left_out(tmp_path, caplog):
    soundfile.write(tmp_path / "good.flac", np.random.default_rng(0).uniform(-0.5, 0.5, 4000), 16000)
    soundfile.write(tmp_path / "slow.flac", np.zeros(4000), 8000)
    good = [Utterance(f"u{i:03}", "s", "YES", Audio(tmp_path / "good.flac")) for i in range(120)]
    bad = Utterance("bad", "s", "YES", Audio(tmp_path / "slow.flac"))
    store = prepare(Corpus((*good, bad)), FRONT, tmp_path / "cache")
    (told,) = caplog.messages
    assert ": 1 of 121 utterances is left out: bad (" in told
    assert "bad" not in store
    assert "1 of 121 utterances is left out: bad (" in store.summary()
    assert "8000 Hz" in store.summary()
    assert [p.utterance for p in prepare(Corpus((*good, bad)), FRONT, tmp_path / "cache").corpus.problems] == ["bad"]
    with pytest.raises(CorpusError, match=r"(?s)1 of 51 .*slow.flac"):
        prepare(Corpus((*good[:50], bad)), FRONT, tmp_path / "cache")


def test_the_index_is_plain_json(corpus, tmp_path):
    folder = prepare(corpus, FRONT, tmp_path / "cache").folder
    found = json.loads((folder / "00002.json").read_text())
    assert [found[name] for name in ("utterances", "frames", "columns", "problems")] == [2, 18 + 19, 8, []]
    assert (folder / "00002.names.txt").read_text() == "u8\nu9\n"


def test_features_alone_are_no_corpus_to_train_on(corpus, tmp_path):
    folder = prepare(corpus, FRONT, tmp_path / "cache").folder
    with pytest.raises(CorpusError, match=rf"{folder} holds features without targets: .* --alignments"):
        open_store(folder)


def test_an_utterance_is_tried_again(corpus, tmp_path, monkeypatch):
    """A file that could not be read for a moment is not left out for good."""
    reads, folder = [], store_folder(corpus, FRONT, tmp_path)
    folder.mkdir()

    def failing(utterance, front):
        reads.append(utterance.id)
        if utterance.id == "u5":
            raise CorpusError("for a moment")
        return features_of(utterance, front)

    with monkeypatch.context() as broken:
        broken.setattr(feature_store, "features_of", failing)
        make_shard(folder, 1, AnalysedPart(corpus.utterances[4:8], FRONT), "float32")
    whole = prepare(corpus, FRONT, tmp_path)
    assert list(whole) == [u.id for u in corpus.utterances]
    assert not whole.corpus.problems
    np.testing.assert_array_equal(whole["u5"], features_of(corpus.utterances[5], FRONT))
    monkeypatch.setattr(feature_store, "features_of", failing)
    reads.clear()
    prepare(corpus, FRONT, tmp_path)
    assert reads == []  # nothing is left out, so that nothing is read


def test_shards_that_another_command_makes_meanwhile_are_not_made_again(corpus, tmp_path, monkeypatch):
    made, real = [], shards.make_shard

    def beside_another(folder, number, *rest):
        made.append(number)
        if len(made) == 1:
            prepare(corpus, FRONT, tmp_path)
        real(folder, number, *rest)

    monkeypatch.setattr(shards, "make_shard", beside_another)
    assert len(prepare(corpus, FRONT, tmp_path)) == 10
    assert made == [0, 0, 1, 2]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o007, 0o660)])
def test_files_have_the_permissions_of_any_new_file(umask, mode, corpus, tmp_path):
    """Others could not train on a cache that was prepared for them."""
    before = os.umask(umask)
    try:
        folder = prepare(corpus, FRONT, tmp_path / "cache").folder
    finally:
        os.umask(before)
    files = [*folder.iterdir()]
    assert len(files) == 3 * 4 + 1
    assert {path.stat().st_mode & 0o777 for path in files} == {mode}


def test_a_store_that_lacks_a_file_is_not_prepared(corpus, tmp_path):
    """A preparation that is killed leaves some files; the manifest is the last one."""
    cache = tmp_path / "cache"
    assert missing_share(corpus, FRONT, cache) == 1.0
    files = sorted(prepare(corpus, FRONT, cache).folder.iterdir())
    assert is_prepared(corpus, FRONT, cache)
    for file in files:
        content = file.read_bytes()
        file.unlink()
        assert not is_prepared(corpus, FRONT, cache), file.name
        assert 0 < missing_share(corpus, FRONT, cache) < 1
        file.write_bytes(content)
    assert missing_share(corpus, FRONT, cache) == 0.0


@pytest.mark.parametrize("changed", [lambda x: x.reshape(-1, 4), lambda x: x.T, lambda x: x.view(np.int32)])
def test_features_of_another_shape_or_type_are_refused(corpus, tmp_path, changed):
    store = prepare(corpus, FRONT, tmp_path / "cache")
    rows = [store.part(["u9", "u0"]), pickle.loads(pickle.dumps(store.part(["u9", "u0"])))]
    path = store.folder / "00002.feats.npy"
    np.save(path, np.ascontiguousarray(changed(np.load(path))))
    for feats in (store, *rows):
        assert len(feats["u0"]) > 0
        with pytest.raises(CorpusError, match=r"00002\.feats\.npy holds .* of shape .*: prepare the corpus again"):
            feats["u9"]
