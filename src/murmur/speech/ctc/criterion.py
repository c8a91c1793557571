"""Connectionist temporal classification (Graves et al., ICML 2006): output units, loss, greedy decoding.

Shapes: N utterances, T frames, C = 1 + number of units; column 0 is the blank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.lexicon.spelling import graphemes

BLANK = 0
Kind = Literal["char", "grapheme", "phone", "word"]
WORD_START = "\u2581"  # in front of the first grapheme of a word


@dataclass(frozen=True)
class Units:
    """The output units of the network. Unit i is column i + 1.

    "char": code points, including the space. "grapheme": letters with their marks; `WORD_START` precedes the first one
    of a word, so that no unit stands for a space. "word": whole words. "phone": phones; texts are pronunciations.

    Raises:
        ValueError: an unknown kind.
    """

    kind: Kind
    symbols: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"unknown CTC unit {self.kind!r}: use {', '.join(get_args(Kind))}")

    @classmethod
    def of(cls, texts: Iterable[str], kind: Kind) -> Units:
        """All units that occur in `texts`, in byte order."""
        found = {symbol for text in texts for symbol in pieces(text, kind)}
        return cls(kind, tuple(sorted(found, key=str.encode)))

    @property
    def columns(self) -> int:
        """C: the blank and all units."""
        return 1 + len(self.symbols)

    def encode(self, text: str) -> tuple[int, ...]:
        """Columns of a transcript.

        Raises:
            CorpusError: the transcript has a unit that is not among the symbols.
        """
        column = {symbol: i for i, symbol in enumerate(self.symbols, 1)}
        parts = pieces(text, self.kind)
        unknown = [piece for piece in parts if piece not in column]
        if unknown:
            raise CorpusError(f"{self.kind} {unknown[0]!r} of {text!r} does not occur in training: leave the text out")
        return tuple(column[piece] for piece in parts)

    def covers(self, text: str) -> bool:
        """True if the units can write the transcript."""
        return set(pieces(text, self.kind)) <= set(self.symbols)

    def decode(self, columns: Iterable[int]) -> str:
        """The text of a sequence of columns without blanks."""
        glue = " " if self.kind in ("word", "phone") else ""
        text = glue.join(self.symbols[c - 1] for c in columns)
        return " ".join((text.replace(WORD_START, " ") if self.kind == "grapheme" else text).split())


def pieces(text: str, kind: Kind) -> list[str]:
    """The units of a text, in order.

    Raises:
        CorpusError: a text for graphemes contains the mark of word beginnings.
    """
    if kind == "char":
        return list(text)
    words = text.split()
    if kind != "grapheme":
        return words
    if WORD_START in text:
        raise CorpusError(f"{text!r} holds U+2581, which marks word beginnings here: remove it, or use char")
    spelled = [graphemes(word) for word in words]
    return [unit for first, *rest in spelled for unit in (WORD_START + first, *rest)]


def frames_needed(targets: Sequence[int]) -> int:
    """Minimum number of frames for a CTC path: one per label and one blank between equal neighbours."""
    return len(targets) + sum(a == b for a, b in pairwise(targets))


def loss(logits_NTC: Tensor, lengths_N: Tensor, targets: Sequence[Sequence[int]]) -> Tensor:
    """Sum over utterances of -ln P(targets | logits), P summed over all alignments (equation 3 of the paper).

    Args:
        logits_NTC: network output before the softmax.
        lengths_N: number of frames of each utterance.
        targets: columns of each transcript.

    Raises:
        ValueError: an utterance has fewer frames than `frames_needed`, for which P = 0.
    """
    for number, (frames, labels) in enumerate(zip(lengths_N.tolist(), targets, strict=True)):
        if frames < frames_needed(labels):
            raise ValueError(
                f"item {number} has {frames} frames for {len(labels)} labels, {frames_needed(labels)} are needed: "
                "leave it out or stack fewer frames"
            )
    log_probs_TNC = logits_NTC.log_softmax(-1).transpose(0, 1)
    flat = torch.tensor([label for labels in targets for label in labels], device=logits_NTC.device)
    target_lengths_N = torch.tensor([len(labels) for labels in targets], device=logits_NTC.device)
    return functional.ctc_loss(log_probs_TNC, flat, lengths_N, target_lengths_N, blank=BLANK, reduction="sum")


def greedy(logits_NTC: Tensor, lengths_N: Tensor) -> list[list[int]]:
    """Best path decoding: the best column of each frame, repeats merged, blanks removed (section 3.2)."""
    hypotheses = []
    for best_T, frames in zip(logits_NTC.argmax(-1), lengths_N.tolist(), strict=True):
        merged = torch.unique_consecutive(best_T[:frames])
        hypotheses.append([column for column in merged.tolist() if column != BLANK])
    return hypotheses
