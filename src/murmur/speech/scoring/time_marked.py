"""Error rates of time-marked hypotheses against a reference, by segment, speaker and subset, as sclite counts them.

A recognised word belongs to the first segment of its recording that ends after the middle of the word, and to the last
one if none does. Words of segments that are not scored are left out.
"""

from __future__ import annotations

import unicodedata
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from murmur.speech.corpus.atomic_file import write_text_whole
from murmur.speech.decoding.error_rate import ErrorRate, total_of
from murmur.speech.scoring.stm import Recording, Reference, Segment, TimedWord, TimeMarkError
from murmur.speech.scoring.word_network import Pair, align


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
    return unicodedata.normalize("NFC", urllib.parse.unquote(recording[0])).lower(), recording[1]


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
    return _grouped(scored, lambda segment: segment.labels)


def write_alignments(path: Path, scored: Iterable[ScoredSegment]) -> None:
    """Write all segments, aligned, those with the most errors first.

    Raises:
        OSError: The file cannot be written.
    """
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


def _grouped(scored: Iterable[ScoredSegment], groups: Callable[[Segment], Sequence[str]]) -> dict[str, ErrorRate]:
    rates: dict[str, list[ErrorRate]] = {}
    for each in scored:
        for group in groups(each.segment):
            rates.setdefault(group, []).append(each.rate)
    return {group: total_of(found) for group, found in sorted(rates.items())}
