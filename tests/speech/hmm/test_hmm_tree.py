import itertools

import kaldi_hmm_gmm as khg
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.speech.hmm.grow import (
    TreeConfig,
    TreeStats,
    best_split,
    cluster_phones,
    derive_questions,
    grow_tree,
    log_likelihood,
    merge_stats,
    sum_by_key,
)
from murmur.speech.hmm.topology import make_topology, num_states
from murmur.speech.hmm.tree import Leaf, Question, Tree, context_dependency, monophone_tree, tree_bytes
from murmur.speech.lexicon.lexicon import make_lang

LANG = make_lang([("W", ("a", "b", "c"))])


def classes_of(lang):
    return [(p, s) for p in range(1, lang.num_phones + 1) for s in range(num_states(lang, p))]


def random_triphone_tree(random):
    nodes, roots, pdfs = [], {}, itertools.count()

    def grow(depth):
        index = len(nodes)
        nodes.append(None)
        if depth == 0 or random.random() < 0.4:
            nodes[index] = Leaf(next(pdfs))
        else:
            members = tuple(sorted(random.choice(5, size=random.integers(1, 5), replace=False).tolist()))
            nodes[index] = Question(int(random.choice([0, 2])), members, grow(depth - 1), grow(depth - 1))
        return index

    for key in classes_of(LANG):
        roots[key] = grow(3)
    return Tree(3, 1, tuple(nodes), roots)


def random_stats(random, contexts=40, dim=2):
    keys = [
        (left, phone, right, state)
        for phone, state in classes_of(LANG)
        for left, right in random.integers(0, 5, size=(contexts // 10, 2))
    ]
    frames = [(key, random.normal(loc=key[0] + 2 * key[1] + key[3], size=dim)) for key in keys for _ in range(5)]
    x = np.array([f for _, f in frames])
    return sum_by_key(np.array([k for k, _ in frames], dtype=np.int32), np.ones(len(x)), x, x**2), frames


def test_monophone_tree_has_the_bytes_of_the_librarys_own():
    topology = make_topology(LANG)
    own = khg.monophone_context_dependency(
        phones=topology.phones, phone2num_pdf_classes=topology.get_phone_to_num_pdf_classes()
    )
    expected = bytes(b % 256 for b in own.__getstate__()[0])
    assert tree_bytes(monophone_tree(LANG)) == expected


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_library_computes_the_same_pdf_for_every_window(seed):
    tree = random_triphone_tree(np.random.default_rng(seed))
    library = context_dependency(tree)
    assert library.num_pdfs == tree.num_pdfs
    for left, (phone, state), right in itertools.product(range(5), classes_of(LANG), range(5)):
        assert library.compute([left, phone, right], state) == (True, tree.pdf([left, phone, right], state))


@given(st.integers(0, 10_000))
def test_json_round_trip(seed):
    tree = random_triphone_tree(np.random.default_rng(seed))
    assert Tree.from_json(tree.to_json()) == tree


def test_gaps_between_pdfs_are_refused():
    with pytest.raises(ValueError, match="carry the pdfs"):
        Tree(1, 0, (Leaf(0), Leaf(2)), {(1, 0): 0, (1, 1): 1})


def gaussian_log_likelihood(frames):
    """Log-likelihood summed over frames one by one, under the Gaussian with their own mean and variance."""
    if not len(frames):
        return 0.0
    mean, variance = np.mean(frames, 0), np.maximum(np.var(frames, 0), 0.01)
    return sum(-0.5 * np.sum(np.log(2 * np.pi * variance) + (x - mean) ** 2 / variance) for x in frames)


def test_closed_form_likelihood_equals_the_sum_over_frames():
    x = np.random.default_rng(1).normal(size=(17, 3))
    closed = log_likelihood(np.array(17.0), x.sum(0), (x**2).sum(0))
    assert float(closed) == pytest.approx(gaussian_log_likelihood(x))
    assert float(log_likelihood(np.array(0.0), np.zeros(3), np.zeros(3))) == 0.0


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_best_split_equals_a_search_over_all_questions_and_frames(seed):
    random = np.random.default_rng(seed)
    stats, frames = random_stats(random)
    questions = [(0, 1), (2,), (3,), (4,), (2, 3), (3, 4)]
    members = np.array([[v in q for v in range(5)] for q in questions], dtype=float)
    rows = np.flatnonzero((stats.keys[:, 1] == 3) & (stats.keys[:, 3] == 1))
    mine = [(k, x) for k, x in frames if k[1] == 3 and k[3] == 1]
    found = {}
    for position, question in itertools.product((0, 2), questions):
        yes = [x for k, x in mine if k[position] in question]
        no = [x for k, x in mine if k[position] not in question]
        if min(len(yes), len(no)) >= 5:
            gain = sum(map(gaussian_log_likelihood, (yes, no))) - gaussian_log_likelihood([x for _, x in mine])
            found[position, question] = gain
    split = best_split(stats, rows, members, min_frames=5)
    if not found:
        assert split is None
    else:
        assert split.gain == pytest.approx(max(found.values()))
        assert found[split.position, split.members] == pytest.approx(split.gain)


def test_growth_takes_the_best_gain_first_and_stops_at_the_wanted_leaves():
    stats, _ = random_stats(np.random.default_rng(3), contexts=80)
    questions = derive_questions(LANG, stats)
    few = 5 + 3 * 3
    trees = [grow_tree(LANG, stats, questions, TreeConfig(leaves, 5, 0.0)) for leaves in range(few, few + 8)]
    assert [t.num_pdfs for t in trees] == list(range(few, few + 8))
    likelihoods = [tree_likelihood(t, stats) for t in trees]
    gains = np.diff(likelihoods)
    assert np.all(gains > 0)
    members = np.array([[v in q for v in range(5)] for q in questions], dtype=float)
    splits = [
        best_split(stats, np.flatnonzero((stats.keys[:, 1] == p) & (stats.keys[:, 3] == s)), members, 5)
        for p, s in classes_of(LANG)
        if p > 1
    ]
    assert gains[0] == pytest.approx(max(s.gain for s in splits if s))


def tree_likelihood(tree, stats):
    pdfs = np.array([tree.pdf(k[:3], k[3]) for k in stats.keys])
    leaves = [pdfs == pdf for pdf in range(tree.num_pdfs)]
    return sum(
        float(log_likelihood(stats.counts[r].sum(), stats.first[r].sum(0), stats.second[r].sum(0))) for r in leaves
    )


def test_silence_is_not_split_and_small_gains_are_not_taken():
    stats, _ = random_stats(np.random.default_rng(4), contexts=80)
    tree = grow_tree(LANG, stats, derive_questions(LANG, stats), TreeConfig(1000, 5, 0.0))
    assert all(isinstance(tree.nodes[tree.roots[1, s]], Leaf) for s in range(5))
    assert tree.num_pdfs > 14
    assert grow_tree(LANG, stats, derive_questions(LANG, stats), TreeConfig(1000, 5, 1e9)).num_pdfs == 14


def test_questions_hold_singletons_and_silence_with_outside():
    stats, _ = random_stats(np.random.default_rng(5))
    questions = derive_questions(LANG, stats)
    assert {(0, 1), (2,), (3,), (4,)} <= set(questions)
    assert len(set(questions)) == len(questions)


def test_clustering_merges_the_closest_phones_first():
    means = {2: 0.0, 3: 10.0, 4: 0.2, 5: 10.3, 6: 30.0}
    keys = np.array([(0, p, 0, 0) for p in means], dtype=np.int32)
    counts, mean = np.full(5, 10.0), np.array(list(means.values()))[:, None]
    stats = TreeStats(keys, counts, 10 * mean, 10 * (mean**2 + 1))
    assert cluster_phones(list(means), stats) == [(2, 4), (3, 5), (2, 3, 4, 5)][:3]


@given(st.integers(0, 1000))
def test_statistics_of_blocks_add_up(seed):
    random = np.random.default_rng(seed)
    keys = random.integers(0, 3, size=(30, 4)).astype(np.int32)
    x = random.normal(size=(30, 2))
    whole = sum_by_key(keys, np.ones(30), x, x**2)
    parts = [sum_by_key(keys[i : i + 10], np.ones(10), x[i : i + 10], x[i : i + 10] ** 2) for i in (0, 10, 20)]
    merged = merge_stats([parts[0], None, *parts[1:]])
    assert np.array_equal(merged.keys, whole.keys)
    assert np.array_equal(merged.counts, whole.counts)
    assert np.allclose(merged.first, whole.first)
    assert np.allclose(merged.second, whole.second)
