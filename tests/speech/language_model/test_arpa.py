import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.speech.language_model.arpa import read_arpa, write_arpa
from murmur.speech.language_model.kneser_ney import KneserNey
from murmur.speech.language_model.ngram import NgramModel, perplexity

GOOD = """A preamble, in which ngram 1=7 and \\1-grams: mean nothing

\\data\\
ngram 1=4
ngram 2=2

\\1-grams:
-0.5 </s>
-99 <s> -0.3
-0.7 b
-0.4 a -0.2

\\2-grams:
-0.1 <s> a
-0.2\ta\t</s>

\\end\\
"""


def same(left: NgramModel, right: NgramModel) -> bool:
    arrays = ("prefix", "word", "log10_prob", "log10_backoff")
    return left.words == right.words and all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for a, b in zip(left.orders, right.orders, strict=True)
        for name in arrays
    )


def write(tmp_path, text):
    path = tmp_path / "lm.arpa"
    path.write_text(text, encoding="utf-8")
    return path


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.lists(st.sampled_from(["a", "b", "é", "日"]), max_size=5).map(" ".join), min_size=1), st.integers(1, 4)
)
def test_reads_back_what_it_wrote(tmp_path_factory, sentences, order):
    model = KneserNey(order).train(sentences).model
    folder = tmp_path_factory.mktemp("arpa")
    for name in ("lm.arpa", "lm.arpa.gz"):
        write_arpa(model, folder / name)
        assert same(read_arpa(folder / name), model)
    assert (folder / "lm.arpa.gz").read_bytes()[:2] == b"\x1f\x8b"
    with gzip.open(folder / "lm.arpa.gz") as file:
        assert file.read() == (folder / "lm.arpa").read_bytes()


def test_probabilities_by_hand(tmp_path):
    model = read_arpa(write(tmp_path, GOOD))
    figures = perplexity(model, ["a", "b a"])
    # <s> a: listed; a </s>: listed; <s> b: backs off (-0.3 - 0.7); b a: b has no weight (-0.4); a </s>: listed
    assert figures.log10_prob == pytest.approx(-0.1 - 0.2 - 1.0 - 0.4 - 0.2)
    assert figures.perplexity == pytest.approx(10 ** (1.9 / 5))
    assert (figures.sentences, figures.words, figures.unknown_words) == (2, 3, 0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\\data\\", "\\dta\\", r"ends before \\data\\"),
        ("ngram 2=2", "ngram 3=2", r":5: expected `ngram 2=COUNT`"),
        ("ngram 1=4", "ngram 1=x", r"expected `ngram 1=COUNT`"),
        ("ngram 1=4", "ngram 1=3", r":11: expected \\2-grams:, so the 1-grams are more"),
        ("ngram 1=4", "ngram 1=5", r"expected a log-probability, 1 word"),
        ("ngram 2=2", "ngram 2=1", r"expected \\end\\"),
        ("ngram 2=2", "ngram 2=3", r"expected a log-probability, 2 word"),
        ("-0.7 b", "-0.7 a", r":11: unigram 'a' repeats"),
        ("-0.7 b", "0.7 b", r"log10 probability 0.7"),
        ("-0.7 b", "nan b", r"log10 probability nan"),
        ("-0.7 b", "minus b", r"no number in 'minus'"),
        ("-0.4 a -0.2", "-0.4 a inf", r"back-off inf"),
        ("-0.1 <s> a", "-0.1 <s> c", r":14: word 'c' is not among the unigrams"),
        ("-0.2\ta\t</s>", "-0.1 <s> a", r"2-gram '<s> a' is listed twice"),
        ("\\end\\", "", r"cut short"),
    ],
)
def test_malformed_files_are_refused_with_their_line(tmp_path, old, new, message):
    assert GOOD.count(old) >= 1
    before, _, after = GOOD.rpartition(old)
    with pytest.raises(ValueError, match=message):
        read_arpa(write(tmp_path, before + new + after))


def test_a_byte_order_mark_and_ends_of_lines_of_windows(tmp_path):
    model = read_arpa(write(tmp_path, GOOD))
    path = tmp_path / "other.arpa"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD[GOOD.index("\\data") :].replace("\n", "\r\n").encode())
    assert same(read_arpa(path), model)


def test_an_ngram_without_its_prefix_is_refused(tmp_path):
    text = GOOD.replace("ngram 2=2\n", "ngram 2=2\nngram 3=1\n").replace("\\end\\", "\\3-grams:\n-0.1 b a a\n\n\\end\\")
    with pytest.raises(ValueError, match=r"has 1 3-gram such as 'b a a' whose first 2 words it lacks"):
        read_arpa(write(tmp_path, text))


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="no ARPA file"):
        read_arpa(tmp_path / "none.arpa")


def test_restricted_drops_exactly_the_ngrams_with_other_words(tmp_path):
    model = KneserNey(3).train(["a b c a b", "b b a", "c a"]).model
    kept, removed = model.restricted({"a", "b"})
    assert removed == ["<unk>", "c"]
    write_arpa(model, tmp_path / "all.arpa")
    write_arpa(kept, tmp_path / "kept.arpa")
    lines = (tmp_path / "all.arpa").read_text().splitlines()
    wanted = [line for line in lines if "\t" in line and not {"c", "<unk>"} & set(line.split("\t")[1].split())]
    assert [line for line in (tmp_path / "kept.arpa").read_text().splitlines() if "\t" in line] == wanted
    assert same(read_arpa(tmp_path / "kept.arpa"), kept)


def test_scoring_needs_sentence_marks_and_text(tmp_path):
    text = "\\data\\\nngram 1=1\n\n\\1-grams:\n-0.1 a\n\n\\end\\\n"
    with pytest.raises(ValueError, match="has no <s>"):
        perplexity(read_arpa(write(tmp_path, text)), ["a"])
    with pytest.raises(ValueError, match="no sentence"):
        perplexity(read_arpa(write(tmp_path, GOOD)), [])


def test_real_models_read_back(tmp_path):
    path = Path(__file__).resolve().parents[3] / "../shared/corpora/an4_mfcc/an4.ug.lm"
    if not path.is_file():
        pytest.skip("the AN4 features are not beside the repository")
    model = read_arpa(path)
    assert model.words[model.unknown] == "<UNK>"
    write_arpa(model, tmp_path / "again.arpa")
    assert same(read_arpa(tmp_path / "again.arpa"), model)
