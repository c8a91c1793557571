"""Aligned errors in a text file: reference over hypothesis for each utterance, then confusion counts.

Codes below each pair: `S` substitution, `I` insertion, `D` deletion, nothing for a match; `***` stands for no token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import kaldialign

from murmur.speech.corpus.atomic_file import write_text_whole
from murmur.speech.decoding.wer import Unit, check_same_utterances, score, score_utterance, tokens_of

_NOTHING = "***"

Pair = tuple[str | None, str | None]


@dataclass(frozen=True)
class Confusions:
    """Counts over a set: `substituted[(reference, hypothesis)]`, `inserted[token]`, `deleted[token]`."""

    substituted: Counter[tuple[str, str]]
    inserted: Counter[str]
    deleted: Counter[str]


def aligned_pairs(reference: str, hypothesis: str, unit: Unit = "word") -> list[Pair]:
    """Minimum-edit alignment as (reference token, hypothesis token); None if a side has no token."""
    left, right = tokens_of(reference, unit), tokens_of(hypothesis, unit)
    number: dict[str, int] = {}
    for token in [*left, *right]:
        number.setdefault(token, len(number))
    tokens = list(number)
    # Numbers, not strings, so that no word of the text equals the gap symbol.
    pairs = kaldialign.align([number[t] for t in left], [number[t] for t in right], -1)
    return [(None if i < 0 else tokens[i], None if j < 0 else tokens[j]) for i, j in pairs]


def confusions(references: Mapping[str, str], hypotheses: Mapping[str, str], unit: Unit = "word") -> Confusions:
    """Confusions over the whole set. Raises ValueError if an utterance is missing on one side."""
    check_same_utterances(references, hypotheses)
    counts = Confusions(Counter(), Counter(), Counter())
    for name in sorted(references):
        for reference, hypothesis in aligned_pairs(references[name], hypotheses[name], unit):
            if reference is None and hypothesis is not None:
                counts.inserted[hypothesis] += 1
            elif hypothesis is None and reference is not None:
                counts.deleted[reference] += 1
            elif reference is not None and hypothesis is not None and reference != hypothesis:
                counts.substituted[reference, hypothesis] += 1
    return counts


def write_error_report(
    path: Path, references: Mapping[str, str], hypotheses: Mapping[str, str], unit: Unit = "word"
) -> None:
    """Write totals, confusion counts and every utterance aligned, worst first, as UTF-8 text.

    Raises ValueError as `score` does.
    """
    total = score(references, hypotheses, unit)
    counts = confusions(references, hypotheses, unit)
    lines = [str(total), ""]
    lines += _table("substitutions (count reference -> hypothesis)", counts.substituted)
    lines += _table("insertions (count token)", counts.inserted)
    lines += _table("deletions (count token)", counts.deleted)
    rates = {name: score_utterance(references[name], hypotheses[name], unit) for name in references}
    for name in sorted(rates, key=lambda n: (-rates[n].errors, n)):
        lines += [f"{name} {rates[name]}", *_aligned_lines(aligned_pairs(references[name], hypotheses[name], unit)), ""]
    write_text_whole(path, "\n".join(lines))


def _table(title: str, counts: Mapping[tuple[str, str], int] | Mapping[str, int]) -> list[str]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [title, *(f"{n:6d} {' -> '.join(key) if isinstance(key, tuple) else key}" for key, n in ordered), ""]


def _aligned_lines(pairs: list[Pair]) -> list[str]:
    rows: list[list[str]] = [["ref"], ["hyp"], ["   "]]
    for reference, hypothesis in pairs:
        code = "I" if reference is None else "D" if hypothesis is None else "" if reference == hypothesis else "S"
        cells = (reference or _NOTHING, hypothesis or _NOTHING, code)
        width = max(map(len, cells))
        for row, cell in zip(rows, cells, strict=True):
            row.append(cell.ljust(width))
    return [" ".join(row).rstrip() for row in rows]
