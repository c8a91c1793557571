"""Word and character error rate: minimum edit distance per utterance (through kaldialign), summed over a set.

Rate = (insertions + deletions + substitutions) / reference tokens. Where several minimum-cost alignments exist the
split into insertions, deletions and substitutions is kaldialign's choice; their sum and the rate do not depend on it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import kaldialign

Unit = Literal["word", "char"]

_NAMES_SHOWN = 5


@dataclass(frozen=True)
class ErrorRate:
    """Edit errors over reference tokens. `str()` gives Kaldi's line, `%WER 1.23 [ 12 / 975, 3 ins, 4 del, 5 sub ]`."""

    tokens: int
    insertions: int = 0
    deletions: int = 0
    substitutions: int = 0
    unit: Unit = "word"

    @property
    def errors(self) -> int:
        """Insertions + deletions + substitutions."""
        return self.insertions + self.deletions + self.substitutions

    @property
    def percent(self) -> float:
        """100 * errors / tokens; without reference tokens 0.0 when there is no error either, else infinite."""
        if self.tokens:
            return 100.0 * self.errors / self.tokens
        return float("inf") if self.errors else 0.0

    def __add__(self, other: ErrorRate) -> ErrorRate:
        if self.unit != other.unit:
            raise ValueError(
                f"cannot add a {other.unit} error rate to a {self.unit} error rate: score both in one unit"
            )
        return ErrorRate(
            self.tokens + other.tokens,
            self.insertions + other.insertions,
            self.deletions + other.deletions,
            self.substitutions + other.substitutions,
            self.unit,
        )

    def __str__(self) -> str:
        name = "%WER" if self.unit == "word" else "%CER"
        counts = f"{self.insertions} ins, {self.deletions} del, {self.substitutions} sub"
        return f"{name} {self.percent:.2f} [ {self.errors} / {self.tokens}, {counts} ]"


def tokens_of(text: str, unit: Unit = "word") -> list[str]:
    """Scoring tokens of a transcript after Unicode NFC and with white space squeezed.

    `word`: the space-separated words. `char`: the code points, the single space between two words being one of them
    (as jiwer counts characters). Raises ValueError for another unit.
    """
    words = unicodedata.normalize("NFC", text).split()
    if unit == "word":
        return words
    if unit == "char":
        return list(" ".join(words))
    raise ValueError(f"unknown scoring unit {unit!r}: use 'word' or 'char'")


def score_utterance(reference: str, hypothesis: str, unit: Unit = "word") -> ErrorRate:
    """Errors of one utterance."""
    reference_tokens, hypothesis_tokens = tokens_of(reference, unit), tokens_of(hypothesis, unit)
    counts = kaldialign.edit_distance(reference_tokens, hypothesis_tokens)
    return ErrorRate(len(reference_tokens), counts["ins"], counts["del"], counts["sub"], unit)


def score_utterances(
    references: Mapping[str, str], hypotheses: Mapping[str, str], unit: Unit = "word"
) -> dict[str, ErrorRate]:
    """Errors of each utterance, in sorted order of the utterance names.

    Raises ValueError, naming utterances, unless both sides have the same utterances: an utterance without a result
    must be scored as an empty hypothesis, knowingly, not left out.
    """
    check_same_utterances(references, hypotheses)
    return {name: score_utterance(references[name], hypotheses[name], unit) for name in sorted(references)}


def score(references: Mapping[str, str], hypotheses: Mapping[str, str], unit: Unit = "word") -> ErrorRate:
    """Error rate of a set of utterances, `{utterance: text}` on both sides.

    Raises ValueError where an utterance is missing on one side, or where the references hold no token at all.
    """
    total = total_of(score_utterances(references, hypotheses, unit).values(), unit)
    if total.tokens == 0:
        raise ValueError(f"no reference {unit}s in {len(references)} utterances: an error rate needs transcripts")
    return total


def score_by_group(scores: Mapping[str, ErrorRate], group_of: Mapping[str, str]) -> dict[str, ErrorRate]:
    """Error rate of each speaker or subset: per-utterance scores summed by `group_of[utterance]`, groups sorted.

    Raises ValueError, naming utterances, where an utterance has no group.
    """
    missing = sorted(set(scores) - set(group_of))
    if missing:
        raise ValueError(f"no group given for {shown(missing)}: every scored utterance needs one (see utt2spk)")
    members: dict[str, list[ErrorRate]] = {}
    for name, rate in scores.items():
        members.setdefault(group_of[name], []).append(rate)
    return {group: total_of(rates, rates[0].unit) for group, rates in sorted(members.items())}


def total_of(rates: Iterable[ErrorRate], unit: Unit = "word") -> ErrorRate:
    """Sum of error rates of one unit; no errors in no tokens where there are none."""
    return sum(rates, ErrorRate(0, unit=unit))


def check_same_utterances(references: Mapping[str, str], hypotheses: Mapping[str, str]) -> None:
    """Raise ValueError, naming utterances, unless references and hypotheses cover the same ones."""
    missing = sorted(set(references) - set(hypotheses))
    if missing:
        raise ValueError(f"no hypothesis for {shown(missing)}: give an empty text where the decoder found nothing")
    unknown = sorted(set(hypotheses) - set(references))
    if unknown:
        raise ValueError(f"no reference for {shown(unknown)}: were the hypotheses made from another set?")


def shown(names: list[str]) -> str:
    """Number of utterances and the first few of their names, for a message."""
    more = ", ..." if len(names) > _NAMES_SHOWN else ""
    return f"{len(names)} utterance(s): {', '.join(names[:_NAMES_SHOWN])}{more}"
