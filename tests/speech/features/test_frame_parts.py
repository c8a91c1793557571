"""Existing features and alignments: Kaldi archives and Shar shards become prepared corpora without a new analysis."""

import gzip
import shutil

import kaldi_native_io as kio
import lhotse
import numpy as np
import pytest
from lhotse.shar import SharWriter

from murmur.speech.corpus.corpus import CorpusError, Problem
from murmur.speech.corpus.kaldi_dir import read_data_dir, write_table
from murmur.speech.features import frame_parts
from murmur.speech.features.analysis import Ready
from murmur.speech.features.cmvn import normalise_all
from murmur.speech.features.frame_parts import aligned_parts, is_shar, on_demand, read_targets, shar_parts
from murmur.speech.features.shards import make
from tests.support.speech_files import in_memory, write_alignments

NAMES = [f"s{n % 2}-u{n}" for n in range(7)]
RNG = np.random.default_rng(0)
FEATS = {name: RNG.standard_normal((20 + n, 4)).astype(np.float32) for n, name in enumerate(NAMES)}
CLASSES = {name: RNG.integers(0, 9, len(feats)) for name, feats in FEATS.items()}


@pytest.fixture
def kaldi(tmp_path):
    """A data directory as Kaldi writes it: feats.scp into an archive, alignments in gzipped archives."""
    root = tmp_path / "kaldi"
    root.mkdir()
    with kio.FloatMatrixWriter(f"ark,scp:{root}/raw.ark,{root}/feats.scp") as writer:
        for name in sorted(FEATS):
            writer.write(name, FEATS[name])
    write_table(root / "text", dict.fromkeys(NAMES, "A"))
    write_table(root / "utt2spk", {n: n.partition("-")[0] for n in NAMES})
    (root / "pdfs").mkdir()
    write_alignments(root / "pdfs" / "ali.1.gz", {n: CLASSES[n] for n in NAMES[:4]})
    write_alignments(root / "pdfs" / "ali.2.gz", {n: CLASSES[n] for n in NAMES[4:]})
    return root


@pytest.fixture
def shar(tmp_path):
    """Two Shar shards with features and one class per frame."""
    folder = tmp_path / "shar"
    folder.mkdir()
    with SharWriter(folder, fields={"features": "numpy", "targets": "numpy"}, shard_size=4) as writer:
        for name in NAMES:
            cut = lhotse.MonoCut(name, 0, len(FEATS[name]) * 0.01, 0, features=in_memory(FEATS[name]))
            cut = cut.attach_tensor("targets", CLASSES[name].astype(np.int32), frame_shift=0.01, temporal_dim=0)
            writer.write(cut)
    return folder


@pytest.mark.parametrize("scope", ["none", "utterance", "speaker"])
def test_kaldi_features_and_alignments(kaldi, scope, tmp_path, monkeypatch):
    monkeypatch.setattr(frame_parts, "UTTERANCES_PER_SHARD", 3)
    corpus = read_data_dir(kaldi)
    feats = on_demand(corpus, Ready(4))
    parts = aligned_parts(feats, corpus.speakers, read_targets(kaldi / "pdfs"), scope)
    store = make(tmp_path / "out", parts, "float32")
    assert [shard["utterances"] for shard in store.manifest["shards"]] == [3, 3, 1]
    wanted = normalise_all(FEATS, corpus.speakers, scope)
    for number, name in enumerate(store.names):
        np.testing.assert_array_equal(store.feats(number), wanted[name])
        np.testing.assert_array_equal(store.targets(number), CLASSES[name])


def test_shar_shards(shar, tmp_path):
    assert is_shar(shar)
    assert not is_shar(tmp_path)
    store = make(tmp_path / "out", shar_parts(shar, "none"), "float32")
    assert [shard["utterances"] for shard in store.manifest["shards"]] == [4, 3]
    assert store.names == tuple(NAMES)
    for number, name in enumerate(NAMES):
        np.testing.assert_array_equal(store.feats(number), FEATS[name])
        np.testing.assert_array_equal(store.targets(number), CLASSES[name])
    normal = make(tmp_path / "normal", shar_parts(shar, "utterance"), "float32")
    np.testing.assert_allclose(normal.feats(2).mean(0), 0, atol=1e-6)
    with pytest.raises(CorpusError, match="all utterances of a speaker"):
        shar_parts(shar, "speaker")
    next(shar.glob("targets.000001*")).unlink()
    with pytest.raises(CorpusError, match="shard 000001: no file for targets"):
        shar_parts(shar, "none")


def test_utterances_without_a_fitting_alignment_are_problems(kaldi):
    corpus = read_data_dir(kaldi)
    targets = {n: CLASSES[n] for n in NAMES if n != "s0-u2"} | {"s1-u1": np.zeros(90, int)}
    (part,) = aligned_parts(on_demand(corpus, Ready(4)), corpus.speakers, targets, "none")
    lost = {p.utterance: p.what for p in part.utterances() if isinstance(p, Problem)}
    assert lost.keys() == {"s0-u2", "s1-u1"}
    assert "no alignment" in lost["s0-u2"]
    assert "90 frames cannot serve 21" in lost["s1-u1"]


def test_classes_as_this_package_writes_them(tmp_path):
    np.savez_compressed(tmp_path / "pdfs.npz", **CLASSES)
    found = read_targets(tmp_path / "pdfs.npz")
    assert all((found[n] == CLASSES[n]).all() for n in NAMES)
    with pytest.raises(CorpusError, match="neither a folder"):
        read_targets(tmp_path / "nothing.npz")
    (tmp_path / "ali.1.gz").write_bytes(gzip.compress(b"x" * 99)[:20])
    with pytest.raises(CorpusError, match="is damaged"):
        read_targets(tmp_path)
    shutil.copy(tmp_path / "ali.1.gz", tmp_path / "odd.npz")
    with pytest.raises(CorpusError, match="of classes"):
        read_targets(tmp_path / "odd.npz")


@pytest.mark.parametrize("scope", ["speaker", "utterance", "none"])
def test_an_utterance_that_cannot_be_read_is_a_problem(kaldi, scope):
    """Statistics are those of the others."""
    bad = NAMES[2]
    feats = {name: FEATS[name] for name in NAMES}

    class Broken(dict):
        def __getitem__(self, name):
            if name == bad:
                raise CorpusError("frame 3 is not finite")
            return super().__getitem__(name)

    speakers = {name: name.partition("-")[0] for name in NAMES}
    found = [each for part in aligned_parts(Broken(feats), speakers, CLASSES, scope) for each in part.utterances()]
    assert [(p.utterance, p.what) for p in found if isinstance(p, Problem)] == [(bad, "frame 3 is not finite")]
    others = {name: feats_TF for name, feats_TF in FEATS.items() if name != bad}
    for each in found:
        if not isinstance(each, Problem):
            np.testing.assert_array_equal(each.feats, normalise_all(others, speakers, scope)[each.name])
