"""Denominator graphs: all phone sequences of an n-gram model, each phone in context a small HMM.

The graph is that of an endless sequence of utterances, so that chunks may be cut anywhere: the end of an utterance
leads to the beginnings of all. A phone with its neighbours is known by its HMM, and by the history of the n-gram model
after the *next* phone, which is fixed in advance because the HMM depends on it. So one "place" of the graph is a triple
(phone, HMM, history after the next phone), and an arc between places has the probability of the phone after next.

Shapes: S states, I places, C pdfs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from murmur.speech.sequence.phone_ngrams import BEGIN, OUTSIDE, History, PhoneModel
from murmur.speech.sequence.state_graph import Arcs, StateGraph

END: History = ()  # history of a place whose next phone is the end of the utterance


@dataclass(frozen=True)
class PhoneHmm:
    """The HMM of a phone in context; it begins in state 0.

    Attributes:
        pdfs: pdf of each state.
        inner: arcs (state, next state, probability) inside the phone.
        exits: pairs (state, probability) of leaving the phone.
    """

    pdfs: tuple[int, ...]
    inner: tuple[tuple[int, int, float], ...]
    exits: tuple[tuple[int, float], ...]

    @cached_property
    def fewest(self) -> int:
        """Frames of the shortest way through the phone."""
        reached, frames = {0}, 1
        while not any(state in reached for state, _ in self.exits):
            reached, frames = {to for source, to, _ in self.inner if source in reached}, frames + 1
        return frames


HmmOf = Callable[[int, int, int], PhoneHmm]  # left neighbour, phone, right neighbour; 0 is outside the utterance
Place = tuple[int, PhoneHmm, History]
Step = tuple[Place, float]


@dataclass(frozen=True, eq=False)
class Denominator:
    """A denominator graph with its phones; numerators are paths through it.

    Attributes:
        graph: states and arcs.
        model: the phone n-gram model.
        hmm_of: HMM of a phone in context.
        number: number of each place.
        first: (I + 1,) first state of each place, and S.
    """

    graph: StateGraph
    model: PhoneModel
    hmm_of: HmmOf
    number: Mapping[Place, int]
    first: np.ndarray

    @staticmethod
    def of(model: PhoneModel, hmm_of: HmmOf, pdfs: int) -> Denominator:
        """The graph of a phone model."""
        places, leading = _explored(model, hmm_of)
        number = {place: n for n, place in enumerate(places)}
        first = np.cumsum([0, *(len(hmm.pdfs) for _, hmm, _ in places)])
        pdf_S = np.concatenate([hmm.pdfs for _, hmm, _ in places])
        rows: list[tuple[int, int, float]] = []
        for n, (_, hmm, _) in enumerate(places):
            begin = int(first[n])
            rows += [(begin + a, begin + b, p) for a, b, p in hmm.inner]
            entries = [(int(first[number[place]]), p) for place, p in leading[n]]
            rows += [(begin + a, entry, leave * p) for a, leave in hmm.exits for entry, p in entries]
        source, target, probability = (np.array(column) for column in zip(*rows, strict=True))
        return Denominator(StateGraph.of(pdf_S, Arcs(source, target, probability), pdfs), model, hmm_of, number, first)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The places in their order."""
        return tuple(self.number)

    def path(self, phones: Sequence[int]) -> tuple[list[int], list[float]]:
        """Places of an utterance's phones, and the probabilities of the arcs between neighbours.

        Utterances of train have all of them. In others, the probability is 0 for an arc that the graph lacks, and a
        place that it lacks is replaced by a similar one: the same phone and HMM, and the same next phone if possible.

        Raises:
            KeyError: the graph has no similar place.
        """
        padded = (OUTSIDE, *(int(p) for p in phones), OUTSIDE)
        history = _after(self.model, BEGIN, padded[1])
        numbers: list[int] = []
        probabilities: list[float] = []
        for left, phone, right in zip(padded, padded[1:], padded[2:], strict=False):
            before, hmm = history, self.hmm_of(left, phone, right)
            history = END if right == OUTSIDE else _after(self.model, before, right)
            number = None if history is None else self.number.get((phone, hmm, history))
            known = before is not None and number is not None
            probabilities.append(self.model.following[before].get(right, 0.0) if known and before is not None else 0.0)
            if number is None:
                number = self._similar.get((phone, hmm, right))
                history = None if number is None else self._histories[number]
            numbers.append(self._similar[phone, hmm, None] if number is None else number)
        return numbers, probabilities[1:]

    @cached_property
    def _histories(self) -> tuple[History, ...]:
        return tuple(history for _, _, history in self.number)

    @cached_property
    def _similar(self) -> Mapping[tuple[int, PhoneHmm, int | None], int]:
        """The first place of each phone with its HMM, and of these with the next phone."""
        found: dict[tuple[int, PhoneHmm, int | None], int] = {}
        for n, (phone, hmm, history) in enumerate(self.number):
            found.setdefault((phone, hmm, history[-1] if history else OUTSIDE), n)
            found.setdefault((phone, hmm, None), n)
        return found


def _after(model: PhoneModel, history: History | None, phone: int) -> History | None:
    """`model.after`; None where the model does not go on."""
    if history is None or phone not in model.following.get(history, {}):
        return None
    return model.after(history, phone)


def _explored(model: PhoneModel, hmm_of: HmmOf) -> tuple[list[Place], list[list[Step]]]:
    """All places that can be reached, and the steps that lead from each."""

    def steps(left: int, phone: int, history: History, share: float) -> Iterator[Step]:
        for right, p in model.following[history].items():
            then = END if right == OUTSIDE else model.after(history, right)
            yield (phone, hmm_of(left, phone, right), then), share * p

    begins = [
        step
        for phone, p in model.following[BEGIN].items()
        for step in steps(OUTSIDE, phone, model.after(BEGIN, phone), p)
    ]
    places = list(dict.fromkeys(place for place, _ in begins))
    known, leading = set(places), []
    for phone, _, history in places:  # grows while it is read
        found = begins if history == END else list(steps(phone, history[-1], history, 1.0))
        leading.append(found)
        for place, _ in found:
            if place not in known:
                known.add(place)
                places.append(place)
    return places, leading
