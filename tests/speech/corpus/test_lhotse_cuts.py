"""Lhotse cut sets and Kaldi directories give the same corpus."""

import lhotse
import numpy as np
import pytest
import soundfile

from murmur.speech.corpus.corpus import Audio, Corpus, CorpusError, Utterance
from murmur.speech.corpus.lhotse_cuts import read_cuts, write_cuts
from murmur.speech.features.analysis import read_audio


@pytest.fixture
def corpus(tmp_path):
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 16000)
    soundfile.write(tmp_path / "r.flac", noise, 16000)
    soundfile.write(tmp_path / "q.flac", noise[::-1], 16000)
    return Corpus(
        (
            Utterance("a", "s1", "YES", Audio(tmp_path / "r.flac", 0.25, 0.5)),
            Utterance("b", "s1", "NO", Audio(tmp_path / "r.flac", 0.5, None)),
            Utterance("ü", "s2", "CAFÉ", Audio(tmp_path / "q.flac")),
        )
    )


def test_a_corpus_survives_the_way_through_lhotse(corpus, tmp_path):
    write_cuts(corpus, tmp_path / "cuts.jsonl.gz")
    back = read_cuts(tmp_path / "cuts.jsonl.gz")
    assert (back.texts, back.speakers) == (corpus.texts, corpus.speakers)
    for mine, theirs in zip(corpus.utterances, back.utterances, strict=True):
        assert (read_audio(mine.audio, 16000) == read_audio(theirs.audio, 16000)).all()


def test_lhotse_hears_the_same_samples(corpus, tmp_path):
    write_cuts(corpus, tmp_path / "cuts.jsonl.gz")
    for cut, utterance in zip(lhotse.CutSet.from_file(tmp_path / "cuts.jsonl.gz"), corpus.utterances, strict=True):
        np.testing.assert_array_equal(cut.load_audio()[0], read_audio(utterance.audio, 16000))


def test_changed_cuts_and_missing_files_are_named(corpus, tmp_path):
    write_cuts(corpus, tmp_path / "cuts.jsonl.gz")
    faster = lhotse.CutSet.from_file(tmp_path / "cuts.jsonl.gz").perturb_speed(1.1)
    faster.to_file(tmp_path / "fast.jsonl.gz")
    with pytest.raises(CorpusError, match=r"(?s)3 of 3 .*transformed"):
        read_cuts(tmp_path / "fast.jsonl.gz")
    (tmp_path / "q.flac").unlink()
    with pytest.raises(CorpusError, match=r"q\.flac is missing"):
        read_cuts(tmp_path / "cuts.jsonl.gz")
    with pytest.raises(CorpusError, match=r"nothing\.jsonl is missing"):
        read_cuts(tmp_path / "nothing.jsonl")
