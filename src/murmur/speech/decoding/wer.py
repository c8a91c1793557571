"""Word and character error rate: minimum edit distance per utterance (through kaldialign), summed over a set.

Rate = (insertions + deletions + substitutions) / reference tokens. If several minimum-cost alignments exist, the
split into insertions, deletions and substitutions is kaldialign's choice; their sum and the rate do not depend on it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

import kaldialign

from murmur.core.counted import counted
from murmur.speech.decoding.error_rate import ErrorRate, Unit, score_by_group, shown, total_of

__all__ = [
    "ErrorRate",
    "Unit",
    "check_same_utterances",
    "score",
    "score_by_group",
    "score_utterance",
    "score_utterances",
    "shown",
    "tokens_of",
    "total_of",
]


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
