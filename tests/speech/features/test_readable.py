"""Files of a part that is read after training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from murmur.speech.corpus.corpus import Audio, Corpus, CorpusError, Utterance
from murmur.speech.features.readable import check_readable

RATE_HZ = 8000


def spoken(folder: Path, name: str, rate_hz: int = RATE_HZ) -> Utterance:
    path = folder / f"{name}.wav"
    soundfile.write(path, np.zeros(rate_hz, np.float32), rate_hz)
    return Utterance(name, "speaker", "A", Audio(path))


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus(tuple(spoken(tmp_path, name) for name in "abc"))


def test_whole_files_pass(corpus: Corpus) -> None:
    check_readable(corpus, RATE_HZ)


def test_a_missing_file_is_named(corpus: Corpus) -> None:
    (path := corpus.utterances[1].audio.path).unlink()
    with pytest.raises(CorpusError, match=rf"1 of 3 .*\n.*b \({path}\).*missing"):
        check_readable(corpus, RATE_HZ)


def test_a_file_that_is_cut_short_is_named(corpus: Corpus) -> None:
    path = corpus.utterances[2].audio.path
    path.write_bytes(path.read_bytes()[:4000])
    with pytest.raises(CorpusError, match=r"c .*cut short"):
        check_readable(corpus, RATE_HZ)


def test_another_rate_is_refused(corpus: Corpus) -> None:
    with pytest.raises(CorpusError, match=r"3 of 3 .*\n.*8000 Hz, not 16000"):
        check_readable(corpus, 16000)


def test_one_lost_file_in_a_hundred_passes(tmp_path: Path) -> None:
    every = Corpus(tuple(spoken(tmp_path, f"{n:03}") for n in range(100)))
    every.utterances[5].audio.path.unlink()
    check_readable(every, RATE_HZ)


def test_a_command_is_not_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    audio = Audio(Path("a"), command=f"touch {ran}")
    check_readable(Corpus((Utterance("a", "speaker", "A", audio),)), RATE_HZ)
    assert not ran.exists()
