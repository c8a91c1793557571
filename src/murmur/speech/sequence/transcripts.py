"""Numerators of whole utterances without an alignment: all paths of a transcript's phones through the denominator.

A transcript allows each pronunciation of its words, and a silence before the first word and after each word or none.
The numerator holds every path of the denominator whose phones are among these, from the first state of the first phone
to the end of the last one, with the probabilities of the denominator (Hadian et al., "End-to-end speech recognition
using lattice-free MMI", Interspeech 2018). So the objective is never positive, and no alignment is needed.

Shapes: N utterances, K states of the largest numerator, W arcs into or out of a state.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from murmur.speech.lexicon.lexicon import SILENCE_ID, Lang
from murmur.speech.sequence.denominator import BEGIN, END, OUTSIDE, Denominator
from murmur.speech.sequence.numerators import NEVER, Numerators, by_row

Node = int
Spot = tuple[Node, int, int, int]  # node after a phone, the phone, the next phone, the place of the phone


@dataclass(frozen=True)
class PhoneGraph:
    """The phone sequences of a transcript as a deterministic acyclic graph: each sequence is one path from node 0.

    Attributes:
        arcs: next node of each phone, by node.
        finals: nodes in which a sequence may end.
    """

    arcs: tuple[Mapping[int, Node], ...]
    finals: frozenset[Node]

    @staticmethod
    def of(lang: Lang, text: str) -> PhoneGraph:
        """The graph of a transcript.

        Raises:
            KeyError: a word is not in the lexicon.
        """
        edges, finals = _edges(lang, text)
        start = frozenset({0})
        number, arcs = {start: 0}, list[dict[int, Node]]()
        waiting = [start]
        for nodes in waiting:  # grows while it is read
            leads: dict[int, set[int]] = {}
            for phone, target in (edge for node in nodes for edge in edges[node]):
                leads.setdefault(phone, set()).add(target)
            arcs.append({})
            for phone in sorted(leads):
                then = frozenset(leads[phone])
                if then not in number:
                    number[then] = len(waiting)
                    waiting.append(then)
                arcs[-1][phone] = number[then]
        return PhoneGraph(tuple(arcs), frozenset(n for nodes, n in number.items() if nodes & finals))

    def after(self, node: Node) -> Iterator[int]:
        """Phones that may follow at a node; `OUTSIDE` for the end."""
        yield from self.arcs[node]
        if node in self.finals:
            yield OUTSIDE


def _edges(lang: Lang, text: str) -> tuple[list[list[tuple[int, int]]], frozenset[int]]:
    """Edges (phone, target) of each node, and the final nodes: every word may be followed by a silence."""
    spoken = _spoken(lang)
    edges: list[list[tuple[int, int]]] = [[(SILENCE_ID, 1)], []]
    open_nodes = (0, 1)  # without and with a silence at the end
    for word in lang.word_ids(text):
        end = len(edges)
        edges += [[(SILENCE_ID, end + 1)], []]
        for phones in spoken[word]:
            sources: tuple[int, ...] = open_nodes
            for phone in phones[:-1]:
                edges.append([])
                for source in sources:
                    edges[source].append((phone, len(edges) - 1))
                sources = (len(edges) - 1,)
            for source in sources:
                edges[source].append((phones[-1], end))
        open_nodes = (end, end + 1)
    return edges, frozenset(open_nodes)


def _spoken(lang: Lang) -> dict[int, list[tuple[int, ...]]]:
    """The pronunciations of each word label."""
    spoken: dict[int, list[tuple[int, ...]]] = {}
    for pron in lang.prons:
        spoken.setdefault(lang.words[pron.word], []).append(pron.phones)
    return spoken


def drawn_phones(lang: Lang, text: str, draw: random.Random) -> list[int]:
    """A phone sequence of a transcript: pronunciations with equal chances, silences by `lang.silence_probability`."""
    spoken = _spoken(lang)
    phones: list[int] = []
    for word in (None, *lang.word_ids(text)):
        if word is not None:
            phones += draw.choice(spoken[word])
        if draw.random() < lang.silence_probability:
            phones.append(SILENCE_ID)
    return phones or [SILENCE_ID]


@dataclass(frozen=True, eq=False)
class TranscriptNumerator:
    """The numerator of an utterance.

    Attributes:
        pdf: (S,) pdf of each state.
        initial: (S,) log probability of beginning in a state.
        ends: (S,) True for the states in which the utterance may end.
        source, target, log: arcs, with their log probabilities.
        fewest: frames of the shortest path.
    """

    pdf: np.ndarray
    initial: np.ndarray
    ends: np.ndarray
    source: np.ndarray
    target: np.ndarray
    log: np.ndarray
    fewest: int

    @staticmethod
    def of(denominator: Denominator, graph: PhoneGraph) -> TranscriptNumerator | None:
        """The numerator of a transcript; None if the denominator has none of its phone sequences."""
        spots, steps = _spots(denominator, graph)
        useful = _leading_to_the_end(spots, steps)
        if not useful:
            return None
        hmms = [denominator.places[place][1] for *_, place in useful]
        starts = np.cumsum([0, *(len(hmm.pdfs) for hmm in hmms)]).tolist()
        first = dict(zip(useful, starts, strict=False))
        log_initial, ends = np.full(starts[-1], NEVER), np.zeros(starts[-1], bool)
        rows: list[tuple[int, int, float]] = []
        for spot, hmm in zip(useful, hmms, strict=True):
            own = first[spot]
            if spots[spot]:
                p = float(denominator.graph.initial[int(denominator.first[spot[3]])])
                log_initial[own] = np.log(p) if p > 0 else NEVER
            if spot[2] == OUTSIDE:
                ends[[own + state for state, _ in hmm.exits]] = True
            rows += [(own + a, own + b, p) for a, b, p in hmm.inner]
            for then, p in steps[spot]:
                rows += [(own + a, first[then], leave * p) for a, leave in hmm.exits if then in first]
        source, target, probability = (np.array(column) for column in zip(*rows, strict=True))
        pdf = np.concatenate([hmm.pdfs for hmm in hmms])
        return TranscriptNumerator(pdf, log_initial, ends, source, target, np.log(probability), _fewest(spots, steps))


def _spots(
    denominator: Denominator, graph: PhoneGraph
) -> tuple[dict[Spot, bool], dict[Spot, list[tuple[Spot, float]]]]:
    """Spots of the transcript in the denominator, True for those that begin it; and the steps from each."""
    following, after = denominator.model.following, denominator.model.after

    def found(left: int, phone: int, node: Node, history: tuple[int, ...]) -> Iterator[tuple[Spot, float]]:
        for right in graph.after(node):
            p = following[history].get(right, 0.0)
            if p > 0:
                then = END if right == OUTSIDE else after(history, right)
                place = denominator.number.get((phone, denominator.hmm_of(left, phone, right), then))
                if place is not None:
                    yield (node, phone, right, place), p

    spots: dict[Spot, bool] = {}
    for phone, node in graph.arcs[0].items():
        if phone in following[BEGIN]:
            spots |= {spot: True for spot, _ in found(OUTSIDE, phone, node, after(BEGIN, phone))}
    steps: dict[Spot, list[tuple[Spot, float]]] = {}
    waiting = list(spots)
    for spot in waiting:  # grows while it is read
        node, phone, right, place = spot
        history = denominator.places[place][2]
        steps[spot] = [] if right == OUTSIDE else list(found(phone, right, graph.arcs[node][right], history))
        for then, _ in steps[spot]:
            if then not in spots:
                spots[then] = False
                waiting.append(then)
    return spots, steps


def _fewest(spots: Mapping[Spot, bool], steps: Mapping[Spot, list[tuple[Spot, float]]]) -> int:
    """Phones of the shortest sequence that ends the transcript, which is there."""
    reached, phones = {spot for spot, begins in spots.items() if begins}, 1
    while all(right != OUTSIDE for _, _, right, _ in reached):
        reached, phones = {then for spot in reached for then, _ in steps[spot]}, phones + 1
    return phones


def _leading_to_the_end(spots: Mapping[Spot, bool], steps: Mapping[Spot, list[tuple[Spot, float]]]) -> list[Spot]:
    """Spots from which the end of the transcript can be reached, in their order."""
    before: dict[Spot, list[Spot]] = {}
    for spot, leads in steps.items():
        for then, _ in leads:
            before.setdefault(then, []).append(spot)
    useful = {spot for spot in spots if spot[2] == OUTSIDE}
    waiting = list(useful)
    for spot in waiting:
        for earlier in before.get(spot, []):
            if earlier not in useful:
                useful.add(earlier)
                waiting.append(earlier)
    return [spot for spot in spots if spot in useful]


def joined(numerators: Sequence[TranscriptNumerator], lengths: Sequence[int]) -> Numerators:
    """Numerators of a batch of utterances with these numbers of frames; each ends where its transcript does."""
    count, states = len(numerators), max(len(each.pdf) for each in numerators)

    def table(rows: Sequence[np.ndarray], padding: float, kind: type) -> Tensor:
        values: np.ndarray = np.full((count, states), padding, kind)
        for own, row in zip(values, rows, strict=True):
            own[: len(row)] = row
        return torch.from_numpy(values)

    source, target = (
        np.concatenate([n * states + getattr(each, name) for n, each in enumerate(numerators)])
        for name in ("source", "target")
    )
    log = np.concatenate([each.log for each in numerators])
    lasts = [np.where(each.ends, length, length - 1) for each, length in zip(numerators, lengths, strict=True)]
    return Numerators(
        table([each.pdf for each in numerators], 0, np.int64),
        table([each.initial for each in numerators], NEVER, np.float32),
        torch.zeros(count, states, dtype=torch.int64),
        table(lasts, 0, np.int64),
        *by_row(target, source, log, count * states),
        *by_row(source, target, log, count * states),
    )
