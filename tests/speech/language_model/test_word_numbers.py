"""Vocabularies by count, and texts as numbers."""

from __future__ import annotations

import pytest

from murmur.speech.language_model.word_numbers import WordNumbers

TEXT = ["B A A", "C A <unk> B", "", "cafe\u0301"]


def test_frequent_words_come_first_behind_the_marks() -> None:
    assert WordNumbers.frequent(TEXT).words == ("</s>", "<unk>", "A", "B", "C", "café")
    assert WordNumbers.frequent(TEXT, most=1).words == ("</s>", "<unk>", "A")
    assert WordNumbers.frequent(TEXT, min_count=2).words == ("</s>", "<unk>", "A", "B")


def test_texts_become_numbers_and_their_tokens_count_the_ends() -> None:
    text = WordNumbers.frequent(TEXT, min_count=2).numbered(TEXT)
    assert [text[n].tolist() for n in range(len(text))] == [[3, 2, 2], [1, 2, 1, 3], [], [1]]
    assert text.tokens == (4, 5, 1, 2)
    assert WordNumbers.frequent(TEXT).numbered(["CAFÉ caf\u00e9"])[0].tolist() == [1, 5]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("A",), "begins with </s> and <unk>"),
        (("</s>", "<unk>", "<s>"), "has no <s>"),
        (("</s>", "<unk>", "A", "A"), "'A' more than once"),
        (("</s>", "<unk>", "A B"), "'A B' is not one word"),
        (("</s>", "<unk>", ""), "'' is not one word"),
    ],
)
def test_wrong_vocabularies_are_refused(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        WordNumbers(words)


def test_marks_inside_a_text_are_refused() -> None:
    with pytest.raises(ValueError, match="the text holds </s>"):
        WordNumbers.frequent(["A </s>"])
