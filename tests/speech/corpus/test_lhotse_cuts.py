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


def test_a_cut_that_holds_a_part_of_a_supervision_is_a_problem(corpus, tmp_path):
    """Its words would have the audio of a part of them."""
    write_cuts(corpus, tmp_path / "cuts.jsonl.gz")
    cuts = lhotse.CutSet.from_file(tmp_path / "cuts.jsonl.gz")
    for offset, duration, told in ((0.0, 0.1, "a part"), (0.12, None, "a part"), (0.0, 0.2, None)):
        changed = [cut.truncate(offset=offset, duration=duration) if cut.id == "a" else cut for cut in cuts]
        lhotse.CutSet.from_cuts(changed).to_file(tmp_path / "changed.jsonl.gz")
        if told is None:  # less than a tenth of a second is lost
            assert read_cuts(tmp_path / "changed.jsonl.gz").texts == corpus.texts
        else:
            with pytest.raises(CorpusError, match=f"1 of 3 .*(?s:.)*a .*{told} of it"):
                read_cuts(tmp_path / "changed.jsonl.gz")


def test_a_supervision_outside_its_cut_is_a_problem(corpus, tmp_path):
    write_cuts(corpus, tmp_path / "cuts.jsonl.gz")
    cuts = list(lhotse.CutSet.from_file(tmp_path / "cuts.jsonl.gz"))
    cuts[0].supervisions[0].start = 0.6
    lhotse.CutSet.from_cuts(cuts).to_file(tmp_path / "changed.jsonl.gz")
    with pytest.raises(CorpusError, match="1 of 3"):
        read_cuts(tmp_path / "changed.jsonl.gz")
