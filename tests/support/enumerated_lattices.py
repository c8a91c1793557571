"""Small lattices as text, with the enumeration of all their paths."""

from __future__ import annotations

from hypothesis import strategies as st


class Text:
    """Reference for `Lattice.of`: the start of a lattice and its text."""

    def __init__(self, arcs, finals):
        self.arcs, self.finals, self.start = arcs, finals, 0

    def to_str(self, show_weight_one):
        lines = ["\t".join(map(str, arc[:4])) + f"\t{arc[4]},{arc[5]}\n" for arc in self.arcs]
        return "".join(lines + [f"{state}\t{cost},0\n" for state, cost in self.finals.items()])

    def paths(self, state=0):
        """(cost, [(frame, word)], frames) of every path to a final state."""
        found = [(self.finals[state], [], 0)] if state in self.finals else []
        for source, target, ilabel, olabel, graph, acoustic in self.arcs:
            if source == state:
                for cost, words, frames in self.paths(target):
                    later = [(f + (ilabel != 0), w) for f, w in words]
                    said = [(0, olabel)] if olabel else []
                    found.append((cost + graph + acoustic, said + later, frames + (ilabel != 0)))
        return found


@st.composite
def lattices(draw):
    """Frames in layers, epsilon arcs within a layer, words on some arcs."""
    layers, width = draw(st.integers(1, 4)), 2
    arcs, costs = [], st.integers(0, 12).map(lambda n: n / 4)
    for layer in range(layers):
        first = layer * width
        if draw(st.booleans()):
            arcs.append((first, first + 1, 0, draw(st.integers(0, 3)), draw(costs), 0.0))
        for source in (first, first + 1):
            for target in draw(st.sets(st.integers(0, width - 1), max_size=2)):
                word = draw(st.integers(0, 3))
                arcs.append((source, first + width + target, 1 + target, word, draw(costs), draw(costs)))
    ends = {layers * width: draw(costs), layers * width + 1: draw(costs)}
    ends |= {early: draw(costs) for early in draw(st.sets(st.integers(1, layers * width - 1), max_size=2))}
    return Text(arcs, ends)
