"""Words of a neural language model and their numbers, and texts as arrays of them.

Number 0 is `</s>`: the end of a sentence, and the input before its first word. Number 1 is `<unk>`, which stands for
all other words. T tokens of a text, N sentences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from murmur.speech.language_model.kneser_ney import frequent_words, words_of
from murmur.speech.language_model.ngram import END, START, UNKNOWN_NAMES

UNKNOWN = UNKNOWN_NAMES[0]
BOUNDARY_NUMBER, UNKNOWN_NUMBER = 0, 1


@dataclass(frozen=True)
class WordNumbers:
    """A vocabulary.

    Attributes:
        words: the words in the order of their numbers, `</s>` and `<unk>` first.

    Raises:
        ValueError: another beginning, a repeated word, or one with white space.
    """

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.words[:2] != (END, UNKNOWN) or START in self.words:
            raise ValueError(f"a vocabulary begins with {END} and {UNKNOWN} and has no {START}, got {self.words[:3]}")
        if len(set(self.words)) < len(self.words):
            repeated = [word for word, count in Counter(self.words).items() if count > 1]
            raise ValueError(f"the vocabulary holds {repeated[0]!r} more than once")
        if bad := [word for word in self.words if word.split() != [word]]:
            raise ValueError(f"{bad[0]!r} is not one word: a vocabulary has one word a line")

    @staticmethod
    def frequent(sentences: Iterable[str], most: int | None = None, min_count: int = 1) -> WordNumbers:
        """Words that occur at least `min_count` times, at most the `most` frequent ones; ties in code-point order.

        Raises:
            ValueError: a sentence mark inside a sentence.
        """
        ranked = [word for word in frequent_words(sentences, None, min_count) if word not in UNKNOWN_NAMES]
        if inside := sorted({START, END}.intersection(ranked)):
            raise ValueError(f"the text holds {', '.join(inside)}: sentence marks are put there by training")
        return WordNumbers((END, UNKNOWN, *ranked[:most]))

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def number_of(self) -> dict[str, int]:
        """Word numbers, the inverse of `words`."""
        return {word: number for number, word in enumerate(self.words)}

    def numbered(self, sentences: Iterable[str]) -> NumberedText:
        """Sentences of space-separated words as numbers; all words outside the vocabulary are `<unk>`."""
        known = self.number_of
        rows = [[known.get(word, UNKNOWN_NUMBER) for word in words_of(sentence)] for sentence in sentences]
        ends_N = np.cumsum([len(row) for row in rows], dtype=np.int64)
        return NumberedText(np.array([n for row in rows for n in row], dtype=np.int32), ends_N)


@dataclass(frozen=True, eq=False)
class NumberedText:
    """Sentences without marks in one array.

    Attributes:
        numbers: (T,) int32 word numbers.
        ends: (N,) end of each sentence in `numbers`.
    """

    numbers: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, sentence: int) -> np.ndarray:
        """Word numbers of a sentence."""
        first = 0 if sentence == 0 else int(self.ends[sentence - 1])
        return self.numbers[first : int(self.ends[sentence])]

    @cached_property
    def tokens(self) -> tuple[int, ...]:
        """Predicted tokens of each sentence: its words and `</s>`."""
        return tuple((np.diff(self.ends, prepend=0) + 1).tolist())

    def every(self) -> Sequence[np.ndarray]:
        """All sentences."""
        return [self[sentence] for sentence in range(len(self))]
