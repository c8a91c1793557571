"""Phone n-gram models for denominator graphs: relative frequencies without smoothing, few histories.

P(p | h) = c(h, p) / c(h), with h the longest listed history that ends the phones so far. Without smoothing, an arc
exists only where training has one, which keeps the graph small (Povey et al., "Purely sequence-trained neural networks
for ASR based on lattice-free MMI", Interspeech 2016, section 2.3). Of the longest histories (n - 1 phones) those stay
that predict most differently from the history without its first phone; the counts of the others move to it. Histories
of n - 2 phones are never removed.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

OUTSIDE = 0  # the phone before the first one and after the last one
History = tuple[int, ...]
BEGIN: History = (OUTSIDE,)
SHORTEST = 3  # phones of an n-gram: its history must name a phone and its left neighbour after one phone is removed


@dataclass(frozen=True)
class PhoneNgrams:
    """Options for estimating a phone model.

    Attributes:
        order: length n of the longest n-gram, at least 3.
        longest: number of histories of n - 1 phones that are kept.
    """

    order: int = 4
    longest: int = 2000

    def __post_init__(self) -> None:
        if self.order < SHORTEST or self.longest < 0:
            raise ValueError(
                f"phone n-grams of order {self.order} with {self.longest} long histories: give an order of at least"
                f" {SHORTEST}, and 0 histories or more"
            )

    def train(self, sequences: Iterable[Sequence[int]]) -> PhoneModel:
        """Estimate from phone sequences, labels from 1.

        Raises:
            ValueError: there is no sequence, an empty one, or one with label 0.
        """
        counts: dict[History, Counter[int]] = defaultdict(Counter)
        for phones in sequences:
            if not len(phones) or OUTSIDE in phones:
                raise ValueError("a phone sequence for the denominator is empty, or holds label 0")
            padded = (OUTSIDE, *(int(p) for p in phones), OUTSIDE)
            for end in range(1, len(padded)):
                counts[padded[max(0, end - self.order + 1) : end]][padded[end]] += 1
        if not counts:
            raise ValueError("no phone sequence: the denominator needs alignments of train")
        return PhoneModel(_frequencies(_shortened(counts, self.order - 1, self.longest)))


@dataclass(frozen=True, eq=False)
class PhoneModel:
    """Next phones and their probabilities by history; phone 0 ends the utterance."""

    following: Mapping[History, Mapping[int, float]]

    def after(self, history: History, phone: int) -> History:
        """The longest listed history that ends `history` followed by `phone`.

        Raises:
            KeyError: there is none: training never had this phone here.
        """
        phones = (*history, phone)
        for first in range(len(phones)):
            if phones[first:] in self.following:
                return phones[first:]
        raise KeyError(phones)

    @property
    def ngrams(self) -> int:
        """Number of pairs of a history and a next phone."""
        return sum(map(len, self.following.values()))


def _shortened(counts: Mapping[History, Counter[int]], length: int, kept: int) -> dict[History, Counter[int]]:
    """Histories of `length` phones beyond the best `kept` lose their first phone."""
    longest = {h: c for h, c in counts.items() if len(h) == length}
    below: dict[History, Counter[int]] = defaultdict(Counter)
    for history, own in longest.items():
        below[history[1:]].update(own)
    gains = {history: _gain(own, below[history[1:]]) for history, own in longest.items()}
    best = set(sorted(gains, key=lambda history: (-gains[history], history))[:kept])
    found: dict[History, Counter[int]] = {h: Counter(c) for h, c in counts.items() if len(h) < length}
    for history, own in longest.items():
        found.setdefault(history if history in best else history[1:], Counter()).update(own)
    return found


def _gain(own: Counter[int], below: Counter[int]) -> float:
    """Log-likelihood of the counts of a history under their own frequencies, less that under those below."""
    own_total, below_total = own.total(), below.total()
    return sum(n * math.log(n * below_total / (own_total * below[p])) for p, n in own.items())


def _frequencies(counts: Mapping[History, Counter[int]]) -> dict[History, dict[int, float]]:
    return {h: {p: c[p] / c.total() for p in sorted(c)} for h, c in sorted(counts.items())}
