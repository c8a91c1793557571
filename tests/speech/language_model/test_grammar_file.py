"""Grammars against the list of their sentences, and refused grammars."""

import math
import re
from random import Random

import pytest

from murmur.speech.language_model import grammar, grammar_file
from murmur.speech.language_model.grammar import Acceptor, Arc, deterministic
from murmur.speech.language_model.grammar_file import acceptor_of_rules, read_grammar, read_jsgf, read_words
from murmur.speech.lexicon.lexicon import BACKOFF
from tests.support.grammar_oracle import accepted, random_expansion, sentences, written

HEAD = "#JSGF V1.0 UTF-8 en;\ngrammar tests;\n"


def jsgf(tmp_path, body, head=HEAD):
    path = tmp_path / "own.jsgf"
    path.write_text(head + body, encoding="utf-8")
    return path


def said(path, longest=6):
    return accepted(read_grammar(path), longest)


@pytest.mark.parametrize("seed", range(150))
def test_sentences_and_costs_are_those_of_enumeration(tmp_path, seed):
    random = Random(seed)
    rules = {}
    for name in ("first", "second"):
        rules[name] = random_expansion(random, 2, rules)
    rules["whole"] = random_expansion(random, 3, rules)
    body = "".join(
        f"{'public ' if name == 'whole' else ''}<{name}> = {written(x, random)};\n" for name, x in rules.items()
    )
    path = jsgf(tmp_path, body)
    wanted = sentences(rules["whole"], rules, 5)
    longer = sentences(rules["whole"], rules, 12) if not any(wanted) else wanted
    if not any(longer):
        with pytest.raises(ValueError, match=f"{re.escape(str(path))}: the grammar allows no sentence with a word"):
            read_grammar(path)
        return
    found = read_grammar(path)
    assert accepted(found, 5) == pytest.approx(wanted, abs=1e-4)
    assert len({(arc.source, arc.word) for arc in found.arcs}) == len(found.arcs)
    assert all(arc.word is not None for arc in found.arcs)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("public <r> = a b;", {"a b": 1}),
        ("public <r> = a | b | a b;", {"a": 1 / 3, "b": 1 / 3, "a b": 1 / 3}),
        ("public <r> = /3/ a | /1/ b;", {"a": 0.75, "b": 0.25}),
        ("public <r> = /1e-3/ a | /0/ b | /1e308/ c;", {"a": 1e-311, "c": 1}),
        ("public <r> = /1/ a | /0/ <r> | /0/ <missing>;", {"a": 1}),
        ("public <r> = [a] b;", {"b": 0.5, "a b": 0.5}),
        ("public <r> = a*;", {"a " * n: 0.5 ** (n + 1) for n in range(7)}),
        ("public <r> = a+;", {"a " * n: 0.5**n for n in range(1, 7)}),
        ("public <r> = (a b)* a;", {"a": 0.5, "a b a": 0.25, "a b a b a": 0.125}),
        ("public <r> = <x> [<x>]; <x> = a | <y>; <y> = b;",
         {"a": 1 / 4, "b": 1 / 4, "a a": 1 / 8, "a b": 1 / 8, "b a": 1 / 8, "b b": 1 / 8}),
        ("public <r> = a; public <s> = b; <t> = c;", {"a": 0.5, "b": 0.5}),
        ("public <r> = a <NULL> b | c <VOID>;", {"a b": 0.5}),
        ('public <r> = "a b" c;', {"a b c": 1}),
        (r"public <r> = a\* \<b\> {tag \} } c {};", {"a* <b> c": 1}),
        ("public <r> = a {public <x> = b;} /* c; */ // d\n | e;", {"a": 0.5, "e": 0.5}),
        ("public <r> = a b* c | a;", {"a": 1 / 2} | {"a " + "b " * n + "c": 0.5 ** (n + 2) for n in range(5)}),
        ("public <r> = a | a | b;", {"a": 1 / 3, "b": 1 / 3}),
        ("public <r> = cafe\u0301;", {"caf\u00e9": 1}),
        ("public <tests.r> = <tests.x>; <x> = a;", {"a": 1}),
    ],
)  # fmt: skip
def test_each_construct(tmp_path, body, wanted):
    costs = {tuple(text.split()): -math.log(p) for text, p in wanted.items()}
    assert said(jsgf(tmp_path, body)) == pytest.approx(costs, abs=1e-4)


@pytest.mark.parametrize(
    ("body", "line", "says"),
    [
        ("public <r> = a <x>;", 3, "there is no rule <x> in this file"),
        ("public <r> = a\n<r>;", 4, "rule <r> contains itself (<r> -> <r>)"),
        ("<x> = a <y>;\n<y> = [<z>];\n<z> = b <x> | c;\npublic <r> = d;", 5, "<x> -> <y> -> <z> -> <x>"),
        ("public <r> = a;\n<r> = b;", 4, "rule <r> is defined in line 3 already"),
        ("public <NULL> = a;", 3, "rule <NULL> is reserved"),
        ("import <other.*>;\npublic <r> = a;", 3, "imports are not read"),
        ("public <r> = <other.x>;", 3, "<other.x> is a rule of another grammar"),
        ("public <r> = a | ;", 3, "for nothing write <NULL>"),
        ("public <r> = a (b;\n", 3, "expected `)`, found ';'"),
        ("public <r> = a ]\n;", 3, "expected `;`, found ']'"),
        ("public <r> = a", 3, "the file ends where `;` is expected"),
        ("public <r> = /x/ a | b;", 3, "weight /x/ must be a number"),
        ("public <r> = /-1/ a | /1/ b;", 3, "weight /-1/ must be a number"),
        ("public <r> = /nan/ a;", 3, "weight /nan/"),
        ("public <r> = /1/ a | b;", 3, "1 of 2 alternatives have a weight"),
        ("public <r> = a /2/ b;", 3, "expected `;`, found '/2/'"),
        ("public <r> = a**;", 3, "one operator is enough"),
        ("public <r> = * a;", 3, "expected words, a rule or a group, found '*'"),
        ("public <r> = a\n  {b;", 4, "cannot read '{b;'"),
        ('public <r> = "a;', 3, "cannot read"),
        ('public <r> = " ";', 3, "an empty token"),
        ("public <r> = a #0;", 3, "'#0' is a reserved symbol"),
        ('public <r> = "<s>";', 3, "'<s>' is a reserved symbol"),
        ("public <r> a;", 3, "expected `=`, found 'a'"),
        ("rule = a;", 3, "expected a rule `<name> = ...;`, found 'rule'"),
        ("public <r> = " + "(" * 60 + "a" + ")" * 60 + ";", 3, "more than 50 groups within each other"),
    ],
)
def test_refused_with_file_and_line(tmp_path, body, line, says):
    path = jsgf(tmp_path, body)
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path}:{line}: ')}.*{re.escape(says)}"):
        read_jsgf(path)


@pytest.mark.parametrize("head", ["", "#JSGF V2.0;\n", "#JSGF V1.0\ngrammar x;\n", "grammar x;\n"])
def test_a_header_is_needed(tmp_path, head):
    with pytest.raises(ValueError, match=":1: a JSGF file begins with"):
        read_jsgf(jsgf(tmp_path, "public <r> = a;", head))


def test_a_grammar_that_cannot_be_spoken_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"own\.jsgf: no rule is public"):
        read_grammar(jsgf(tmp_path, "<r> = a;"))
    for body in ("public <r> = <VOID>;", "public <r> = <NULL>;", "public <r> = a <VOID> | [<NULL>];"):
        with pytest.raises(ValueError, match=r"own\.jsgf: the grammar allows no sentence with a word"):
            read_grammar(jsgf(tmp_path, body))
    (tmp_path / "latin.jsgf").write_bytes(b"#JSGF V1.0;\ngrammar x;\npublic <r> = caf\xe9;\n")
    with pytest.raises(ValueError, match="is not UTF-8"):
        read_grammar(tmp_path / "latin.jsgf")


def test_rules_that_double_are_refused_before_they_fill_the_memory(tmp_path, monkeypatch):
    for module in (grammar, grammar_file):
        monkeypatch.setattr(module, "MOST_ARCS", 1000)
    for leaf in ("a", "<NULL>", "<VOID>"):
        rules = "".join(f"<r{n}> = <r{n + 1}> <r{n + 1}>;\n" for n in range(40))
        with pytest.raises(ValueError, match="the rules take more than 1000 arcs when they are written out"):
            read_grammar(jsgf(tmp_path, f"public <r> = <r0>;\n{rules}<r40> = {leaf};\n"))
    optional = "[a] [b] " * 40
    with pytest.raises(ValueError, match="more than 1000 arcs without its empty transitions"):
        read_grammar(jsgf(tmp_path, f"public <r> = {optional} | ({optional})* c | (a | b | d)* d;\n"))


def test_a_chain_of_many_rules_is_no_recursion(tmp_path):
    chain = "".join(f"<r{n}> = <r{n + 1}>;\n" for n in range(3000))
    assert said(jsgf(tmp_path, f"public <r> = <r0>;\n{chain}<r3000> = a;\n")) == {("a",): 0.0}


def test_lists_stay_small(tmp_path):
    names = [f"name{n}" for n in range(3000)]
    found = read_grammar(jsgf(tmp_path, f"public <r> = call <who> [and <who>]; <who> = {' | '.join(names)};"))
    assert len(found.arcs) == 2 + 2 * len(names)
    loop = read_grammar(jsgf(tmp_path, f"public <r> = ({' | '.join(names)})+;"))
    assert len(loop.arcs) == 2 * len(names)
    flat = read_grammar(jsgf(tmp_path, f"public <r> = {' | '.join(f'please call {n}' for n in names)};"))
    assert len(flat.arcs) == 2 + len(names)


def test_ambiguous_loops_are_told_apart(tmp_path):
    """Different loop probabilities over the same words, for which no finite deterministic acceptor exists."""
    path = jsgf(tmp_path, "public <r> = (a | b)* x | (a | b | c)* y;")
    found = read_grammar(path)
    assert any(arc.word == BACKOFF for arc in found.arcs)
    assert len({(arc.source, arc.word) for arc in found.arcs}) == len(found.arcs)
    body = ("alt", (None, ("word", "a")), (None, ("word", "b")))
    more = ("alt", *((None, ("word", w)) for w in "abc"))
    wanted = ("alt", (None, ("seq", ("star", body), ("word", "x"))), (None, ("seq", ("star", more), ("word", "y"))))
    assert accepted(found, 5) == pytest.approx(sentences(wanted, {}, 5), abs=1e-6)


@pytest.mark.parametrize("seed", range(40))
def test_marks_change_no_sentence(seed):
    """The method that separates arcs by #0, also on automata that do not need it."""
    random = Random(seed)
    states = random.randint(2, 5)
    arcs = tuple(
        Arc(random.randrange(states), random.choice(["a", "b", None]), random.choice([0.0, 0.3, 1.1]),
            random.randrange(states))
        for _ in range(random.randint(3, 9))
    )  # fmt: skip
    plain = Acceptor(arcs, {random.randrange(states): 0.2, random.randrange(states): 0.0}).trimmed()
    if not plain.words:
        return
    closed = grammar._Closed(plain)
    marked = grammar._marked(closed)
    assert len({(arc.source, arc.word) for arc in marked.arcs}) == len(marked.arcs)
    wanted = paths(plain, 4)
    assert accepted(marked, 4) == pytest.approx(wanted, abs=1e-9)
    assert accepted(deterministic(plain), 4) == pytest.approx(wanted, abs=1e-4)


def paths(acceptor, longest):
    """Bellman-Ford over (state, words so far)."""
    best = {(0, ()): 0.0}
    while True:
        after = dict(best)
        for (state, words), cost in best.items():
            for arc in acceptor.arcs:
                spoken = words if arc.word is None else (*words, arc.word)
                if arc.source == state and len(spoken) <= longest:
                    key = arc.target, spoken
                    after[key] = min(after.get(key, math.inf), cost + arc.cost)
        if after == best:
            break
        best = after
    found = {}
    for (state, words), cost in best.items():
        if state in acceptor.finals:
            found[words] = min(found.get(words, math.inf), cost + acceptor.finals[state])
    return found


def test_equal_grammars_have_equal_acceptors(tmp_path):
    first = read_grammar(jsgf(tmp_path, "public <r> = a (b | c) [d];"))
    second = read_grammar(jsgf(tmp_path, "// other layout\npublic <r> = a <x> [d];\n<x> = b | (c);"))
    assert first == second


def test_probabilities_of_all_sentences_sum_to_one(tmp_path):
    rules = acceptor_of_rules(read_jsgf(jsgf(tmp_path, "public <r> = /2/ (b | c)+ [a] d* | /1/ e;")), "r")
    total = sum(math.exp(-cost) for cost in accepted(deterministic(rules), 14).values())
    assert total == pytest.approx(1.0, abs=0.01)


TEXT = "7 8 turn\n8 9 <eps> 0.5\n9 8 on 0.25\n8 7 off 1\n9 0.125\n8\n"


def test_acceptors_in_text_form(tmp_path):
    path = tmp_path / "own.txt"
    path.write_text(TEXT)
    wanted = {("turn",): 0.0, ("turn", "on"): 0.75, ("turn", "on", "on"): 1.5, ("turn", "off", "turn"): 1.0}
    assert accepted(read_grammar(path), 3) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 1 a\nx 2 b\n1\n", ":2: 'x' is no number of a state"),
        ("turn on\n", ":1: 'turn' is no number of a state"),
        ("0 1 a -1\n1\n", ":1: cost '-1' must be a number of at least 0"),
        ("0 1 a b\n1\n", ":1: cost 'b'"),
        ("0 1 a inf\n1\n", ":1: cost 'inf'"),
        ("0 1 a a 0.5\n1\n", ":1: 5 fields"),
        ("0 1 #0\n1\n", ":1: '#0' is a reserved symbol"),
        ("0 1 a\n1\n1 0.5\n", ":3: state 1 is final in an earlier line already"),
        ("0 1 a\n", ": no sentence with a word leads from the first state to a final one"),
        ("0 1 <eps>\n1\n", ": no sentence with a word"),
        ("", ": no sentence with a word"),
        ("\\data\\\nngram 1=2\n", "looks like a language model, not like a grammar: give it as --lm"),
    ],
)
def test_acceptors_that_are_refused(tmp_path, text, says):
    path = tmp_path / "own.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(f"{path}{says}" if says[0] == ":" else says)):
        read_grammar(path)


def test_word_lists(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("\ufeff# of the kitchen\n  pan \r\n\ncafe\u0301\npan\n#tag\n", encoding="utf-8")
    assert read_words(path) == ("caf\u00e9", "pan")
    for text, says in [("two words\n", ":1: 2 words on a line"), ("a\n<s>\n", ":2: '<s>' is a reserved"),
                       ("a\n#3\n", ":2: '#3' is a reserved"), ("# no\n", " holds no word")]:  # fmt: skip
        path.write_text(text)
        with pytest.raises(ValueError, match=re.escape(f"{path}{says}")):
            read_words(path)
    with pytest.raises(FileNotFoundError, match="there is no word list"):
        read_words(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="there is no grammar file"):
        read_grammar(tmp_path / "nowhere")
