"""STM references and CTM hypotheses, NIST's formats of time-marked transcripts.

    STM:   FILE CHANNEL SPEAKER BEGIN END [<LABEL,LABEL>] TRANSCRIPT          seconds; lines with ;; are comments
    CTM:   FILE CHANNEL BEGIN DURATION WORD [CONFIDENCE]

A comment `;; LABEL "ID" "NAME" "DESCRIPTION"` names a label. A segment whose transcript is
IGNORE_TIME_SEGMENT_IN_SCORING is not scored, and neither are the words recognised there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from murmur.speech.corpus.text_lines import columns, numbered_lines
from murmur.speech.scoring.word_network import TranscriptError, WordNetwork

IGNORE = "ignore_time_segment_in_scoring"
LABEL = re.compile(r';;\s*label\s+"([^"]*)"\s+"([^"]*)"', re.IGNORECASE)
NO_WORDS = frozenset("{}/@")  # of a transcript with alternatives
CTM_COLUMNS = 8  # with confidence, type and speaker
CONFIDENCE = re.compile(r"([+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|na|nan)?", re.IGNORECASE)
Recording = tuple[str, str]  # file and channel, in lower case


class TimeMarkError(ValueError):
    """A line of a time-marked transcript that cannot be read."""


@dataclass(frozen=True)
class Segment:
    """A segment of a reference.

    Attributes:
        recording: File and channel.
        speaker: Name of the speaker.
        begin, end: Seconds.
        labels: Labels of subsets.
        network: Its words; None: not scored.
        text: Its transcript as spelled.
    """

    recording: Recording
    speaker: str
    begin: float
    end: float
    labels: tuple[str, ...]
    network: WordNetwork | None
    text: str = ""


@dataclass(frozen=True)
class TimedWord:
    """A recognised word.

    Attributes:
        begin: Seconds.
        duration: Seconds.
        word: The word.
    """

    begin: float
    duration: float
    word: str

    def before(self, end: float) -> bool:
        """True if its middle comes before `end`, which is rounded to single precision as in sclite."""
        return self.begin + self.duration / 2 < float(np.float32(end))


@dataclass(frozen=True)
class Reference:
    """A whole STM file: its segments by recording, in order of time, and the names of its labels."""

    segments: Mapping[Recording, tuple[Segment, ...]]
    names: Mapping[str, str] = field(default_factory=dict)


def read_stm(path: Path, spelled: Callable[[str], str] = str) -> Reference:
    """Read an STM file; `spelled` changes each transcript before its words are read.

    Raises:
        TimeMarkError: A line is no segment, or a segment ends before it begins; names file and line.
        OSError: The file cannot be read.
    """
    segments: dict[Recording, list[Segment]] = {}
    names: dict[str, str] = {}
    for place, line in numbered_lines(path):
        if line.startswith(";;"):
            found = LABEL.match(line)
            if found is not None:
                names[found[1].lower()] = found[2]
            continue
        segment = _segment(line, place, spelled)
        segments.setdefault(segment.recording, []).append(segment)
    if not segments:
        raise TimeMarkError(f"{path} holds no segment: FILE CHANNEL SPEAKER BEGIN END [<LABELS>] WORDS")
    ordered = {r: tuple(sorted(found, key=lambda s: s.begin)) for r, found in segments.items()}
    return Reference(ordered, names)


def read_ctm(path: Path) -> dict[Recording, tuple[TimedWord, ...]]:
    """Read a CTM file: the words of each recording, in order of time.

    Raises:
        TimeMarkError: A line is no word; names file and line.
        OSError: The file cannot be read.
    """
    words: dict[Recording, list[TimedWord]] = {}
    for place, line in numbered_lines(path):
        if line.startswith(";;"):
            continue
        fields = columns(line, place)
        if not 5 <= len(fields) <= CTM_COLUMNS or not CONFIDENCE.fullmatch("".join(fields[5:6])):
            raise TimeMarkError(f"{place}: no CTM word (FILE CHANNEL BEGIN DURATION WORD [CONFIDENCE]): {line!r}")
        if fields[4].startswith("<ALT"):
            raise TimeMarkError(f"{place}: alternatives in hypotheses are not scored: {line!r}")
        begin, duration = _seconds(fields[2:4], place)
        words.setdefault(_recording(fields), []).append(TimedWord(begin, duration, fields[4]))
    return {r: tuple(sorted(found, key=lambda w: w.begin)) for r, found in words.items()}


def each_optional(text: str) -> str:
    """Return a transcript with parentheses around each word alone: `({a / b c} d)` is `{ (a) / (b) (c) } (d)`.

    A transcript whose parentheses do not match is returned as it is.
    """
    made, depth = list[str](), 0
    for token in text.replace("{", " { ").replace("}", " } ").split():
        opened = len(token) - len(token.lstrip("("))
        closed = len(token[opened:]) - len(token[opened:].rstrip(")"))
        word = token[opened : len(token) - closed]
        depth += opened
        if word:
            made.append(f"({word})" if depth and word not in NO_WORDS else word)
        depth -= closed
        if depth < 0:
            return text
    return text if depth else " ".join(made)


def _recording(fields: list[str]) -> Recording:
    return fields[0].lower(), fields[1].lower()


def _seconds(fields: list[str], place: str) -> list[float]:
    try:
        found = [float(text) for text in fields]
    except ValueError:
        raise TimeMarkError(f"{place}: not a time in seconds: {' '.join(fields)!r}") from None
    if not all(math.isfinite(seconds) for seconds in found):
        raise TimeMarkError(f"{place}: not a time in seconds: {' '.join(fields)!r}")
    return found


def _segment(line: str, place: str, spelled: Callable[[str], str]) -> Segment:
    fields = columns(line, place, 6)
    if len(fields) < 5:
        raise TimeMarkError(f"{place}: no STM segment (FILE CHANNEL SPEAKER BEGIN END [<LABELS>] WORDS): {line!r}")
    begin, end = _seconds(fields[3:5], place)
    if end <= begin:
        raise TimeMarkError(f"{place}: the segment ends at {end:g} s, not after its begin at {begin:g} s")
    text = fields[5] if len(fields) > 5 else ""
    marked = re.match(r"<([^>]*)>\s*", text)
    labels = () if marked is None else tuple(label.strip().lower() for label in marked[1].split(","))
    text = text if marked is None else text[marked.end() :]
    scored = text.strip().lower() != IGNORE
    text = spelled(text) if scored else ""
    try:
        network = WordNetwork.of(each_optional(text)) if scored else None
    except TranscriptError as error:
        raise TimeMarkError(f"{place}: {error}") from error
    return Segment(_recording(fields), fields[2].lower(), begin, end, labels, network, text)
