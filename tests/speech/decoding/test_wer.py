import itertools

import jiwer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.speech.decoding.wer import (
    ErrorRate,
    aligned_pairs,
    confusions,
    score,
    score_by_group,
    score_utterance,
    score_utterances,
    tokens_of,
    write_error_report,
)

WORDS = st.lists(st.sampled_from("abc"), max_size=4)


def fewest_edits(reference, hypothesis):
    """Try all edit scripts: each is a set of kept or changed pairs growing in both; the rest is inserted or deleted."""
    best = len(reference) + len(hypothesis)
    for pairs in range(1, min(len(reference), len(hypothesis)) + 1):
        for left in itertools.combinations(range(len(reference)), pairs):
            for right in itertools.combinations(range(len(hypothesis)), pairs):
                changed = sum(reference[i] != hypothesis[j] for i, j in zip(left, right, strict=True))
                best = min(best, changed + len(reference) + len(hypothesis) - 2 * pairs)
    return best


@given(WORDS, WORDS)
def test_errors_are_the_fewest_of_all_edit_scripts(reference, hypothesis):
    rate = score_utterance(" ".join(reference), " ".join(hypothesis))
    assert rate.errors == fewest_edits(reference, hypothesis)
    assert rate.tokens == len(reference)
    assert rate.insertions - rate.deletions == len(hypothesis) - len(reference)


@given(st.dictionaries(st.text("uv", min_size=1, max_size=3), st.tuples(WORDS, WORDS), min_size=1))
def test_agrees_with_jiwer(pairs):
    references = {name: " ".join(["x", *r]) for name, (r, _) in pairs.items()}
    hypotheses = {name: " ".join(h) for name, (_, h) in pairs.items()}
    names = sorted(references)
    r, h = [references[n] for n in names], [hypotheses[n] for n in names]
    assert score(references, hypotheses).percent == pytest.approx(100 * jiwer.wer(r, h))
    assert score(references, hypotheses, "char").percent == pytest.approx(100 * jiwer.cer(r, h))


@given(WORDS)
def test_identity_has_no_errors(words):
    assert score_utterance(" ".join(words), " ".join(words)).errors == 0


def test_prints_as_kaldi_does():
    assert str(ErrorRate(975, 3, 4, 5)) == "%WER 1.23 [ 12 / 975, 3 ins, 4 del, 5 sub ]"
    assert str(score({"u": "ab"}, {"u": "a"}, "char")) == "%CER 50.00 [ 1 / 2, 0 ins, 1 del, 0 sub ]"


def test_composed_and_decomposed_accents_are_the_same_word():
    assert score({"u": "caf\u00e9"}, {"u": "cafe\u0301"}).errors == 0
    assert tokens_of("cafe\u0301  x", "char") == ["c", "a", "f", "\u00e9", " ", "x"]


def test_missing_hypothesis_is_named():
    with pytest.raises(ValueError, match=r"no hypothesis for 1 utterance.*utt2"):
        score({"utt1": "a", "utt2": "b"}, {"utt1": "a"})
    with pytest.raises(ValueError, match=r"no reference for 1 utterance.*utt3"):
        score({"utt1": "a"}, {"utt1": "a", "utt3": "a"})


def test_a_set_without_reference_words_is_refused():
    with pytest.raises(ValueError, match="no reference words"):
        score({"u": ""}, {"u": "a"})


def test_groups_add_up_to_the_whole():
    references = {"a1": "x y", "a2": "x", "b1": "y y z"}
    hypotheses = {"a1": "x", "a2": "x", "b1": "y z q z"}
    by_speaker = score_by_group(score_utterances(references, hypotheses), {"a1": "a", "a2": "a", "b1": "b"})
    assert list(by_speaker) == ["a", "b"]
    assert by_speaker["a"] == ErrorRate(3, 0, 1, 0)
    assert by_speaker["a"] + by_speaker["b"] == score(references, hypotheses)
    with pytest.raises(ValueError, match=r"no group given for 1 utterance.*b1"):
        score_by_group(score_utterances(references, hypotheses), {"a1": "a", "a2": "a"})


def test_units_do_not_mix():
    with pytest.raises(ValueError, match="cannot add"):
        ErrorRate(1, unit="word") + ErrorRate(1, unit="char")
    with pytest.raises(ValueError, match="unknown scoring unit"):
        tokens_of("a", "phone")


TOKENS = st.lists(st.sampled_from(["a", "b", "***", "-1"]), max_size=6)


@given(TOKENS, TOKENS)
def test_alignment_spells_both_sides_and_costs_the_edit_distance(reference, hypothesis):
    pairs = aligned_pairs(" ".join(reference), " ".join(hypothesis))
    assert [r for r, _ in pairs if r is not None] == reference
    assert [h for _, h in pairs if h is not None] == hypothesis
    assert sum(r != h for r, h in pairs) == score_utterance(" ".join(reference), " ".join(hypothesis)).errors


def test_confusions_are_counted():
    counts = confusions({"u": "one two", "v": "two three"}, {"u": "one too", "v": "too three oh"})
    assert counts.substituted == {("two", "too"): 2}
    assert counts.inserted == {"oh": 1}
    assert not counts.deleted


def test_report_marks_each_error_in_its_column(tmp_path):
    path = tmp_path / "errors.txt"
    write_error_report(path, {"u": "one twenty two", "v": "x"}, {"u": "one two oh", "v": "x"})
    text = path.read_text(encoding="utf-8")
    assert text.startswith("%WER 50.00 [ 2 / 4, 1 ins, 1 del, 0 sub ]\n")
    assert "ref one twenty two ***\nhyp one ***    two oh\n        D          I\n" in text
    assert text.index("u %WER") < text.index("v %WER")
