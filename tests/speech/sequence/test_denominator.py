"""Denominator graphs: an endless sequence of utterances, in which training has its paths."""

from __future__ import annotations

import math

import numpy as np
import pytest

from murmur.speech.hmm.model import HmmStates
from murmur.speech.hmm.transitions import make_transitions
from murmur.speech.hmm.tree import monophone_tree
from murmur.speech.lexicon.lexicon import make_lang
from murmur.speech.sequence.denominator import BEGIN, OUTSIDE, Denominator, PhoneNgrams, phone_hmms
from murmur.speech.sequence.state_graph import Arcs, StateGraph
from tests.support.tiny_denominator import PDFS, SEQUENCES, denominator, dense, hmm_of


@pytest.mark.parametrize("order", [3, 4])
def test_arcs_of_a_state_sum_to_one_and_frequencies_are_those_of_the_long_run(order: int) -> None:
    graph = denominator(order).graph
    step = dense(graph)
    assert np.abs(step.sum(1) - 1).max() < 1e-6
    initial = graph.initial.double().numpy()
    assert abs(initial.sum() - 1) < 1e-6
    assert np.abs(initial @ step - initial).max() < 1e-6
    assert initial.min() > 0


@pytest.mark.parametrize("order", [3, 4])
def test_a_path_of_training_has_the_probability_of_the_phone_model(order: int) -> None:
    found = denominator(order)
    model, step = found.model, dense(found.graph)
    for phones in SEQUENCES:
        places, arcs = found.path(phones)
        history, predicted = model.after(BEGIN, phones[0]), []
        for phone in (*phones[1:], OUTSIDE):
            predicted.append(model.following[history][phone])
            history = model.after(history, phone) if phone != OUTSIDE else BEGIN
        assert arcs == predicted[1:]
        for place, (left, phone, right) in zip(places, windows(phones), strict=True):
            assert found.places[place][:2] == (phone, hmm_of(left, phone, right))
        for a, b, p in zip(places, places[1:], arcs, strict=False):
            for state, leave in found.places[a][1].exits:
                assert step[found.first[a] + state, found.first[b]] == pytest.approx(leave * p, rel=1e-6)


def windows(phones):
    padded = (OUTSIDE, *phones, OUTSIDE)
    return zip(padded, padded[1:], padded[2:], strict=False)


def test_the_end_of_an_utterance_leads_to_the_beginning_of_each() -> None:
    found = denominator()
    ends = [n for n, (_, _, history) in enumerate(found.places) if history == ()]
    begins = {(phones[0], hmm_of(0, phones[0], (phones[1:] or [0])[0])) for phones in SEQUENCES}
    step = dense(found.graph)
    for end in ends:
        hmm = found.places[end][1]
        inside = range(found.first[end], found.first[end + 1])
        for state, leave in hmm.exits:
            into = {
                found.places[n][:2]: step[inside[state], found.first[n]]
                for n in range(len(found.places))
                if step[inside[state], found.first[n]] > 0 and found.first[n] not in inside
            }
            assert begins <= set(into) | {found.places[end][:2]}
            assert leave > 0


def test_what_training_never_had_goes_by_the_leak() -> None:
    found = denominator(4)
    places, arcs = found.path([2, 2, 2, 1, 2, 1])
    assert [found.places[n][0] for n in places] == [2, 2, 2, 1, 2, 1]
    assert 0.0 in arcs
    step = dense(found.graph)
    for a, b, p in zip(places, places[1:], arcs, strict=False):
        if p > 0:  # an arc that the graph has
            leave = dict(found.places[a][1].exits)
            assert step[found.first[a], found.first[b]] == pytest.approx(leave[0] * p, rel=1e-6)
    with pytest.raises(KeyError):
        found.path([3])


def test_a_pdf_outside_the_network_is_refused() -> None:
    with pytest.raises(ValueError, match=r"outside 0 \.\.\. 3"):
        Denominator.of(PhoneNgrams(3).train(SEQUENCES), hmm_of, PDFS - 1)
    arcs = Arcs(np.array([0]), np.array([0]), np.array([1.0]))
    with pytest.raises(ValueError, match="none at all"):
        StateGraph.of(np.array([], int), arcs, 1)


def test_hmms_of_a_system_have_its_states_and_transition_probabilities() -> None:
    lang = make_lang([("ANNA", ("A", "N", "A")), ("NO", ("N", "O"))])
    tree = monophone_tree(lang)
    states = HmmStates(lang, tree, make_transitions(lang, tree).log_probs)
    hmms = phone_hmms(states)
    a = lang.phones.index("A")
    spoken, silence = hmms(1, a, OUTSIDE), hmms(a, 1, a)
    assert spoken.pdfs == tuple(tree.pdf((a,), s) for s in range(3))
    assert {(s, t): round(p, 6) for s, t, p in spoken.inner} == {
        (0, 0): 0.75,
        (0, 1): 0.25,
        (1, 1): 0.75,
        (1, 2): 0.25,
        (2, 2): 0.75,
    }
    assert [(s, round(p, 6)) for s, p in spoken.exits] == [(2, 0.25)]
    assert len(silence.pdfs) == 5
    assert {(s, t) for s, t, _ in silence.inner} == {
        (0, 0),
        (0, 1),
        (0, 2),
        (0, 3),
        *((s, t) for s in (1, 2, 3) for t in (1, 2, 3, 4)),
        (4, 4),
    }
    for hmm in (spoken, silence):
        for s in range(len(hmm.pdfs)):
            out = sum(p for a, _, p in hmm.inner if a == s) + dict(hmm.exits).get(s, 0.0)
            assert math.isclose(out, 1.0, rel_tol=1e-5)
    assert hmms(1, a, OUTSIDE) is hmms(a, a, 1)
