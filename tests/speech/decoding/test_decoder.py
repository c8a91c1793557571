import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from murmur.speech.decoding.decoder import DecodeOptions, Decoder
from murmur.speech.decoding.graph import GraphOptions, build_ctc_graph, build_hclg
from murmur.speech.hmm.transitions import make_transitions
from murmur.speech.hmm.tree import Leaf, Question, Tree, monophone_tree
from murmur.speech.language_model.grammar import (
    Acceptor,
    Arc,
    acceptor_grammar,
    loop_grammar,
    ngram_grammar,
    one_word_grammar,
)
from murmur.speech.language_model.kneser_ney import KneserNey
from murmur.speech.lexicon.lexicon import make_lang
from tests.support.search_oracle import GrammarOracle, HmmOracle, all_hypotheses, ctc_cost

# TWO and TOO sound alike, A begins AB, and B has two pronunciations.
LEXICON = [("TWO", ("t",)), ("TOO", ("t",)), ("A", ("a",)), ("AB", ("a", "b")), ("B", ("b",)), ("B", ("t", "b"))]
TEXT = ["TWO A", "TWO TWO", "TOO B", "AB", "A B A", "B"]
WIDE = DecodeOptions(acoustic_scale=1.0, beam=1e4, max_active=1_000_000, lattice_beam=200.0)


def context_tree(lang):
    """Questions about the left neighbour in state 0 of every phone, and about the right one in state 2 of speech."""
    nodes, roots, pdfs = [], {}, itertools.count()

    def leaf():
        nodes.append(Leaf(next(pdfs)))
        return len(nodes) - 1

    for phone, state in monophone_tree(lang).roots:
        if phone == 1 or state == 1:
            roots[phone, state] = leaf()
        else:
            yes, no = leaf(), leaf()
            nodes.append(Question(state, (0, 1), yes, no) if state == 0 else Question(2, (1, 2), yes, no))
            roots[phone, state] = len(nodes) - 1
    return Tree(3, 1, tuple(nodes), roots)


def system(tree_of, order, options=None):
    lang = make_lang(LEXICON, silence_probability=0.3)
    tree = tree_of(lang)
    transitions = make_transitions(lang, tree)
    model = KneserNey(order).train(TEXT).model
    graph = build_hclg(lang, transitions, ngram_grammar(lang, model), options)
    options = options or GraphOptions()
    hmm = HmmOracle(lang, tree, transitions, options.self_loop_scale, options.transition_scale)
    return lang, graph, GrammarOracle(model), hmm


@pytest.mark.parametrize(
    ("tree_of", "order", "options"),
    [(monophone_tree, 2, None), (monophone_tree, 1, GraphOptions(0.7, 0.4)), (context_tree, 2, None)],
)
def test_decoder_finds_the_best_of_all_word_sequences(tree_of, order, options):
    lang, graph, grammar, hmm = system(tree_of, order, options)
    decoder = Decoder(graph, WIDE)
    random = np.random.default_rng(order)
    heard = set()
    for _ in range(6):
        scores_TP = random.normal(size=(random.integers(6, 11), graph.num_columns)).astype(np.float32) * 3
        costs = all_hypotheses(lang, grammar, hmm, scores_TP, longest=3)
        found = decoder.decode(scores_TP)
        assert found.complete
        assert len(found.labels) == len(scores_TP)
        # minimisation rounds weights to 1 / 1024
        assert found.cost == pytest.approx(min(costs.values()), abs=0.05)
        assert costs[found.words] == pytest.approx(min(costs.values()), abs=0.05)
        heard.add(found.words)
    assert len(heard) > 2


@pytest.mark.parametrize("penalty", [2.5, -1.5])
def test_insertion_penalties_are_paid_once_a_word(penalty):
    lang, graph, grammar, hmm = system(context_tree, 2)
    plain, changed = Decoder(graph, WIDE), Decoder(graph, replace(WIDE, insertion_penalty=penalty))
    random = np.random.default_rng(11)
    different = 0
    for _ in range(8):
        scores_TP = random.normal(size=(random.integers(8, 12), graph.num_columns)).astype(np.float32) * 3
        costs = all_hypotheses(lang, grammar, hmm, scores_TP, longest=4)
        paid = {words: cost + penalty * len(words) for words, cost in costs.items()}
        found = changed.decode(scores_TP)
        assert found.cost == pytest.approx(min(paid.values()), abs=0.05)
        assert paid[found.words] == pytest.approx(found.cost, abs=0.05)
        # the given graph is unchanged
        assert Decoder(graph, WIDE).decode(scores_TP).cost == plain.decode(scores_TP).cost
        assert plain.decode(scores_TP).cost == pytest.approx(min(costs.values()), abs=0.05)
        different += found.words != plain.decode(scores_TP).words
    assert different


def test_nbest_lists_the_best_word_sequences_in_order():
    lang, graph, grammar, hmm = system(monophone_tree, 2)
    scores_TP = np.random.default_rng(7).normal(size=(9, graph.num_columns)).astype(np.float32) * 3
    costs = all_hypotheses(lang, grammar, hmm, scores_TP, longest=3)
    ranked = sorted(costs.values())
    listed = Decoder(graph, WIDE).nbest(scores_TP, 10)
    assert len({h.words for h in listed}) == 10
    for hypothesis, cost in zip(listed, ranked, strict=False):
        assert hypothesis.cost == pytest.approx(cost, abs=0.05)
        assert costs[hypothesis.words] == pytest.approx(cost, abs=0.05)
    assert listed[0].words == Decoder(graph, WIDE).decode(scores_TP).words


def test_acoustic_scale_multiplies_the_scores():
    _, graph, _, _ = system(monophone_tree, 2)
    scores_TP = np.random.default_rng(8).normal(size=(40, graph.num_columns)).astype(np.float32) * 5
    half = DecodeOptions(acoustic_scale=0.5, beam=1e4, max_active=1_000_000)
    one, other = Decoder(graph, WIDE).decode(scores_TP / 2), Decoder(graph, half).decode(scores_TP)
    assert (one.words, one.cost) == (other.words, pytest.approx(other.cost))


def test_word_frames_rise_and_lie_inside():
    _, graph, _, _ = system(monophone_tree, 2)
    scores_TP = np.random.default_rng(9).normal(size=(60, graph.num_columns)).astype(np.float32) * 5
    decoder = Decoder(graph, WIDE)
    found, word_frames = decoder.best_of(*decoder.lattice(scores_TP))
    assert found.words == decoder.decode(scores_TP).words
    assert len(word_frames) == len(found.words) > 3
    assert list(word_frames) == sorted(word_frames)
    assert word_frames[0] >= 0
    assert word_frames[-1] <= 60


def test_too_few_frames_give_a_partial_hypothesis_and_none_an_empty_one():
    _, graph, _, _ = system(monophone_tree, 2)
    decoder = Decoder(graph, WIDE)
    short = decoder.decode(np.zeros((2, graph.num_columns), np.float32))
    assert not short.complete
    assert len(short.labels) == 2
    empty = decoder.decode(np.zeros((0, graph.num_columns), np.float32))
    assert (empty.words, empty.complete) == ((), False)
    assert decoder.nbest(np.zeros((0, graph.num_columns), np.float32), 3) == []


def test_hopeless_scores_end_the_search_without_a_crash():
    _, graph, _, _ = system(monophone_tree, 2)
    found = Decoder(graph, WIDE).decode(np.full((20, graph.num_columns), -np.inf, np.float32))
    assert (found.words, found.complete) == ((), False)


def test_scores_that_do_not_fit_are_refused():
    _, graph, _, _ = system(monophone_tree, 2)
    decoder = Decoder(graph)
    for columns in (graph.num_columns - 1, graph.num_columns + 1, len(graph.columns)):
        with pytest.raises(ValueError, match=f"graph reads {graph.num_columns} columns"):
            decoder.decode(np.zeros((5, columns), np.float32))
    with pytest.raises(ValueError, match="columns"):
        decoder.decode(np.zeros(graph.num_columns, np.float32))
    for bad in (np.nan, np.inf):
        scores_TP = np.zeros((5, graph.num_columns), np.float32)
        scores_TP[3, 1] = bad
        with pytest.raises(ValueError, match=r"nan or \+inf"):
            decoder.decode(scores_TP)
    with pytest.raises(ValueError, match="at least 1"):
        decoder.nbest(np.zeros((5, graph.num_columns), np.float32), 0)
    with pytest.raises(ValueError, match="must be positive"):
        DecodeOptions(beam=0)


@pytest.mark.parametrize("separator", [None, "|"])
def test_ctc_graph_finds_the_best_of_all_word_sequences(separator):
    lang = make_lang([(w, tuple(w.lower())) for w in ("A", "AB", "B", "BA", "AA")])
    tokens = ["<blk>", "b", "|", "a"]
    model = KneserNey(2).train(["A AB", "B BA A", "AA B", "AB"]).model
    graph = build_ctc_graph(lang, tokens, ngram_grammar(lang, model), separator)
    grammar = GrammarOracle(model)
    decoder = Decoder(graph, WIDE)
    random = np.random.default_rng(3)
    compared = 0
    for _ in range(8):
        log_probs_TC = np.log(random.dirichlet(np.full(4, 0.3), size=7) + 1e-6).astype(np.float32)
        costs = {}
        for n in range(4):
            for words in itertools.product(("A", "AB", "B", "BA", "AA"), repeat=n):
                spelled = (separator or "").join(words).lower()
                endings = ("", separator) if separator and words else ("",)
                costs[words] = grammar(words) + min(
                    ctc_cost([tokens.index(c) for c in spelled + e], log_probs_TC) for e in endings
                )
        # longer sequences than the enumerated ones need more frames than there are, or cost more in the grammar
        found = decoder.decode(log_probs_TC)
        if len(found.words) <= 3:
            compared += 1
            assert found.cost == pytest.approx(min(costs.values()), abs=0.05)
            assert costs[found.words] == pytest.approx(min(costs.values()), abs=0.05)
    assert compared >= 5


def test_ctc_sentence_may_end_by_backing_off_without_a_separator():
    lang = make_lang([(w, tuple(w.lower())) for w in ("A", "BA")])
    model = KneserNey(2).train(["BA A", "A A"]).model  # BA is never last
    graph = build_ctc_graph(lang, ["<blk>", "b", "|", "a"], ngram_grammar(lang, model), "|")
    log_probs_TC = np.log(np.full((4, 4), 0.01, np.float32))
    log_probs_TC[[0, 1, 2, 3], [1, 1, 0, 3]] = np.log(0.97)
    found = Decoder(graph, WIDE).decode(log_probs_TC)
    assert (found.words, found.complete) == (("BA",), True)
    assert found.labels.tolist() == [2, 2, 1, 4]


def test_ctc_graph_refuses_unknown_tokens():
    lang = make_lang([("AB", ("a", "b"))])
    with pytest.raises(ValueError, match=r"\['b'\], which are not tokens"):
        build_ctc_graph(lang, ["<blk>", "a"], loop_grammar(lang))
    with pytest.raises(ValueError, match="different names"):
        build_ctc_graph(lang, ["<blk>", "a", "b", "a"], loop_grammar(lang))
    with pytest.raises(ValueError, match=r"\['\|'\], which are not tokens"):
        build_ctc_graph(lang, ["<blk>", "a", "b"], loop_grammar(lang), separator="|")


def test_word_loop_weighs_words():
    lang = make_lang([("X", ("x",)), ("Y", ("x",))])
    transitions = make_transitions(lang, monophone_tree(lang))
    scores_TP = np.zeros((6, transitions.library.num_pdfs), np.float32)
    for probs, heard in (({"X": 0.9, "Y": 0.05}, "X"), ({"X": 0.05, "Y": 0.9}, "Y")):
        loop = Acceptor(tuple(Arc(0, word, -math.log(p), 0) for word, p in probs.items()), {0: 0.0})
        graph = build_hclg(lang, transitions, acceptor_grammar(lang, loop))
        found = [h for h in Decoder(graph, WIDE).nbest(scores_TP, 4) if len(h.words) == 1]
        assert found[0].words == (heard,)
        assert found[1].cost - found[0].cost == pytest.approx(math.log(0.9 / 0.05), abs=0.01)


def test_one_word_grammar_allows_exactly_one_word():
    lang = make_lang(LEXICON)
    transitions = make_transitions(lang, monophone_tree(lang))
    decoder = Decoder(build_hclg(lang, transitions, one_word_grammar(lang)), WIDE)
    columns = transitions.library.num_pdfs
    heard = set()
    for seed in range(12):
        scores_TP = np.random.default_rng(seed).normal(size=(30, columns)).astype(np.float32) * 5
        found = decoder.decode(scores_TP)
        assert found.complete
        assert len(found.words) == 1
        heard.update(found.words)
    assert len(heard) > 1
