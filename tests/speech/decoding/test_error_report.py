from hypothesis import given
from hypothesis import strategies as st

from murmur.speech.decoding.error_report import aligned_pairs, confusions, write_error_report
from murmur.speech.decoding.wer import score_utterance

WORDS = st.lists(st.sampled_from(["a", "b", "***", "-1"]), max_size=6)


@given(WORDS, WORDS)
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
