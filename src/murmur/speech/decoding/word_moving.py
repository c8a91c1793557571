"""Words moved onto arcs that read a frame, where every decoder reads them.

sherpa-onnx reads the word of an arc of the best path only if its input label is neither epsilon nor 1 (the blank of
CTC) nor the label of the arc before; homophones, prefixes and back-off put words elsewhere. `move_words` makes a
graph with the same weight for every pair of input and words in which each word sits on a readable arc: on the next
such arc or on the last one before it, whichever are free and fewer; on the next ones in turn if neither are free.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import kaldifst
import numpy as np

from murmur.core.counted import counted

NOT_READ = 1  # input labels up to this one (epsilon, the blank) carry no word for sherpa-onnx
MOST_WAITING = 8  # words waiting for an arc at the same time: no path of a lexicon needs more


class GraphArc(NamedTuple):
    """An arc of a graph; `ilabel` and `olabel` are 0 for epsilon, `weight` is a cost."""

    source: int
    ilabel: int
    olabel: int
    weight: float
    target: int


class Moved(NamedTuple):
    """A graph with all words readable, the number of arcs that lost their words, and the directions of the moves."""

    fst: kaldifst.StdVectorFst
    unread: int
    forwards: int
    backwards: int


@dataclass
class _Graph:
    """A growing graph: the arcs of a transducer without those removed, plus added states and arcs.

    A new state is a copy of an old one, `origin`, and is reached only by arcs with the labels of that one's arcs.
    """

    table: np.ndarray  # (arcs, 4): source, ilabel, olabel, target, by source
    weights: np.ndarray
    finals: list[float]
    start: int
    removed: set[int] = field(default_factory=set)
    added: dict[int, list[GraphArc]] = field(default_factory=dict)
    origin: list[int] = field(default_factory=list)

    @staticmethod
    def of(fst: kaldifst.StdVectorFst) -> _Graph:
        """The content of a transducer."""
        numbers, weights, finals = array("q"), array("d"), []
        for state in kaldifst.StateIterator(fst):
            finals.append(float(fst.final(state).value))
            for arc in kaldifst.ArcIterator(fst, state):
                numbers.extend((state, arc.ilabel, arc.olabel, arc.nextstate))
                weights.append(arc.weight.value)
        table = np.frombuffer(numbers, dtype=np.int64).reshape(-1, 4)
        return _Graph(table, np.frombuffer(weights), finals, fst.start)

    def __post_init__(self) -> None:
        count = len(self.finals)
        self.first = np.searchsorted(self.table[:, 0], np.arange(count + 1))
        self.entering = np.argsort(self.table[:, 3], kind="stable")
        self.first_entering = np.searchsorted(self.table[self.entering, 3], np.arange(count + 1))
        self.labels_before: dict[int, frozenset[int]] = {}
        self.origin = list(range(count))

    def arc(self, number: int) -> GraphArc:
        """An old arc by number."""
        source, ilabel, olabel, target = self.table[number].tolist()
        return GraphArc(source, ilabel, olabel, float(self.weights[number]), target)

    def into(self, state: int) -> Iterator[GraphArc]:
        """Old arcs that enter an old state."""
        for place in range(int(self.first_entering[state]), int(self.first_entering[state + 1])):
            yield self.arc(int(self.entering[place]))

    def leaving(self, state: int) -> Iterator[GraphArc]:
        """Arcs that leave a state now."""
        if state < len(self.first) - 1:
            for number in range(int(self.first[state]), int(self.first[state + 1])):
                if number not in self.removed:
                    yield self.arc(number)
        yield from self.added.get(state, [])

    def add_copy(self, state: int) -> int:
        """A new state, not final, that represents an old one."""
        self.finals.append(float("inf"))
        self.origin.append(self.origin[state])
        return len(self.finals) - 1

    def add(self, arc: GraphArc) -> None:
        """Add an arc."""
        self.added.setdefault(arc.source, []).append(arc)

    def readable(self, arc: GraphArc) -> bool:
        """True if a word on this arc is read."""
        if arc.ilabel <= NOT_READ:
            return False
        before = self.origin[arc.source]
        if before not in self.labels_before:
            places = self.entering[self.first_entering[before] : self.first_entering[before + 1]]
            self.labels_before[before] = frozenset(self.table[places, 1].tolist())
        return arc.ilabel not in self.labels_before[before]

    def unread(self) -> list[int]:
        """Numbers of old arcs with an unread word."""
        source, ilabel, olabel, target = self.table.T
        spoken = np.flatnonzero(olabel)
        labels = int(ilabel.max(initial=0)) + 1
        repeats = np.isin(source[spoken] * labels + ilabel[spoken], target * labels + ilabel)
        return spoken[repeats | (ilabel[spoken] <= NOT_READ)].tolist()

    def put_into(self, fst: kaldifst.StdVectorFst) -> kaldifst.StdVectorFst:
        """A copy of the original transducer with the changes of this graph, without unused states."""
        out = fst.copy()
        out.start = out.start  # the copy shares its arcs until it is first changed, and arc iterators do not unshare it
        while out.num_states < len(self.finals):
            out.add_state()
        nowhere = out.add_state()
        for number in self.removed:
            source = int(self.table[number, 0])
            arcs = kaldifst.ArcIterator(out, source)
            arcs.seek(number - int(self.first[source]))
            arcs.value.nextstate = nowhere
        for arcs_of_state in self.added.values():
            for a in arcs_of_state:
                arc = kaldifst.StdArc(ilabel=a.ilabel, olabel=a.olabel, weight=a.weight, nextstate=a.target)
                out.add_arc(a.source, arc)
        kaldifst.connect(out)
        return out


def move_words(fst: kaldifst.StdVectorFst) -> Moved:
    """A copy of the transducer with each word on an arc from which sherpa-onnx reads words.

    Raises:
        ValueError: some path has fewer such arcs than words, or a word on a loop of its own.
    """
    fst = kaldifst.StdVectorFst(fst)
    kaldifst.connect(fst)  # a word on an arc that no utterance takes need not move
    if fst.num_states == 0:
        return Moved(fst, 0, 0, 0)
    graph = _Graph.of(fst)
    unread = graph.unread()
    loops = [a for a in map(graph.arc, unread) if a.source == a.target]
    if loops:
        raise ValueError(f"{counted(len(loops), 'word')} on loops that read no frame, such as label {loops[0].olabel}")
    ways = _Ways(graph)
    backwards = [n for n in unread if ways.backwards(graph.arc(n))]
    before = _Before(graph)
    for number in backwards:
        before.move(graph.arc(number))
    graph.removed.update(unread)
    forwards = [graph.arc(n) for n in sorted(set(unread).difference(backwards))]
    _After(graph, forwards).move()
    return Moved(graph.put_into(fst), len(unread), len(forwards), len(backwards))


class _Ways:
    """Numbers of arcs between an unread arc and the nearest readable ones on either side, if all of those are free."""

    def __init__(self, graph: _Graph) -> None:
        self.graph = graph
        self.final = {state for state, cost in enumerate(graph.finals) if cost < float("inf")}
        self.after: dict[int, float] = {}
        self.before: dict[int, float] = {}

    def backwards(self, arc: GraphArc) -> bool:
        """True if the word should move to the arcs before; otherwise it moves to those after."""
        if arc.source not in self.before:
            ends = {self.graph.start}
            self.before[arc.source] = self._arcs(arc.source, ends, self.graph.into, lambda a: a.source)
        if arc.target not in self.after:
            self.after[arc.target] = self._arcs(arc.target, self.final, self.graph.leaving, lambda a: a.target)
        return self.before[arc.source] < self.after[arc.target]

    def _arcs(
        self,
        first: int,
        ends: set[int],
        arcs_at: Callable[[int], Iterator[GraphArc]],
        beyond: Callable[[GraphArc], int],
    ) -> float:
        """Arcs up to the next readable ones; infinite if an end or another word is in the way."""
        seen, waiting, count = {first}, [first], 0
        while waiting:
            state = waiting.pop()
            if state in ends:
                return float("inf")
            for arc in arcs_at(state):
                if arc.olabel:
                    return float("inf")
                count += 1
                if not self.graph.readable(arc) and beyond(arc) not in seen:
                    seen.add(beyond(arc))
                    waiting.append(beyond(arc))
        return float(count)


@dataclass
class _Before:
    """Words moved to the last readable arc before: the states after it are copied, and lead to that word alone."""

    graph: _Graph
    copies: dict[tuple[int, int], int] = field(default_factory=dict)

    def move(self, unread: GraphArc) -> None:
        """Move one arc's word to the arcs before it."""
        promised = self._copy(unread.source, unread.olabel)
        self.graph.add(unread._replace(source=promised, olabel=0))

    def _copy(self, state: int, word: int) -> int:
        """The copy of a state whose path has already emitted `word`, with all arcs into it."""
        if (state, word) in self.copies:
            return self.copies[state, word]
        first = self.copies[state, word] = self.graph.add_copy(state)
        waiting = [(state, first)]
        while waiting:
            old, new = waiting.pop()
            for arc in self.graph.into(old):
                if self.graph.readable(arc):
                    self.graph.add(arc._replace(olabel=word, target=new))
                    continue
                if (arc.source, word) not in self.copies:
                    self.copies[arc.source, word] = self.graph.add_copy(arc.source)
                    waiting.append((arc.source, self.copies[arc.source, word]))
                self.graph.add(arc._replace(source=self.copies[arc.source, word], target=new))
        return first


class _After:
    """Words moved to the next readable arc: states are copied for each sequence of waiting words."""

    def __init__(self, graph: _Graph, unread: list[GraphArc]) -> None:
        self.graph = graph
        self.unread = unread
        self.by_source: dict[int, list[GraphArc]] = {}
        for arc in unread:
            self.by_source.setdefault(arc.source, []).append(arc)
        self.copies: dict[tuple[int, tuple[int, ...]], int] = {}
        self.to_leave: list[tuple[int, tuple[int, ...]]] = []
        self.made: list[GraphArc] = []  # added at the end, so that `leaving` gives the old arcs until then

    def move(self) -> None:
        """Move every arc's word to the arcs after it."""
        for arc in self.unread:
            self.made.append(arc._replace(olabel=0, target=self._at(arc.target, (arc.olabel,))))
        while self.to_leave:
            state, words = self.to_leave.pop()
            self._leave(state, words)
        for arc in self.made:
            self.graph.add(arc)

    def _at(self, state: int, words: tuple[int, ...]) -> int:
        """The copy of a state in which these words wait; the state itself for no words."""
        if not words:
            return state
        if (state, words) not in self.copies:
            if len(words) > MOST_WAITING:
                raise ValueError(f"words without a frame between them: labels {words}")
            self.copies[state, words] = self.graph.add_copy(state)
            self.to_leave.append((state, words))
        return self.copies[state, words]

    def _leave(self, state: int, words: tuple[int, ...]) -> None:
        """Add the arcs out of the copy of a state: the first waiting word goes on those that are read."""
        here = self.copies[state, words]
        if self.graph.finals[state] < float("inf"):
            raise ValueError(f"an utterance may end before a frame that could carry its word (label {words[0]})")
        for arc in self.by_source.get(state, []):
            self.made.append(arc._replace(source=here, olabel=0, target=self._at(arc.target, (*words, arc.olabel))))
        for arc in self.graph.leaving(state):
            if self.graph.readable(arc):
                rest = words[1:] + ((arc.olabel,) if arc.olabel else ())
                self.made.append(arc._replace(source=here, olabel=words[0], target=self._at(arc.target, rest)))
            else:
                self.made.append(arc._replace(source=here, target=self._at(arc.target, words)))
