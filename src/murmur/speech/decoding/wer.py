"""Word and character error rate: minimum edit distance per utterance (through kaldialign), summed over a set.

Rate = (insertions + deletions + substitutions) / reference tokens. If several minimum-cost alignments exist, the
split into insertions, deletions and substitutions is kaldialign's choice; their sum and the rate do not depend on it.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import kaldialign

from murmur.core.counted import counted
from murmur.core.whole_files import write_text_whole
from murmur.report.error_rate import ErrorRate, Unit, score_by_group, shown, total_of

__all__ = ["ErrorRate", "Unit", "score_by_group", "shown", "total_of"]


def tokens_of(text: str, unit: Unit = "word") -> list[str]:
    """Scoring tokens of a transcript after Unicode NFC and with white space squeezed.

    `word`: the space-separated words. `char`: the code points, including the single space between two words (as
    jiwer counts characters). Raises ValueError for another unit.
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
    must be scored explicitly, as an empty hypothesis.
    """
    check_same_utterances(references, hypotheses)
    return {name: score_utterance(references[name], hypotheses[name], unit) for name in sorted(references)}


def score(references: Mapping[str, str], hypotheses: Mapping[str, str], unit: Unit = "word") -> ErrorRate:
    """Error rate of a set of utterances, `{utterance: text}` on both sides.

    Raises ValueError if an utterance is missing on one side, or if the references hold no token at all.
    """
    total = total_of(score_utterances(references, hypotheses, unit).values(), unit)
    if total.tokens == 0:
        raise ValueError(f"no reference {unit}s in {counted(len(references), 'utterance')}: it needs transcripts")
    return total


def check_same_utterances(references: Mapping[str, str], hypotheses: Mapping[str, str]) -> None:
    """Raise ValueError, naming utterances, unless references and hypotheses cover the same ones."""
    missing = sorted(set(references) - set(hypotheses))
    if missing:
        raise ValueError(f"no hypothesis for {shown(missing)}: give an empty text if the decoder found no words")
    unknown = sorted(set(hypotheses) - set(references))
    if unknown:
        raise ValueError(f"no reference for {shown(unknown)}: were the hypotheses made from another set?")


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
