"""Transcripts: words with times and confidences, written as text, JSON, CTM or SubRip subtitles."""

from __future__ import annotations

import json
import os
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

STDIN = "-"
ENCODED = frozenset('%;<>"\\`')  # printable characters that a name in a CTM may not hold
LONGEST_LINE = 42  # characters of a subtitle, as is usual in broadcasting
LONGEST_CUE_SECONDS = 6.0
PAUSE_SECONDS = 0.6  # a pause as long as this begins a new subtitle


@dataclass(frozen=True)
class Word:
    """A recognised word: seconds from the beginning of the recording, confidence from 0 to 1."""

    word: str
    start_seconds: float
    end_seconds: float
    confidence: float


@dataclass(frozen=True)
class Transcript:
    """The words recognised in one recording.

    Attributes:
        source: name of the file, as given.
        seconds: length of the recording.
        words: words in order of time.
        pieces: (start, end) in seconds of the pieces of the recording.
        partial: True if the search of some piece ended before the end of its grammar, so that a word may be missing.
        changes: changes made to the audio; empty if there were none.
        too_short: True if the recording is shorter than one frame of features.
        silent: True if the recording is digital silence, in which no words are looked for.
        channel: channel of the file, A or B of two, by number of more; "" for a file with one or averaged channels.
    """

    source: str
    seconds: float
    words: tuple[Word, ...]
    pieces: tuple[tuple[float, float], ...] = ()
    partial: bool = False
    changes: str = ""
    too_short: bool = False
    silent: bool = False
    channel: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks that the words alone do not show, one sentence each."""
        short = f"{self.seconds:.3f} s of audio are shorter than one frame of features: no words"
        silent = f"{self.seconds:.3f} s of audio are digital silence: no words; check the recording"
        empty = f"no word was recognised in {self.seconds:.3f} s of audio"
        cut = "the search ended outside the grammar: the words are the best up to that point; try a larger --beam"
        told = (
            (self.changes, bool(self.changes)),
            (short, self.too_short),
            (silent, self.silent and not self.too_short),
            (empty, not self.words and not self.too_short and not self.silent),
            (cut, self.partial),
        )
        return tuple(note for note, holds in told if holds)

    @property
    def text(self) -> str:
        """The words with single spaces."""
        return " ".join(word.word for word in self.words)


def readable(name: str) -> str:
    """A file name as valid text on one line: bytes that are not UTF-8 and control characters are written as escapes."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def stem_of(source: str) -> str:
    """A file name without folder and suffix; `stdin` for the stream on -."""
    return "stdin" if source == STDIN else Path(source).stem or "unnamed"


def one_field(name: str) -> str:
    """A file name as one field that cannot begin a comment.

    White space, control and format characters, %, ;, <, >, quotes and bytes that are not UTF-8 are percent-encoded,
    letters stay, as STM files have them; `urllib.parse.unquote_to_bytes` undoes it.
    """
    text = os.fsencode(name).decode("utf-8", "surrogateescape")
    return "".join(c if c.isprintable() and not c.isspace() and c not in ENCODED else _percent(c) for c in text)


def _percent(character: str) -> str:
    return urllib.parse.quote_from_bytes(character.encode("utf-8", "surrogateescape"), safe="")


def as_text(transcript: Transcript) -> str:
    """The words on one line."""
    return f"{transcript.text}\n"


def as_json(transcript: Transcript) -> str:
    """One object on one line: file, seconds, text, words, pieces, partial, changes, too_short, silent, channel."""
    content: dict[str, Any] = {
        "file": readable(transcript.source),
        "seconds": round(transcript.seconds, 3),
        "text": transcript.text,
        "words": [
            {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(word).items()}
            for word in transcript.words
        ],
        "pieces": [[round(start, 3), round(end, 3)] for start, end in transcript.pieces],
        **{name: getattr(transcript, name) for name in ("partial", "changes", "too_short", "silent", "channel")},
    }
    return json.dumps(content, ensure_ascii=False) + "\n"


def as_ctm(transcript: Transcript) -> str:
    """NIST's CTM: file, channel (1 for files with one), start and duration in seconds, word, confidence.

    The file is the name without folder and suffix, as STM files have it.
    """
    side = f"{one_field(stem_of(transcript.source))} {transcript.channel or 1}"
    return "".join(
        f"{side} {w.start_seconds:.3f} {w.end_seconds - w.start_seconds:.3f} {w.word} {w.confidence:.3f}\n"
        for w in transcript.words
    )


def as_srt(transcript: Transcript) -> str:
    """SubRip: numbered cues of at most 42 characters and 6 seconds, cut at pauses."""
    cues = []
    for number, words in enumerate(_cues(transcript.words), 1):
        start, end = words[0].start_seconds, max(words[-1].end_seconds, words[0].start_seconds + 0.001)
        text = " ".join(word.word for word in words)
        cues.append(f"{number}\n{_clock(start)} --> {_clock(end)}\n{text}\n\n")
    return "".join(cues)


FORMATS: Mapping[str, Callable[[Transcript], str]] = {"text": as_text, "json": as_json, "ctm": as_ctm, "srt": as_srt}
SUFFIXES: Mapping[str, str] = {"text": ".txt", "json": ".json", "ctm": ".ctm", "srt": ".srt"}


def _cues(words: Sequence[Word]) -> list[list[Word]]:
    cues: list[list[Word]] = [list(words[:1])] if words else []
    for before, word in pairwise(words):
        cue = cues[-1]
        letters = sum(len(w.word) + 1 for w in cue) + len(word.word)
        long = word.end_seconds - cue[0].start_seconds > LONGEST_CUE_SECONDS
        if letters > LONGEST_LINE or long or word.start_seconds - before.end_seconds >= PAUSE_SECONDS:
            cues.append([])
        cues[-1].append(word)
    return cues


def _clock(seconds: float) -> str:
    milliseconds = round(seconds * 1000)
    hours, rest = divmod(milliseconds, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02},{rest % 1000:03}"
