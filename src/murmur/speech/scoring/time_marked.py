"""Scoring of time-marked transcripts as NIST's sclite does it: STM references, CTM hypotheses, GLM rules, error rates.

    STM:   FILE CHANNEL SPEAKER BEGIN END [<LABEL,LABEL>] TRANSCRIPT          seconds; lines with ;; are comments
    CTM:   FILE CHANNEL BEGIN DURATION WORD [CONFIDENCE]

A comment `;; LABEL "ID" "NAME" "DESCRIPTION"` names a label. A segment whose transcript is
IGNORE_TIME_SEGMENT_IN_SCORING is not scored, and neither are the words recognised there.
"""

from __future__ import annotations

import math
import re
import urllib.parse
from codecs import BOM_UTF8
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from murmur.core.whole_files import write_text_whole
from murmur.report.error_rate import ErrorRate, total_of
from murmur.speech.corpus.file_content import columns, decoded, nfc, numbered_lines, unpacked
from murmur.speech.scoring.word_network import Pair, TranscriptError, WordNetwork, align

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
    """A recognised word; seconds."""

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
    """Read a CTM file: the words of each recording, in order of time; a TimeMarkError if a line is no word."""
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
        found = [math.nan]
    if not all(map(math.isfinite, found)):
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


RULE = re.compile(
    r"\[(?P<find>[^]]*)\]\s*=>\s*(?P<put>.*?)\s*(?:/\s*(?P<left>\[[^]]*\])?\s*__\s*(?P<right>\[[^]]*\])?)?\s*$"
)
HYPHEN = re.compile(r"([^\s(])-(?=[^\s)])")
PARENTHESIS = re.compile(r"([()])")


class Rule(NamedTuple):
    """A rule of a GLM file, in lower case."""

    find: str
    put: str
    left: str
    right: str


@dataclass(frozen=True)
class MappingRules:
    """Global mapping rules (GLM files of NIST), which make spellings of references and hypotheses agree before scoring.

        [FROM] => [TO] / [LEFT] __ [RIGHT]

    Text is read from left to right. At each place the first rule of the file counts whose FROM stands there between
    LEFT and RIGHT, both in the text as it was; a rule without contexts counts anywhere. A text begins and ends with a
    space. Case does not matter. TO may hold alternatives `[{ GONNA / GOING TO }]` and optional words `[(%HESITATION)]`.
    """

    rules: Sequence[Rule]

    @cached_property
    def by_first(self) -> Mapping[str, Sequence[Rule]]:
        """Rules by the first character that they look for."""
        found: dict[str, list[Rule]] = defaultdict(list)
        for rule in self.rules:
            found[rule.find[0]].append(rule)
        return found

    def applied(self, text: str) -> str:
        """Return a text with the rules applied, in lower case, its words separated by single spaces."""
        text = f" {' '.join(text.lower().split())} "
        made, at = list[str](), 0
        while at < len(text):
            rule = self._at(text, at)
            made.append(text[at] if rule is None else rule.put)
            at += 1 if rule is None else len(rule.find)
        return " ".join("".join(made).split())

    def _at(self, text: str, at: int) -> Rule | None:
        for rule in self.by_first.get(text[at], ()):
            end = at + len(rule.find)
            if text.startswith(rule.find, at) and text[:at].endswith(rule.left) and text.startswith(rule.right, end):
                return rule
        return None

    def of_reference(self, text: str) -> str:
        """Apply the rules to a transcript, also inside parentheses, then replace hyphens inside words by spaces.

        This is NIST's csrfilt.sh -dh: an optional word that a rule or a hyphen divides becomes optional words. Unlike
        csrfilt.sh, alternatives of an optional word are alternatives of optional words.
        """
        text = each_optional(without_hyphens(self.applied(PARENTHESIS.sub(r" \1 ", text))))
        return text.replace("( ", "(").replace(" )", ")")  # parentheses that do not match

    def of_hypothesis(self, words: Sequence[TimedWord]) -> tuple[TimedWord, ...]:
        """Apply the rules to each recognised word alone, then divide at hyphens; parts share the word's time equally.

        Rules with alternatives or optional words are for references and leave hypotheses as they are.
        """
        plain = MappingRules([rule for rule in self.rules if not set("{(") & set(rule.put)])
        found = list[TimedWord]()
        for word in words:
            parts = without_hyphens(plain.applied(word.word)).split()
            share = word.duration / max(1, len(parts))
            found += [TimedWord(word.begin + k * share, share, part) for k, part in enumerate(parts)]
        return tuple(found)


def read_glm(path: Path) -> MappingRules:
    """Read a GLM file; lines with ;; are comments, lines with * settings, which are not used.

    Raises:
        TimeMarkError: A line is no rule; names file and line.
        CorpusError: A rule is not UTF-8; names file and line.
    """
    rules = list[Rule]()
    for number, line in enumerate(unpacked(path).removeprefix(BOM_UTF8).split(b"\n"), 1):
        rule, place = line.split(b";;", 1)[0].strip(), f"{path}:{number}"
        if not rule or rule.startswith(b"*"):  # these need not be UTF-8
            continue
        text = nfc(decoded(place, rule))
        found = RULE.match(text)
        if found is None or not found["find"]:
            raise TimeMarkError(f"{place}: no rule ([FROM] => [TO] / [LEFT] __ [RIGHT]): {text!r}")
        put = re.sub(r"[][]", "", found["put"])
        left, right = ((found[side] or "")[1:-1] for side in ("left", "right"))
        rules.append(Rule(*(part.lower() for part in (found["find"], put, left, right))))
    return MappingRules(rules)


def without_hyphens(text: str) -> str:
    """Return a text with spaces for hyphens inside words; those of fragments stay."""
    return HYPHEN.sub(r"\1 ", text)


@dataclass(frozen=True)
class ScoredSegment:
    """A segment with the alignment of its words."""

    segment: Segment
    pairs: tuple[Pair, ...]

    @property
    def name(self) -> str:
        """Name of the segment: file, channel and begin in seconds."""
        return f"{'-'.join(self.segment.recording)}-{self.segment.begin:09.2f}"

    @property
    def rate(self) -> ErrorRate:
        """Its errors; optional words count as words of the reference."""
        kinds = [pair.kind for pair in self.pairs]
        deleted, replaced, inserted = (kinds.count(k) for k in ("deletion", "substitution", "insertion"))
        return ErrorRate(len(kinds) - inserted, inserted, deleted, replaced)


def score_segments(reference: Reference, hypothesis: Mapping[Recording, Sequence[TimedWord]]) -> list[ScoredSegment]:
    """Align every segment that is scored. A recording without a recognised word has deletions alone.

    A recognised word belongs to the first segment of its recording that ends after the middle of the word, and to the
    last one if none does. Words of segments that are not scored are left out.

    Raises:
        TimeMarkError: The hypothesis has a recording that the reference lacks, or one by two names.
    """
    hypothesis = named_as(reference.segments, hypothesis)
    unknown = sorted(set(hypothesis) - set(reference.segments))
    if unknown:
        name, channel = unknown[0]
        raise TimeMarkError(f"the reference has no segment of {name!r}, channel {channel!r}: another test set?")
    scored = []
    for recording, segments in reference.segments.items():
        for segment, words in zip(segments, _shared_out(segments, hypothesis.get(recording, ())), strict=True):
            if segment.network is not None:
                scored.append(ScoredSegment(segment, tuple(align(segment.network, words))))
    return scored


def named_as(
    reference: Iterable[Recording], hypothesis: Mapping[Recording, Sequence[TimedWord]]
) -> dict[Recording, Sequence[TimedWord]]:
    """Name the recordings of a hypothesis as the reference does; on either side a name may be percent-encoded."""
    known = {_decoded(recording): recording for recording in reference}
    known |= {recording: recording for recording in reference}
    found: dict[Recording, Sequence[TimedWord]] = {}
    for recording, words in hypothesis.items():
        own = known.get(recording) or known.get(_decoded(recording), recording)
        if own in found:
            raise TimeMarkError(f"the hypothesis names {own[0]!r}, channel {own[1]!r}, in two ways: keep one of them")
        found[own] = words
    return found


def _decoded(recording: Recording) -> Recording:
    return nfc(urllib.parse.unquote(recording[0])).lower(), recording[1]


def _shared_out(segments: Sequence[Segment], words: Sequence[TimedWord]) -> list[list[str]]:
    found: list[list[str]] = [[] for _ in segments]
    at = 0
    for word in words:
        while at < len(segments) - 1 and not word.before(segments[at].end):
            at += 1
        found[at].append(word.word)
    return found


def by_label(scored: Iterable[ScoredSegment]) -> dict[str, ErrorRate]:
    """Errors of each subset, sorted by label."""
    rates: dict[str, list[ErrorRate]] = {}
    for each in scored:
        for label in each.segment.labels:
            rates.setdefault(label, []).append(each.rate)
    return {label: total_of(found) for label, found in sorted(rates.items())}


def write_alignments(path: Path, scored: Iterable[ScoredSegment]) -> None:
    """Write all segments, aligned, those with the most errors first."""
    lines = list[str]()
    for each in sorted(scored, key=lambda s: -s.rate.errors):
        letters = (" " if pair.kind == "correct" else pair.kind[0].upper() for pair in each.pairs)
        shown = [(p.reference or "*", p.hypothesis or "*", kind) for p, kind in zip(each.pairs, letters, strict=True)]
        widths = [max(len(word) for word in column) for column in shown]
        lines.append(f"{each.name}  {each.segment.speaker}  {each.rate}")
        for name, side in (("ref", 0), ("hyp", 1), ("", 2)):
            row = " ".join(f"{column[side]:<{width}}" for column, width in zip(shown, widths, strict=True))
            lines.append(f"  {name:3}  {row}".rstrip())
    write_text_whole(path, "\n".join([*lines, ""]))
