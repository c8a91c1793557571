"""Counts of edit errors, and their sums over sets, speakers and subsets. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from murmur.core.counted import counted, named

Unit = Literal["word", "char"]


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
        """100 * errors / tokens; without reference tokens, 0.0 if there are no errors, else infinite."""
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


def score_by_group(scores: Mapping[str, ErrorRate], group_of: Mapping[str, str]) -> dict[str, ErrorRate]:
    """Error rate of each speaker or subset: per-utterance scores summed by `group_of[utterance]`, groups sorted.

    Raises ValueError if utterances have no group; the message names them.
    """
    missing = sorted(set(scores) - set(group_of))
    if missing:
        raise ValueError(f"no group given for {shown(missing)}: every scored utterance needs one (see utt2spk)")
    members: dict[str, list[ErrorRate]] = {}
    for name, rate in scores.items():
        members.setdefault(group_of[name], []).append(rate)
    return {group: total_of(rates, rates[0].unit) for group, rates in sorted(members.items())}


def total_of(rates: Iterable[ErrorRate], unit: Unit = "word") -> ErrorRate:
    """Sum of error rates of one unit; no errors in no tokens if there are none."""
    return sum(rates, ErrorRate(0, unit=unit))


def shown(names: list[str]) -> str:
    """Number of utterances and the first few of their names, for a message."""
    return f"{counted(len(names), 'utterance')}: {named(names)}"
