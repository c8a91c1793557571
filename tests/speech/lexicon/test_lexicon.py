import tracemalloc
from collections import Counter
from pathlib import Path

import kaldifst
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.speech.lexicon.lexicon import (
    Lang,
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
    assert lang.phone_table()["#3"] == 10


@given(entries_strategy)
def test_disambiguated_pronunciations_differ_and_none_begins_another(entries):
    lang = make_lang(entries)
    marked = [p.phones + ((lang.backoff + p.disambig,) if p.disambig else ()) for p in lang.prons]
    assert len(set(marked)) == len(marked)
    for a in marked:
        assert not any(b[: len(a)] == a for b in marked if b != a)


@given(entries_strategy)
def test_json_round_trip_is_exact(entries):
    lang = make_lang(entries, unknown="<unk>", silence_probability=0.25)
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


def test_unknown_words_are_named_counted_and_refused():
    known = split_known(make_lang(TOY), {"u1": "TWO ON", "u2": "TWO FOUR FOUR", "u3": "FIVE", "u4": ""})
    assert known.texts == {"u1": "TWO ON", "u4": ""}
    assert known.refused == {"u2": ("FOUR", "FOUR"), "u3": ("FIVE",)}
    assert list(known.unknown_counts.items()) == [("FOUR", 2), ("FIVE", 1)]
    with pytest.raises(KeyError, match="FIVE"):
        make_lang(TOY).word_ids("TWO FIVE")


def test_reserved_symbols_are_not_words():
    lang = make_lang(TOY)
    assert lang.unknown_words("<eps> #0 <s> TWO") == ["<eps>", "#0", "<s>"]
    with pytest.raises(ValueError, match="reserved"):
        make_lang([("<s>", ("x",))])


def test_unknown_word_stands_in_and_sounds_like_noise():
    lang = make_lang(TOY, unknown="<UNK>")
    assert lang.phones[:3] == ("<eps>", "SIL", "SPN")
    assert lang.silence_ids == (1, 2)
    assert lang.word_ids("TWO FOUR") == [lang.words["TWO"], lang.words["<UNK>"]]
    assert split_known(lang, {"u": "FOUR"}).refused == {}
    assert split_known(lang, {"u": "FOUR"}).unknown_counts == {"FOUR": 1}


def test_other_vocabulary_keeps_phone_labels():
    lang = make_lang(TOY, unknown="<UNK>")
    larger = lang.with_lexicon([("TON", ("T", "AA", "N")), ("NO", ("N", "UW"))])
    assert larger.phones == lang.phones
    assert larger.num_silence == 2
    assert set(larger.words) >= {"TON", "NO", "<UNK>"}
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
