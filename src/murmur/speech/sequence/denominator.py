"""Denominator graphs: all phone sequences of an n-gram model, each phone in context a small HMM.

The model has relative frequencies without smoothing: P(p | h) = c(h, p) / c(h), with h the longest listed history that
ends the phones so far. So an arc exists only where training has one, which keeps the graph small (Povey et al., "Purely
sequence-trained neural networks for ASR based on lattice-free MMI", Interspeech 2016, section 2.3). Of the longest
histories (n - 1 phones) those stay that predict most differently from the history without its first phone; the counts
of the others move to it. Histories of n - 2 phones are never removed.

The graph is that of an endless sequence of utterances, so that chunks may be cut anywhere: the end of an utterance
leads to the beginnings of all. A phone with its neighbours is known by its HMM, and by the history of the n-gram model
after the *next* phone, which is fixed in advance because the HMM depends on it. So one "place" of the graph is a triple
(phone, HMM, history after the next phone), and an arc between places has the probability of the phone after next.

Shapes: S states, I places, C pdfs.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from murmur.speech.hmm.model import HmmStates
from murmur.speech.hmm.topology import num_states
from murmur.speech.hmm.transitions import Transitions
from murmur.speech.sequence.state_graph import Arcs, StateGraph

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
                history = None if number is None else self.places[number][2]
            numbers.append(self._similar[phone, hmm, None] if number is None else number)
        return numbers, probabilities[1:]

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


def phone_hmms(states: HmmStates) -> HmmOf:
    """The HMM of a phone by its neighbours; the answers are kept, since few neighbours differ in their HMM."""
    tree, transitions = states.tree, states.transitions
    leads = _leads(transitions, np.exp(states.log_probs.astype(np.float64)))

    @cache
    def hmm(phone: int, pdfs: tuple[int, ...]) -> PhoneHmm:
        arcs = [(s, *arc) for s, pdf in enumerate(pdfs) for arc in leads[phone, s, pdf]]
        inner = tuple((s, to, p) for s, to, p in arcs if to < len(pdfs))
        return PhoneHmm(pdfs, inner, tuple((s, p) for s, to, p in arcs if to == len(pdfs)))

    @cache
    def hmm_of(left: int, phone: int, right: int) -> PhoneHmm:
        first = 1 - tree.centre
        window = (left, phone, right)[first : first + tree.width]
        pdfs = tuple(tree.pdf(window, state) for state in range(num_states(states.lang, phone)))
        return hmm(phone, pdfs)

    return hmm_of


def _leads(transitions: Transitions, probs_I: np.ndarray) -> dict[tuple[int, int, int], list[tuple[int, float]]]:
    """Pairs of next state and probability of each (phone, state, pdf)."""
    found: dict[tuple[int, int, int], list[tuple[int, float]]] = {}
    entries = {p: transitions.library.topo.topology_for_phone(p) for p in set(transitions.phone_of[1:].tolist())}
    ids = (transitions.phone_of, transitions.state_of, transitions.pdf_of, transitions.arc_of, probs_I)
    for phone, state, pdf, arc, p in zip(*(column[1:].tolist() for column in ids), strict=True):
        target = entries[phone][state].transitions[arc][0]
        found.setdefault((phone, state, pdf), []).append((target, p))
    return found
