"""Lhotse cut sets and Kaldi directories give the same corpus."""

from dataclasses import replace

import lhotse
import numpy as np
import pytest
import soundfile

from murmur.speech.corpus.corpus import Audio, Corpus, CorpusError, Utterance
from murmur.speech.corpus.lhotse_cuts import read_cuts
from murmur.speech.features.analysis import read_audio
from tests.support.speech_files import write_cuts


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


@pytest.mark.parametrize(
    ("declared", "start", "end"), [(0.4, 0.0, 0.4), (3.6, 0.0, 3.6), (1.6, 0.2, 0.9), (0.45, 0.1, 0.4)]
)
def test_a_recording_of_another_length_than_declared_is_named(tmp_path, declared, start, end):
    soundfile.write(tmp_path / "r.wav", np.random.default_rng(0).uniform(-0.5, 0.5, 16000), 16000)
    for seconds, is_right in ((declared, False), (1.0, True), (1.02, True)):
        source = lhotse.AudioSource("file", [0], str(tmp_path / "r.wav"))
        recording = lhotse.Recording("r", [source], 16000, round(16000 * seconds), seconds)
        last = min(end, seconds)
        supervision = lhotse.SupervisionSegment("u", "r", 0.0, last - start, channel=0, text="YES", speaker="s")
        cut = lhotse.MonoCut("c", start, last - start, 0, supervisions=[supervision], recording=recording)
        lhotse.CutSet.from_cuts([cut]).to_file(tmp_path / "cuts.jsonl")
        (utterance,) = read_cuts(tmp_path / "cuts.jsonl").utterances
        if is_right:
            assert len(read_audio(utterance.audio, 16000)) == pytest.approx(16000 * (last - start), abs=400)
            continue
        with pytest.raises(CorpusError, match=rf"r\.wav has 1\.000 s, and its manifest declares {declared:.3f} s"):
            read_audio(utterance.audio, 16000)


def test_the_declared_length_is_not_in_the_digest(corpus, tmp_path):
    write_cuts(corpus, tmp_path / "cuts.jsonl")
    back = read_cuts(tmp_path / "cuts.jsonl")
    plain = Corpus(tuple(replace(u, audio=replace(u.audio, declared_seconds=None)) for u in back.utterances))
    assert back.utterances[0].audio.declared_seconds == 1.0
    assert back.digest() == plain.digest()
