"""Lexicons: labels, disambiguation, transducers, and the formats of dictionaries."""

from __future__ import annotations

import logging
import tracemalloc
from collections import Counter
from pathlib import Path

import kaldifst
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.speech.lexicon.lexicon import (
    Entry,
    Lang,
    listed_words,
    make_lang,
    read_lexicon,
    split_known,
    without_stress,
    write_symbols,
)
from murmur.speech.lexicon.lexicon_fst import decoding_lexicon, training_lexicon

TOY = [("TWO", ("T", "UW")), ("TOO", ("T", "UW")), ("TOON", ("T", "UW", "N")), ("ON", ("AA", "N")), ("ON", ("AO", "N"))]

entries_strategy = st.lists(
    st.tuples(st.sampled_from("ABCDE"), st.lists(st.sampled_from(["x", "y", "z"]), min_size=1, max_size=3).map(tuple)),
    min_size=1,
    max_size=12,
    unique=True,
)


def test_a_byte_order_mark_is_no_part_of_a_word(tmp_path):
    (tmp_path / "lexicon.txt").write_text("ON AA N\r\n", encoding="utf-8-sig", newline="")
    assert read_lexicon(tmp_path / "lexicon.txt") == [("ON", ("AA", "N"))]


def accepted_pairs(fst, max_arcs):
    """All (input labels, output labels) of paths of at most `max_arcs` arcs, without epsilons, with their counts."""
    found = Counter()

    def walk(state, ins, outs, arcs):
        if fst.final(state).value != float("inf"):
            found[ins, outs] += 1
        if arcs < max_arcs:
            for a in kaldifst.ArcIterator(fst, state):
                walk(
                    a.nextstate,
                    ins + ((a.ilabel,) if a.ilabel else ()),
                    outs + ((a.olabel,) if a.olabel else ()),
                    arcs + 1,
                )

    walk(fst.start, (), (), 0)
    return found


def test_labels_follow_the_documented_layout():
    lang = make_lang(TOY)
    assert lang.phones == ("<eps>", "SIL", "AA", "AO", "N", "T", "UW")
    assert lang.words == {"<eps>": 0, "ON": 1, "TOO": 2, "TOON": 3, "TWO": 4, "#0": 5, "<s>": 6, "</s>": 7}
    assert lang.num_phones == 6
    assert lang.backoff == 7
    assert lang.num_disambig == 2
    assert lang.disambig == [7, 8, 9, 10]
    assert [p.disambig for p in lang.prons] == [1, 2, 0, 0, 0]
    assert lang.word_of[4] == "TWO"


@given(entries_strategy)
def test_disambiguated_pronunciations_differ_and_none_begins_another(entries):
    lang = make_lang(entries)
    marked = [p.phones + ((lang.backoff + p.disambig,) if p.disambig else ()) for p in lang.prons]
    assert len(set(marked)) == len(marked)
    for a in marked:
        assert not any(b[: len(a)] == a for b in marked if b != a)


@given(entries_strategy)
def test_json_round_trip_is_exact(entries):
    lang = make_lang(entries, silence_probability=0.25)
    assert Lang.from_json(lang.to_json()) == lang


@settings(max_examples=25, deadline=None)
@given(entries_strategy.map(lambda e: e[:4]))
def test_training_lexicon_accepts_words_with_optional_silence_around_each(entries):
    lang = make_lang(entries)
    found = set(accepted_pairs(training_lexicon(lang), 5))
    expected = {((), ()), ((1,), ())}
    for pron in lang.prons:
        for before in ((), (1,)):
            for behind in ((), (1,)):
                expected.add((before + pron.phones + behind, (lang.words[pron.word],)))
    assert {pair for pair in found if len(pair[1]) <= 1 and len(pair[0]) <= 3} == {
        pair for pair in expected if len(pair[0]) <= 3
    }


def test_decoding_lexicon_determinises_with_homophones_and_prefixes():
    lang = make_lang(TOY)
    fst = decoding_lexicon(lang)
    kaldifst.determinize_star(fst)
    seen = {(s, a.ilabel) for s in kaldifst.StateIterator(fst) for a in kaldifst.ArcIterator(fst, s)}
    assert len(seen) == sum(fst.num_arcs(s) for s in kaldifst.StateIterator(fst))


def test_decoding_lexicon_passes_backoff_and_marks_silence():
    lang = make_lang(TOY)
    pairs = accepted_pairs(decoding_lexicon(lang), 3)
    assert ((lang.backoff,), (lang.words["#0"],)) in pairs
    assert ((1, lang.disambig[-1]), ()) in pairs
    assert ((1,), ()) not in pairs


def test_weights_of_the_ways_behind_a_word_are_probabilities():
    lang = make_lang([("A", ("x",))], silence_probability=0.9)
    fst = training_lexicon(lang)
    loop = next(s for s in kaldifst.StateIterator(fst) if fst.final(s).value == 0)
    costs = sorted(a.weight.value for a in kaldifst.ArcIterator(fst, loop) if a.ilabel == 2)
    assert costs == pytest.approx([0.105360516, 2.302585093])


def test_reads_kaldi_and_cmudict_forms(tmp_path):
    path = tmp_path / "lexicon.txt"
    path.write_text(";;; comment\nA  AH0\nA(2)  EY1\nCAFE\u0301\tK AE # accent\n\nA AH0\n", encoding="utf-8")
    entries = read_lexicon(path)
    assert entries == [("A", ("AH0",)), ("A", ("EY1",)), ("CAF\u00c9", ("K", "AE"))]
    assert without_stress(entries)[:2] == [("A", ("AH",)), ("A", ("EY",))]
    others = [("deux", ("d", "2")), ("ma", ("m", "a1")), ("mi", ("m", "i3")), ("AX", ("AX12", "B0"))]
    assert without_stress(others) == others  # not CMUdict's


@pytest.mark.parametrize(
    ("line", "match"), [("ALONE\n", ":2: 'ALONE' has no phones"), ("#0 X\n", "reserved"), ("", "no pron")]
)
def test_bad_lexicon_lines_are_refused_with_their_place(tmp_path, line, match):
    path = tmp_path / "lexicon.txt"
    path.write_text("\n" + line, encoding="utf-8")
    with pytest.raises(ValueError, match=match):
        read_lexicon(path)


def test_unknown_words_are_named_and_refused():
    kept, refused = split_known(make_lang(TOY), {"u1": "TWO ON", "u2": "TWO FOUR FOUR", "u3": "FIVE", "u4": ""})
    assert kept == {"u1": "TWO ON", "u4": ""}
    assert refused == {"u2": ["FOUR", "FOUR"], "u3": ["FIVE"]}
    with pytest.raises(KeyError, match="FIVE"):
        make_lang(TOY).word_ids("TWO FIVE")


def test_reserved_symbols_are_not_words():
    lang = make_lang(TOY)
    assert lang.unknown_words("<eps> #0 <s> TWO") == ["<eps>", "#0", "<s>"]
    with pytest.raises(ValueError, match="reserved"):
        make_lang([("<s>", ("x",))])


def test_other_vocabulary_keeps_phone_labels():
    lang = make_lang([*TOY, ("<UNK>", ("SPN",))])
    assert lang.phones[:3] == ("<eps>", "SIL", "SPN")
    assert lang.silence_ids == (1, 2)
    larger = lang.with_lexicon([("TON", ("T", "AA", "N")), ("NO", ("N", "UW"))])
    assert larger.phones == lang.phones
    assert larger.num_silence == 2
    assert set(larger.words) >= {"TON", "NO"}
    with pytest.raises(ValueError, match="Z"):
        lang.with_lexicon([("ZOO", ("Z", "UW"))])


def test_symbol_tables_are_written_by_label_and_refuse_white_space(tmp_path):
    path = tmp_path / "words.txt"
    write_symbols({"<eps>": 0, "B": 2, "A": 1}, path)
    assert path.read_text() == "<eps> 0\nA 1\nB 2\n"
    for table in ({"A B": 0}, {"": 0}, {"A": 0, "B": 0}):
        with pytest.raises(ValueError, match="unique"):
            write_symbols(table, path)


def test_silence_probability_must_leave_both_ways():
    with pytest.raises(ValueError, match="between 0 and 1"):
        make_lang(TOY).with_silence_probability(1.0)


def corpora():
    folder = (Path(__file__).resolve().parents[3] / "../shared/corpora").resolve()
    if not folder.is_dir():
        pytest.skip("the speech corpora are not beside the repository")
    return folder


def test_real_lexicons_are_read():
    an4 = read_lexicon(corpora() / "an4_mfcc" / "an4.dic")
    assert ("A", ("EY",)) in an4
    assert not any("(" in word for word, _ in an4)
    assert make_lang(read_lexicon(corpora() / "librispeech_mini_s" / "lexicon.txt")).num_phones == 40


def test_a_comment_begins_after_a_space_or_a_tab(tmp_path):
    (tmp_path / "lexicon.txt").write_text("YES Y\t# of one phone\nNO N OW # of two\nC#\tS IY\n")
    assert read_lexicon(tmp_path / "lexicon.txt") == [("YES", ("Y",)), ("NO", ("N", "OW")), ("C#", ("S", "IY"))]


@given(entries_strategy)
def test_disambiguation_follows_the_set_of_all_prefixes(entries):
    """The definition, with every prefix stored."""
    lang = make_lang(entries)
    prefixes = {p.phones[:n] for p in lang.prons for n in range(1, len(p.phones))}
    shared = Counter(p.phones for p in lang.prons)
    assert all((p.disambig > 0) == (shared[p.phones] > 1 or p.phones in prefixes) for p in lang.prons)


@pytest.mark.parametrize("words", [1, 3])
def test_memory_grows_with_the_length_of_a_pronunciation_not_with_its_square(words):
    entries = [(f"W{n}", ("x", "y") * 8000 + ("z",) * n) for n in range(words)]
    tracemalloc.start()
    lang = make_lang(entries)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 50_000_000
    assert [p.disambig for p in lang.prons] == [1] * (words - 1) + [0]


THE = [("the", ("DH", "AH")), ("lamp", ("L", "AE"))]


def read(tmp_path: Path, text: str, phones: tuple[str, ...] = ()) -> list[Entry]:
    (tmp_path / "lex").write_text(text, encoding="utf-8")
    return read_lexicon(tmp_path / "lex", phones)


@pytest.mark.parametrize(
    "text",
    [
        "the 0.8 DH AH\nlamp 1.0 L AE\n",  # lexiconp.txt
        "the\t0.8\tDH AH\nlamp\t1\tL AE\n",  # a probability of 1 as a whole number
        "the 0.8 0.2 1.1 0.93 DH AH\nlamp 1 0.2 1 1e-05 L AE\n",  # lexiconp_silprob.txt, MFA
        "the 0.99 0.2 1.1 0.93 DH AH\nlamp 0.5 L AE\n",  # MFA, with some probabilities alone
        "the 0.8 DH AH\nlamp L AE\n",  # a probability where it is not 1
        "the 0,8 DH AH\nlamp 1,0 L AE\n",
        "the -0.22 DH AH\nlamp -1.5e+00 L AE\n",  # logarithms
        "the [the] DH AH\nlamp [] L AE\n",  # HTK
        "the [THE] 0.8 DH AH\nlamp [LAMP] 1.0 L AE\n",
        "the @-0.22 [the] DH AH\nlamp @-1 {lamp} L AE\n",  # Julius
        "the [the] @-0.22 DH AH\nlamp @-1 L AE\n",
    ],
)
def test_figures_and_output_symbols_are_left_out_and_told(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert read(tmp_path, text) == THE
    (told,) = caplog.messages
    assert f"{tmp_path / 'lex'}: output symbols and probabilities of " in told
    assert " of 2 lines are not used, such as 'the " in told


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("deux d 2\neux 2\n9 9\n", [("deux", ("d", "2")), ("eux", ("2",)), ("9", ("9",))]),  # X-SAMPA
        ("euro 2 R o\ndeux d 2\n", [("euro", ("2", "R", "o")), ("deux", ("d", "2"))]),
        ("ma m a 1\nma m a 4 1\n", [("ma", ("m", "a", "1")), ("ma", ("m", "a", "4", "1"))]),  # tones
        ("a 17 23\nb 4 99\n", [("a", ("17", "23")), ("b", ("4", "99"))]),  # units of clusters
        ("[x] [y] [z]\n", [("[x]", ("[y]", "[z]"))]),  # phones in brackets
        (";;; one\n# two\n## three\nA(2) a # four\n\n", [("A", ("a",))]),
    ],
)
def test_phones_that_are_numbers_stay(
    text: str, entries: list[Entry], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert read(tmp_path, text) == entries
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("the 1 DH AH\nlamp L AE\n", "lex:1: is 1 in 'the 1 DH AH' a phone or a figure"),
        ("the 1 DH AH\nlamp 1 L AE\n", "lex:1: is 1 in"),
        ("lamp L AE\nthe 3 DH AH\n", "lex:2: is 3 in"),
        ("the 0.8 DH AH\nlamp 1 L AE\nso S OW\n", "lex:2: is 1 in"),
        ("the DH 0.8 AH\n", "lex:1: 'the' has the number 0.8 among its phones"),
        ("so S OW\nthe DH AH 0.8\n", "lex:2: 'the' has the number 0.8"),
        ("so S OW\nthe 0.8\n", "lex:2: 'the' has no phones"),
        ('("the" nil (((dh ax) 0)))\n', "lex:1: a dictionary of Festival"),
        ('MNCL\n( "the" n (dh ax))\n', "lex:2: a dictionary of Festival"),
        ('<?xml version="1.0"?>\n', "lex:1: a dictionary of PLS"),
        ("new york\tN UW\nold\tOW L D\n", "the word 'new york' holds a space"),
    ],
)
def test_what_may_be_a_phone_or_a_figure_is_refused_with_its_line(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as refused:
        read(tmp_path, text)
    assert says in str(refused.value)


def test_phones_of_the_system_settle_what_a_number_is(tmp_path: Path) -> None:
    assert read(tmp_path, "euro 2 R o\n", ("2", "R", "o")) == [("euro", ("2", "R", "o"))]
    with pytest.raises(ValueError, match="is 2 in 'euro 2 R o' a phone or a figure"):
        read(tmp_path, "euro 2 R o\n")


def test_words_of_a_list(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert listed_words(["the 0.8 DH", "# no", ";;; no", "A(2) a", "<s> 1", "## no"]) == ["the", "A"]
