"""Alignment with networks of words: all paths by brute force, rules of fragments, malformed braces."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from murmur.speech.scoring.word_network import (
    GAP,
    OPTIONAL_GAP,
    SUBSTITUTION,
    Arc,
    TranscriptError,
    WordNetwork,
    align,
    matches,
)
from tests.support.nist import VOCABULARY, transcript


def paths(network: WordNetwork, state: int = 0) -> Iterator[list[Arc]]:
    """All paths of a network."""
    if state == network.last:
        yield []
    for arc in network.arcs:
        if arc.start == state:
            for rest in paths(network, arc.end):
                yield [arc, *rest]


def cheapest(path: Sequence[Arc], words: Sequence[str]) -> float:
    """Cost of the cheapest alignment, by recursion over both sequences."""
    if path and path[0].word is None:
        return cheapest(path[1:], words)
    if not path:
        return GAP * len(words)
    left_out = (OPTIONAL_GAP if path[0].optional else GAP) + cheapest(path[1:], words)
    if not words:
        return left_out
    assert path[0].word is not None
    both = (0.0 if matches(path[0].word, words[0]) else SUBSTITUTION) + cheapest(path[1:], words[1:])
    return min(left_out, both, GAP + cheapest(path, words[1:]))


def test_alignments_are_the_cheapest_of_all_paths() -> None:
    draw = random.Random(0)
    for _ in range(150):
        network = WordNetwork.of(transcript(draw))
        words = [draw.choice(VOCABULARY) for _ in range(draw.randint(0, 4))]
        pairs = align(network, words)
        optional = {arc.word for arc in network.arcs if arc.optional}
        costs = {"substitution": SUBSTITUTION, "insertion": GAP, "deletion": GAP, "correct": 0.0}
        cost = sum(OPTIONAL_GAP if p.hypothesis is None and p.kind == "correct" else costs[p.kind] for p in pairs)
        assert cost == min(cheapest(path, words) for path in paths(network))
        assert [p.hypothesis for p in pairs if p.hypothesis is not None] == words
        said = [p.reference for p in pairs if p.reference is not None]
        assert said in [[arc.word for arc in path if arc.word is not None] for path in paths(network)]
        assert all(p.reference in optional for p in pairs if p.hypothesis is None and p.kind == "correct")


@pytest.mark.parametrize(
    ("reference", "hypothesis", "same"),
    [
        ("word", "WORD", True),
        ("wor-", "word", True),
        ("word", "wor-", True),
        ("-ord", "word", True),
        ("ab-", "abc-", True),
        ("abc-", "ab-", False),
        ("-", "word", False),
        ("word", "work", False),
    ],
)
def test_fragments(reference: str, hypothesis: str, same: bool) -> None:
    assert matches(reference, hypothesis) == same


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a { b / c d } (e)", {"a b e", "a c d e"}),
        ("{ a / @ }", {"a", ""}),
        ("{ a / { b / c } d }", {"a", "b d", "c d"}),
    ],
)
def test_paths_of_a_transcript(text: str, words: set[str]) -> None:
    assert {" ".join(arc.word for arc in path if arc.word) for path in paths(WordNetwork.of(text))} == words


@pytest.mark.parametrize("unit", ["{ ", "{ a / ", "{ { b } { "])
def test_deep_nesting_is_refused_in_a_short_message(unit: str) -> None:
    with pytest.raises(TranscriptError, match=r"braces are nested more than 100 deep") as refused:
        WordNetwork.of(unit * 50_000)
    assert len(str(refused.value)) < 200
    text = "{ a / " * 90 + "b" + " }" * 90
    assert WordNetwork.of(text).last > 90


@pytest.mark.parametrize(("text", "what"), [("a { b / c", "not closed"), ("a } b", "was not opened")])
def test_braces_must_match(text: str, what: str) -> None:
    with pytest.raises(TranscriptError, match=what):
        WordNetwork.of(text)
