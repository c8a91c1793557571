"""The CTC criterion over label graphs, against enumeration of all pronunciations and alignments."""

from __future__ import annotations

import itertools
import math

import kaldialign
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.speech import ctc
from murmur.speech.ctc import LabelGraph

LABELS = st.integers(1, 2)
WORDS = st.lists(
    st.lists(st.lists(LABELS, min_size=1, max_size=2).map(tuple), min_size=1, max_size=3), min_size=1, max_size=2
)


def collapse(path):
    return tuple(k for k, _ in itertools.groupby(path) if k != ctc.BLANK)


def spoken(words):
    """All different label sequences of words with several pronunciations."""
    return {sum(choice, ()) for choice in itertools.product(*words)}


def sequences_of(graph):
    """All sequences that a graph accepts, by walking it."""
    found = []

    def walk(state, labels):
        if state in graph.finals:
            found.append(labels)
        for source, label, target in graph.arcs:
            if source == state:
                walk(target, (*labels, label))

    walk(0, ())
    return found


def needed(labels):
    return len(labels) + sum(a == b for a, b in itertools.pairwise(labels))


@given(WORDS)
@settings(deadline=None)
def test_a_graph_holds_every_choice_of_pronunciations_once(words):
    graph = LabelGraph.of_words(words)
    assert sorted(sequences_of(graph)) == sorted(spoken(words))
    assert graph.frames_needed == min(needed(labels) for labels in spoken(words))
    assert [s for s, _, _ in graph.arcs] == sorted(s for s, _, _ in graph.arcs)
    assert (graph.sequence is not None) == (len(spoken(words)) == 1)


@given(st.lists(LABELS, max_size=4))
def test_a_linear_graph_is_its_sequence(labels):
    graph = LabelGraph.linear(labels)
    assert graph.sequence == tuple(labels)
    assert sequences_of(graph) == [tuple(labels)]
    assert graph.frames_needed == needed(labels)


@given(WORDS, st.integers(1, 5), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_the_loss_sums_over_all_pronunciations_and_alignments(words, frames, seed):
    logits = torch.randn(1, frames, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    probs, wanted = logits.softmax(-1)[0], spoken(words)
    total = sum(
        math.prod(float(probs[t, k]) for t, k in enumerate(path))
        for path in itertools.product(range(3), repeat=frames)
        if collapse(path) in wanted
    )
    graph = LabelGraph.of_words(words)
    if graph.frames_needed > frames:
        assert total == 0
        with pytest.raises(ValueError, match=f"item 0 has {frames} frames"):
            ctc.loss(logits, torch.tensor([frames]), [graph])
    else:
        found = float(ctc.loss(logits, torch.tensor([frames]), [graph]))
        assert found == pytest.approx(-math.log(total), rel=1e-6)


@given(st.lists(LABELS, max_size=4), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_of_one_sequence_both_recursions_agree(labels, seed):
    logits = torch.randn(
        2, 9, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, requires_grad=True
    )
    lengths, graphs = torch.tensor([9, 8]), [LabelGraph.linear(labels), LabelGraph.linear([3, *labels])]
    native = ctc.loss(logits, lengths, graphs)
    own = ctc._forward(logits, lengths, graphs)
    assert float(own.detach()) == pytest.approx(float(native.detach()), rel=1e-9)
    ours, theirs = (torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in (own, native))
    assert torch.allclose(ours, theirs, atol=1e-9)


def test_losses_of_a_mixed_batch_add_up_and_padding_counts_for_nothing():
    torch.manual_seed(0)
    logits = torch.randn(3, 9, 4)
    graphs = [
        LabelGraph.linear([1, 2]),
        LabelGraph.of_words([[(1,), (2, 2)], [(3,)]]),
        LabelGraph.of_words([[(1, 3), (2,)]]),
    ]
    lengths = torch.tensor([6, 9, 4])
    alone = [
        float(ctc.loss(logits[i : i + 1, :frames], torch.tensor([frames]), [graphs[i]]))
        for i, frames in enumerate(lengths.tolist())
    ]
    assert float(ctc.loss(logits, lengths, graphs)) == pytest.approx(sum(alone), rel=1e-5)


def test_gradients_are_finite_where_hardly_any_path_exists():
    logits = (30 * torch.randn(1, 3, 3)).requires_grad_()
    ctc.loss(logits, torch.tensor([3]), [LabelGraph.of_words([[(1, 2), (2, 1)], [(1,)]])]).backward()
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())


@given(WORDS, st.lists(LABELS, max_size=4))
@settings(deadline=None)
def test_the_nearest_sequence_has_the_fewest_errors(words, heard):
    graph = LabelGraph.of_words(words)
    nearest = graph.nearest(heard)
    assert nearest in spoken(words)

    def errors(labels):
        return kaldialign.edit_distance(list(labels), heard)["total"]

    assert errors(nearest) == min(errors(labels) for labels in spoken(words))


@pytest.mark.parametrize("words", [[[]], [[(1,), ()]]])
def test_words_without_a_pronunciation_are_refused(words):
    with pytest.raises(ValueError, match="each word needs at least one"):
        LabelGraph.of_words(words)
