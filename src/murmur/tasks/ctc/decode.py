"""Settings of decoding CTC networks, greedily or with a graph."""

from __future__ import annotations

from dataclasses import dataclass

from murmur.tasks.hybrid.config import Search

GREEDY = "greedy"


@dataclass(frozen=True)
class CtcDecoding:
    """Settings of decoding, from log posteriors to words.

    Attributes:
        grammar: "greedy" (the best unit of each frame, no graph), "loop" (any words of the lexicon, or of train for
            units that spell), "one word", or an ARPA file: its name in the corpus folder, or its path.
        scales: acoustic scales to try on dev; of three and more, the range is widened while the best is at an end.
        insertion_penalties: costs per word (natural log) to try on dev, each with all scales.
        beam: beam of the search, natural log after scaling.
        max_active: largest number of active states in a frame.
    """

    grammar: str = GREEDY
    scales: tuple[float, ...] = (0.5, 0.7, 1.0, 1.4, 2.0)
    insertion_penalties: tuple[float, ...] = (0.0, 1.0, -1.0)
    beam: float = 16.0
    max_active: int = 7000

    def __post_init__(self) -> None:
        if not self.scales or not self.insertion_penalties:
            raise ValueError("give at least one acoustic scale and insertion penalty to decode with")

    @property
    def search(self) -> Search:
        """The same settings in the form that `WordSearch` takes."""
        return Search(self.grammar, self.scales, self.insertion_penalties, ((self.beam, self.max_active),))
