import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import kaldifst
import numpy as np
import pytest

from murmur.execution.processes import run_in_workers
from murmur.speech.decoding import graph_store
from murmur.speech.decoding.decoder import Decoder
from murmur.speech.decoding.graph import HCLG_STEPS, GraphOptions, build_hclg, untold
from murmur.speech.decoding.graph_store import (
    DamagedGraphError,
    ensure_graph,
    graph_key,
    load_graph,
    outputs_key,
    save_graph,
)
from murmur.speech.hmm.transitions import make_transitions
from murmur.speech.hmm.tree import Leaf, Question, Tree, monophone_tree
from murmur.speech.language_model.grammar import loop_grammar, ngram_grammar, sayable_words, searched_words
from murmur.speech.language_model.kneser_ney import KneserNey
from murmur.speech.lexicon.lexicon import make_lang
from tests.support.graph_words import unread_words

LEXICON = [("YES", ("y",)), ("NO", ("n", "o")), ("KNOW", ("n", "o"))]


def small_system(words="YES NO"):
    lang = make_lang(LEXICON)
    transitions = make_transitions(lang, monophone_tree(lang))
    grammar = ngram_grammar(lang, KneserNey(2).train([words]).model)
    return lang, transitions, grammar


def kept_graph(folder, key, build):
    """The graph in a folder, built first where it is missing, damaged or of another key."""
    return ensure_graph(folder, key, build) or load_graph(folder)


def words_in(graph):
    return {
        graph.words[arc.olabel]
        for state in kaldifst.StateIterator(graph.fst)
        for arc in kaldifst.ArcIterator(graph.fst, state)
        if arc.olabel
    }


def test_words_that_cannot_be_said_are_removed_and_counted():
    lang, transitions, grammar = small_system("YES NO MAYBE <unk> yes")
    assert grammar.removed == ("<unk>", "MAYBE", "yes")
    assert grammar.unreachable == ("KNOW",)
    graph = build_hclg(lang, transitions, grammar)
    assert words_in(graph) == {"YES", "NO"} == searched_words(lang, grammar)
    assert (graph.facts.removed_words, graph.facts.unreachable_words) == (3, 1)


def test_input_labels_are_transition_ids_without_disambiguation():
    lang, transitions, _ = small_system()
    graph = build_hclg(lang, transitions, loop_grammar(lang))
    assert sayable_words(lang) == ["KNOW", "NO", "YES"]
    assert words_in(graph) == {"YES", "NO", "KNOW"}
    labels = {
        arc.ilabel
        for s in kaldifst.StateIterator(graph.fst)
        for arc in kaldifst.ArcIterator(graph.fst, s)
        if arc.ilabel
    }
    assert labels == set(range(1, transitions.num_ids + 1))
    assert len(graph.columns) == transitions.num_ids
    assert graph.num_columns == transitions.library.num_pdfs
    assert graph.columns.tolist() == transitions.pdf_of[1:].tolist()


def test_facts_count_the_arcs():
    lang, transitions, _ = small_system()
    graph = build_hclg(lang, transitions, loop_grammar(lang))
    arcs = [a for s in kaldifst.StateIterator(graph.fst) for a in kaldifst.ArcIterator(graph.fst, s)]
    assert graph.facts.arcs == len(arcs)
    assert graph.facts.states == graph.fst.num_states


def test_words_that_sherpa_drops_are_counted():
    fst = kaldifst.compile("0 1 0 5\n0 1 1 5\n0 1 2 5\n0 1 1 0\n1\n", acceptor=False)
    assert unread_words(fst) == 2
    lang, transitions, _ = small_system()
    graph = build_hclg(lang, transitions, loop_grammar(lang))
    # NO and KNOW sound alike: only the disambiguation symbol, now an epsilon, separates them
    assert graph.facts.dropped_by_sherpa == unread_words(graph.fst) > 0
    distinct = make_lang([("YES", ("y",)), ("NO", ("n", "o"))])
    transitions = make_transitions(distinct, monophone_tree(distinct))
    assert build_hclg(distinct, transitions, loop_grammar(distinct)).facts.dropped_by_sherpa == 0


def test_wrong_partners_are_refused():
    lang, transitions, grammar = small_system()
    other = make_lang([("YES", ("y", "e"))])
    with pytest.raises(ValueError, match=r"transition model has 4 phones, the lexicon 3"):
        build_hclg(other, transitions, grammar)
    with pytest.raises(ValueError, match="is one of them in lower case"):
        ngram_grammar(lang, KneserNey(1).train(["yes no"]).model)
    no_marks, _ = KneserNey(1).train(["YES NO"]).model.restricted({"YES"})
    no_marks = replace(no_marks, words=tuple(w.strip("<>") for w in no_marks.words))
    with pytest.raises(ValueError, match="no <s> and no </s>"):
        ngram_grammar(lang, no_marks)


@pytest.mark.parametrize("odd", ["TWO WORDS", "a\u00a0b", ""])
def test_a_malformed_symbol_never_reaches_the_library(odd):
    lang, _, _ = small_system()
    table = {**lang.words, odd: len(lang.words)}
    with pytest.raises(ValueError, match="white space"):
        ngram_grammar(replace(lang, words=table), KneserNey(1).train(["YES"]).model)


def test_stored_graph_is_the_same(tmp_path):
    lang, transitions, grammar = small_system()
    graph = build_hclg(lang, transitions, grammar)
    save_graph(graph, tmp_path / "graph", "key")
    again = load_graph(tmp_path / "graph")
    assert again.fst.to_str() == graph.fst.to_str()
    assert (again.words, again.num_columns, again.facts) == (graph.words, graph.num_columns, graph.facts)
    assert again.columns.tolist() == graph.columns.tolist()
    scores_TP = np.random.default_rng(0).normal(size=(50, graph.num_columns)).astype(np.float32)
    assert Decoder(again).decode(scores_TP).words == Decoder(graph).decode(scores_TP).words
    table = dict(line.split() for line in (tmp_path / "graph" / "words.txt").read_text(encoding="utf-8").splitlines())
    assert {word: int(label) for word, label in table.items()} == lang.words


def cut(path):
    path.write_bytes(path.read_bytes()[:-5])


def flip(path):
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)


def other_format(path):
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), "format": 0}), encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("graph.fst", cut),
        ("graph.fst", flip),
        ("graph.fst", os.unlink),
        ("graph.json", cut),
        ("graph.json", other_format),
    ],
)
def test_damage_is_found_and_made_anew(tmp_path, name, damage):
    lang, transitions, grammar = small_system()
    graph = build_hclg(lang, transitions, grammar)
    folder = tmp_path / "graph"
    save_graph(graph, folder, "key")
    damage(folder / name)
    with pytest.raises(DamagedGraphError, match="build it again"):
        load_graph(folder)
    builds = []
    for _ in range(2):
        found = kept_graph(folder, "key", lambda: builds.append(1) or graph)
        assert found.fst.to_str() == graph.fst.to_str()
    assert len(builds) == 1


def test_one_of_several_builds_a_graph_and_the_others_wait(tmp_path):
    """Without the lock each builds it, and one removes the folder that another has just written."""
    graph, builds, begun = build_hclg(*small_system()), [], threading.Barrier(3)

    def build():
        builds.append(1)
        time.sleep(0.3)
        return graph

    def make(_):
        begun.wait()
        return kept_graph(tmp_path / "graph", "key", build).fst.to_str()

    with ThreadPoolExecutor(3) as pool:
        found = set(pool.map(make, range(3)))
    assert found == {graph.fst.to_str()}
    assert len(builds) == 1


def test_missing_graph(tmp_path):
    with pytest.raises(FileNotFoundError, match="no decoding graph"):
        load_graph(tmp_path)


def test_another_key_is_built_again(tmp_path):
    lang, transitions, grammar = small_system()
    graph = build_hclg(lang, transitions, grammar)
    builds = []
    for key in ("a", "a", "b", "b"):
        kept_graph(tmp_path / "graph", key, lambda: builds.append(1) or graph)
    assert len(builds) == 2


def test_key_changes_with_each_ingredient():
    lang, transitions, grammar = small_system()
    other_probs = transitions.log_probs.copy()
    other_probs[1:] = np.log(0.5)
    other_lang = make_lang(LEXICON, silence_probability=0.4)
    keys = [
        graph_key(lang, grammar, transitions),
        graph_key(lang, small_system("NO YES")[2], transitions),
        graph_key(lang, grammar, make_transitions(lang, monophone_tree(lang), other_probs)),
        graph_key(other_lang, grammar, transitions),
        graph_key(lang, grammar, transitions, GraphOptions(self_loop_scale=0.2)),
        graph_key(lang, grammar),
    ]
    assert len(set(keys)) == len(keys)
    again_lang, again_transitions, again_grammar = small_system()
    assert graph_key(again_lang, again_grammar, again_transitions) == keys[0]


def test_outputs_are_phones_topology_and_tree_without_probabilities_and_words():
    lang, transitions, _ = small_system()
    other_probs = transitions.log_probs.copy()
    other_probs[1:] = np.log(0.5)
    tree = monophone_tree(lang)
    key = outputs_key(lang, transitions)
    assert outputs_key(lang, make_transitions(lang, tree, other_probs)) == key
    others = make_lang(LEXICON, silence_probability=0.4)
    assert outputs_key(others, make_transitions(others, monophone_tree(others))) == key
    swapped = replace(tree, nodes=(tree.nodes[1], tree.nodes[0], *tree.nodes[2:]))
    assert outputs_key(lang, make_transitions(lang, swapped)) != key
    asked = [asking_left_neighbour(tree, *branches) for branches in (("old", "new"), ("new", "old"))]
    one, two = (outputs_key(lang, make_transitions(lang, each)) for each in asked)
    assert len({one, two, key}) == 3


def asking_left_neighbour(tree, then, otherwise):
    """The tree with a question about the left neighbour at one root, whose branches are its leaf and a new one."""
    place, old = min(tree.roots.items())
    new = len(tree.nodes)
    number = {"old": old, "new": new}
    nodes = (*tree.nodes, Leaf(new), Question(0, (2, 3), number[then], number[otherwise]))
    return Tree(3, 1, nodes, {**tree.roots, place: new + 1})


@pytest.mark.processes
def test_a_writer_killed_half_way_leaves_no_graph(tmp_path):
    program = (
        "import os, signal, sys\n"
        "import murmur.speech.decoding.graph_store as store\n"
        "from tests.speech.decoding.test_graph import build_hclg, small_system\n"
        "store._sha256 = lambda path: os.kill(os.getpid(), signal.SIGKILL)\n"
        "store.save_graph(build_hclg(*small_system()), store.Path(sys.argv[1]), 'key')\n"
    )
    folder, root = tmp_path / "graph", Path(__file__).parents[3]
    command = [sys.executable, "-c", program, str(folder)]
    done = subprocess.run(command, cwd=root, check=False, capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert any(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError):
        load_graph(folder)
    graph = build_hclg(*small_system())
    assert ensure_graph(folder, "key", lambda: graph) is graph
    assert load_graph(folder).fst.to_str() == graph.fst.to_str()


def fails(_grammar, tell):
    tell("grammar", 0, 1)
    raise ValueError("no such graph")


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_a_large_graph_is_built_in_a_process_of_its_own(tmp_path, monkeypatch):
    """The same bits; errors are raised again, and no other file is left in the folder."""
    monkeypatch.setattr(graph_store, "LARGE_STATES", 0)
    lang, transitions, grammar = small_system()
    here, apart = tmp_path / "here", tmp_path / "apart"
    save_graph(build_hclg(lang, transitions, grammar), here, "key")
    scratch = tmp_path / "scratch"
    build = partial(build_hclg, lang, transitions, grammar)
    steps = []
    save_graph(graph_store.build_graph(build, grammar, scratch, lambda *step: steps.append(step)), apart, "key")
    assert [done for _, done, _ in steps] == list(range(HCLG_STEPS))
    assert {of for _, _, of in steps} == {HCLG_STEPS}
    for file in here.iterdir():
        assert (apart / file.name).read_bytes() == file.read_bytes()
    with pytest.raises(ValueError, match="no such graph"):
        graph_store.build_graph(partial(fails, grammar), grammar, scratch, untold)
    assert not list(scratch.iterdir())


def large_graph_of_a_worker(folder):
    graph_store.LARGE_STATES = 0
    lang, transitions, grammar = small_system()
    build = partial(build_hclg, lang, transitions, grammar)
    save_graph(graph_store.build_graph(build, grammar, folder, untold), folder, "key")


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_a_worker_builds_a_large_graph_itself(tmp_path):
    list(run_in_workers([partial(large_graph_of_a_worker, tmp_path / "made")], 1))
    save_graph(build_hclg(*small_system()), tmp_path / "here", "key")
    for file in (tmp_path / "here").iterdir():
        assert (tmp_path / "made" / file.name).read_bytes() == file.read_bytes()
