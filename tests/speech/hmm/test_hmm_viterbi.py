"""The aligner against an enumeration of all paths through the HMMs, written from the definition."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from murmur.speech.hmm.align import phone_times
from murmur.speech.hmm.mixtures import one_gaussian_each
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.monophone import flat_start_seed
from murmur.speech.hmm.passes import (
    AlignOptions,
    GraphCompiler,
    best_path,
    equal_length_path,
    gmm_scores,
    matrix_scores,
)
from murmur.speech.hmm.transitions import make_transitions, reestimate
from murmur.speech.hmm.tree import Leaf, Question, Tree, monophone_tree
from murmur.speech.hmm.triphone import converted
from murmur.speech.lexicon.lexicon import make_lang

LANG = make_lang([("A", ("a",)), ("A", ("b",)), ("C", ("c",))], silence_probability=0.3)
WIDE = AlignOptions(acoustic_scale=0.7, transition_scale=0.8, self_loop_scale=0.6, beam=1e4, retry_beam=2e4)


def monophones():
    """A model with unequal transition probabilities."""
    tree = monophone_tree(LANG)
    start = make_transitions(LANG, tree)
    counts = np.random.default_rng(5).uniform(20, 90, size=start.num_ids + 1)
    log_probs = reestimate(LANG, tree, start, counts).log_probs
    return HmmGmm(LANG, tree, log_probs, one_gaussian_each(np.zeros(1), np.ones(1), tree.num_pdfs))


def phone_strings(words):
    """All (phones, log probability) of a text: pronunciations, each with or without silences."""
    silent = {(): math.log(0.7), (1,): math.log(0.3)}
    prons = [[p.phones for p in LANG.prons if p.word == w] for w in words]
    for chosen in itertools.product(*prons):
        for silences in itertools.product(silent, repeat=len(words) + 1):
            phones = silences[0] + tuple(itertools.chain(*(p + s for p, s in zip(chosen, silences[1:], strict=True))))
            yield phones, sum(silent[s] for s in silences)


def best_by_enumeration(model, words, scores, options):
    """The best total over all state sequences of all phone strings, and its pdfs by frame."""
    t = model.transitions
    arcs = {}
    for i in range(1, t.num_ids + 1):
        arcs.setdefault((int(t.phone_of[i]), int(t.state_of[i])), []).append(i)
    topology = {True: {0: [0, 1, 2, 3], 1: [1, 2, 3, 4], 2: [1, 2, 3, 4], 3: [1, 2, 3, 4], 4: [4, 5]}}
    topology[False] = {s: [s, s + 1] for s in range(3)}
    best = (-np.inf, ())

    def walk(phones, position, state, frame, total, pdfs):
        nonlocal best
        phone = phones[position]
        own = arcs[phone, state]
        pdf = int(t.pdf_of[own[0]])
        total += options.acoustic_scale * scores[frame, pdf]
        pdfs = (*pdfs, pdf)
        stay = next(math.exp(t.log_probs[i]) for i in own if t.arcs.is_self_loop[i])
        last = 5 if phone == 1 else 3
        for i, target in zip(own, topology[phone == 1][state], strict=True):
            p = math.exp(t.log_probs[i])
            if target == state:
                cost = options.self_loop_scale * math.log(p)
            else:
                cost = options.transition_scale * math.log(p / (1 - stay)) + options.self_loop_scale * math.log(
                    1 - stay
                )
            if frame + 1 < len(scores):
                if target < last:
                    walk(phones, position, target, frame + 1, total + cost, pdfs)
                elif position + 1 < len(phones):
                    walk(phones, position + 1, 0, frame + 1, total + cost, pdfs)
            elif target == last and position + 1 == len(phones) and total + cost > best[0]:
                best = (total + cost, pdfs)

    for phones, log_probability in phone_strings(words):
        walk(phones, 0, 0, 0, log_probability, ())
    return best


@pytest.mark.parametrize(("words", "frames"), [(("A",), 3), (("A",), 7), (("C", "A"), 8), (("A",), 9)])
def test_best_path_equals_enumeration_of_all_paths(words, frames):
    model = monophones()
    scores = np.random.default_rng(frames).normal(scale=3, size=(frames, model.num_pdfs)).astype(np.float32)
    graph = GraphCompiler(LANG, model.transitions).compile(" ".join(words))
    decodable = matrix_scores(model.transitions, scores, WIDE.acoustic_scale)
    path = best_path("u", graph, model.transitions, decodable, WIDE)
    total, pdfs = best_by_enumeration(model, words, scores.astype(float), WIDE)
    assert tuple(model.transitions.pdf_of[path.tids]) == pdfs
    assert path.log_likelihood * WIDE.acoustic_scale == pytest.approx(total, abs=1e-3)


def test_mixtures_and_the_same_scores_as_a_matrix_give_the_same_path():
    model = monophones()
    random = np.random.default_rng(0)
    mixtures = one_gaussian_each(np.zeros(2), np.ones(2), model.num_pdfs)
    mixtures = type(mixtures)(
        mixtures.sizes, mixtures.weights, random.normal(size=(model.num_pdfs, 2)), mixtures.variances
    )
    feats = random.normal(size=(30, 2)).astype(np.float32)
    graph = GraphCompiler(LANG, model.transitions).compile("A C A")
    by_mixtures = gmm_scores(mixtures.to_library(), model.transitions, feats, 0.1)
    by_matrix = matrix_scores(model.transitions, mixtures.loglikes(feats), 0.1)
    options = AlignOptions()
    one = best_path("u", graph, model.transitions, by_mixtures, options)
    two = best_path("u", graph, model.transitions, by_matrix, options)
    assert np.array_equal(one.tids, two.tids)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.integers(12, 40))
def test_phones_of_a_random_path_are_a_pronunciation_and_cover_all_frames(seed, frames):
    model = monophones()
    graph = GraphCompiler(LANG, model.transitions).compile("A C")
    tids = equal_length_path(graph, frames, seed)
    assume(tids is not None)  # ten draws found no path of so few frames
    times = phone_times(model, tids)
    assert sum(t.num_frames for t in times) == frames
    assert [t.first_frame for t in times] == np.cumsum([0] + [t.num_frames for t in times])[:-1].tolist()
    names = tuple(LANG.phones.index(t.phone) for t in times)
    assert names in {phones for phones, _ in phone_strings(("A", "C"))}
    for t in times:
        states = model.transitions.state_of[tids[t.first_frame : t.first_frame + t.num_frames]]
        assert states[0] == 0
        assert states[-1] == (4 if t.phone == "SIL" else 2)


def test_repeated_phones_are_told_apart():
    model = monophones()
    graph = GraphCompiler(LANG, model.transitions).compile("C C C")
    scores = matrix_scores(model.transitions, np.zeros((9, model.num_pdfs), dtype=np.float32), 1.0)
    tids = best_path("u", graph, model.transitions, scores, WIDE).tids
    assert [tuple(t) for t in phone_times(model, tids)] == [("c", 0, 3), ("c", 3, 3), ("c", 6, 3)]


def test_flat_start_seeds_differ_between_utterances_and_seeds():
    seeds = {flat_start_seed(seed, f"utterance-{n}") for seed in range(3) for n in range(200)}
    assert len(seeds) == 600
    graph = GraphCompiler(LANG, monophones().transitions).compile("A C A C")
    paths = {tuple(equal_length_path(graph, 60, flat_start_seed(0, f"u{n}"))) for n in range(20)}
    assert len(paths) == 20


def test_too_few_frames_have_no_path():
    graph = GraphCompiler(LANG, monophones().transitions).compile("A C")
    assert equal_length_path(graph, 5, 0) is None
    model = monophones()
    decodable = matrix_scores(model.transitions, np.zeros((5, model.num_pdfs), dtype=np.float32), 1.0)
    assert best_path("u", graph, model.transitions, decodable, WIDE) is None


def test_wrong_columns_and_values_are_refused_before_the_library_reads_them():
    model = monophones()
    with pytest.raises(ValueError, match="one column per pdf"):
        matrix_scores(model.transitions, np.zeros((5, model.num_pdfs - 1), dtype=np.float32), 1.0)
    with pytest.raises(ValueError, match="not finite"):
        matrix_scores(model.transitions, np.full((5, model.num_pdfs), np.nan, dtype=np.float32), 1.0)
    with pytest.raises(ValueError, match=r"\(5, 2\)"):
        gmm_scores(model.library_mixtures, model.transitions, np.zeros((5, 2), dtype=np.float32), 1.0)
    with pytest.raises(ValueError, match="another model"):
        phone_times(model, np.array([1, 9999], dtype=np.int32))
    with pytest.raises(ValueError, match="another model"):
        make_transitions(LANG, model.tree, np.zeros(3, dtype=np.float32))


def split_everywhere():
    """A triphone tree that asks in each speech state if "a" is on the left."""
    nodes, roots, pdf = [], {}, 0
    for key in monophone_tree(LANG).roots:
        roots[key] = len(nodes)
        if key[0] == 1:
            nodes.append(Leaf(pdf))
            pdf += 1
        else:
            nodes += [Question(0, (2,), len(nodes) + 1, len(nodes) + 2), Leaf(pdf), Leaf(pdf + 1)]
            pdf += 2
    return Tree(3, 1, tuple(nodes), roots)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000))
def test_converted_alignments_keep_phones_states_and_arcs(seed):
    mono, tree = monophones(), split_everywhere()
    flat = one_gaussian_each(np.zeros(1), np.ones(1), tree.num_pdfs)
    tri = HmmGmm(LANG, tree, make_transitions(LANG, tree).log_probs, flat)
    tids = equal_length_path(GraphCompiler(LANG, mono.transitions).compile("A C A"), 40, seed)
    found = converted({"u": tids}, mono, tri)["u"]
    for name in ("phone_of", "state_of", "arc_of"):
        assert np.array_equal(getattr(tri.transitions, name)[found], getattr(mono.transitions, name)[tids])
    times = phone_times(mono, tids)
    phones = [0, *(LANG.phones.index(t.phone) for t in times)]
    for left, t in zip(phones, times, strict=False):
        for frame in range(t.first_frame, t.first_frame + t.num_frames):
            state = int(mono.transitions.state_of[tids[frame]])
            window = (left, LANG.phones.index(t.phone), 0)
            assert tri.transitions.pdf_of[found[frame]] == tree.pdf(window, state)
    assert np.array_equal(converted({"u": found}, tri, mono)["u"], tids)
