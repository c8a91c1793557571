"""Decoding with the user's grammars, against enumeration of their sentences and exact search in each."""

import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from murmur.speech.decoding.decoder import DecodeOptions, Decoder
from murmur.speech.decoding.graph import build_ctc_graph, build_hclg
from murmur.speech.hmm.transitions import make_transitions
from murmur.speech.hmm.tree import monophone_tree
from murmur.speech.language_model.grammar import Acceptor, Arc, acceptor_grammar
from murmur.speech.language_model.grammar_file import read_grammar
from murmur.speech.lexicon.lexicon import make_lang
from tests.support.grammar_oracle import accepted, random_expansion, written
from tests.support.search_oracle import HmmOracle, all_hypotheses, ctc_cost

# a and d sound alike, b begins c.
LEXICON = [("a", ("t",)), ("d", ("t",)), ("b", ("n",)), ("c", ("n", "o"))]
WIDE = DecodeOptions(acoustic_scale=1.0, beam=1e4, max_active=1_000_000)
HEAD = "#JSGF V1.0;\ngrammar g;\n"


def grammar_of(tmp_path, body):
    path = tmp_path / "own.jsgf"
    path.write_text(HEAD + body)
    return read_grammar(path)


def random_grammar(tmp_path, seed):
    """A grammar with sentences of at most three words, and one deterministic only with #0."""
    if seed == 0:
        return grammar_of(tmp_path, "public <r> = (a | b)* c | (a | b | c)* d;")
    random = Random(seed)
    while True:
        x = random_expansion(random, 3)
        try:
            found = grammar_of(tmp_path, f"public <r> = {written(x, random).replace('<tests.', '<')};")
        except ValueError:
            continue
        if any(accepted(found, 3)):
            return found


@pytest.mark.parametrize("seed", range(12))
def test_hybrid_search_finds_the_best_sentence(tmp_path, seed):
    lang = make_lang(LEXICON, silence_probability=0.3)
    tree = monophone_tree(lang)
    transitions = make_transitions(lang, tree)
    acceptor = random_grammar(tmp_path, seed)
    graph = build_hclg(lang, transitions, acceptor_grammar(lang, acceptor))
    costs, hmm = accepted(acceptor, 3), HmmOracle(lang, tree, transitions)
    random = np.random.default_rng(seed)
    decoder = Decoder(graph, WIDE)
    for frames in (6, 9, 11):
        scores_TP = random.normal(size=(frames, graph.num_columns)).astype(np.float32) * 2
        known = all_hypotheses(lang, lambda words: costs.get(words, math.inf), hmm, scores_TP, 3)
        possible = {words: cost for words, cost in known.items() if cost < math.inf}
        found = decoder.decode(scores_TP)
        assert found.complete == bool(possible)
        if possible:
            assert found.cost == pytest.approx(min(possible.values()), abs=1e-2)
            assert possible[found.words] == pytest.approx(found.cost, abs=1e-2)


@pytest.mark.parametrize("separator", [None, " "])
@pytest.mark.parametrize("seed", range(6))
def test_ctc_search_finds_the_best_sentence(tmp_path, seed, separator):
    acceptor = random_grammar(tmp_path, seed)
    lang, tokens = make_lang(LEXICON), ["<blk>", "t", "n", "o", " "]
    graph = build_ctc_graph(lang, tokens, acceptor_grammar(lang, acceptor), separator)
    spelled = {word: [tokens.index(p) for p in phones] for word, phones in LEXICON}
    costs, random = accepted(acceptor, 6), np.random.default_rng(seed)
    for frames in (4, 6):
        scores_TC = random.normal(size=(frames, len(tokens))).astype(np.float32)
        scores_TC -= np.log(np.exp(scores_TC).sum(1, keepdims=True))
        known = {}
        for words, cost in costs.items():
            units = [u for k, w in enumerate(words) for u in ([4] if k and separator else []) + spelled[w]]
            endings = ([], [4]) if separator and words else ([],)  # speech may end with a space
            known[words] = cost + min(ctc_cost(units + ending, scores_TC) for ending in endings)
        best = min(known.values())
        found = Decoder(graph, WIDE).decode(scores_TC)
        assert found.complete == (best < math.inf)
        if found.complete:
            assert found.cost == pytest.approx(best, abs=1e-3)
            assert known[found.words] == pytest.approx(best, abs=1e-3)


def silence(random, transitions):
    """Scores of 60 frames without speech."""
    scores_TP = random.normal(size=(60, transitions.library.num_pdfs)).astype(np.float32)
    scores_TP[:, sorted(set(transitions.pdf_of[1:][transitions.phone_of[1:] == 1]))] += 40
    return scores_TP


@pytest.mark.parametrize("seed", range(5))
def test_a_grammar_of_one_sentence_gives_that_sentence(tmp_path, seed):
    """A search that ends outside a final state by a narrow beam is repeated with a wider one."""
    lang = make_lang([*LEXICON, *((f"w{n}", ("o", "t", "n")) for n in range(50))])
    transitions = make_transitions(lang, monophone_tree(lang))
    graph = build_hclg(lang, transitions, acceptor_grammar(lang, grammar_of(tmp_path, "public <r> = a c w7 b;")))
    scores_TP = silence(np.random.default_rng(seed), transitions)
    narrow = DecodeOptions(acoustic_scale=0.3, beam=1.0, max_active=22)
    assert not Decoder(graph, narrow).decode(scores_TP).complete
    decoder = Decoder(graph, replace(narrow, retries=3))
    found = decoder.decode(scores_TP)
    assert (found.words, found.complete) == (("a", "c", "w7", "b"), True)
    lattice, complete = decoder.lattice(scores_TP)
    assert (decoder.best_of(lattice, complete)[0].words, complete) == (("a", "c", "w7", "b"), True)
    assert not decoder.decode(scores_TP[:20]).complete  # too few frames for all of it
    with pytest.raises(ValueError, match="retries = -1"):
        replace(narrow, retries=-1)


def test_no_search_of_a_large_graph_is_repeated(tmp_path, monkeypatch):
    lang = make_lang(LEXICON)
    transitions = make_transitions(lang, monophone_tree(lang))
    graph = build_hclg(lang, transitions, acceptor_grammar(lang, grammar_of(tmp_path, "public <r> = a c a c;")))
    scores_TP = silence(np.random.default_rng(0), transitions)
    decoder = Decoder(graph, DecodeOptions(acoustic_scale=0.3, beam=1.0, max_active=22, retries=3))
    assert decoder.decode(scores_TP).complete
    monkeypatch.setattr("murmur.speech.decoding.decoder.MOST_RETRIED", graph.fst.num_states * 60 - 1)
    assert not decoder.decode(scores_TP).complete


def test_words_without_pronunciation_are_no_grammar(tmp_path):
    lang = make_lang(LEXICON)
    with pytest.raises(ValueError, match=r"the lexicon lacks words of the grammar: \['e'\]"):
        acceptor_grammar(lang, grammar_of(tmp_path, "public <r> = a e;"))
    with pytest.raises(ValueError, match="the lexicon lacks"):
        acceptor_grammar(lang, Acceptor((Arc(0, "a", 0.0, 1), Arc(0, None, 0.0, 1)), {1: 0.0}))
    found = acceptor_grammar(lang, grammar_of(tmp_path, "public <r> = a | d;"))
    assert found.unreachable == ("b", "c")
    assert found.digest != acceptor_grammar(lang, grammar_of(tmp_path, "public <r> = /2/ a | /1/ d;")).digest
