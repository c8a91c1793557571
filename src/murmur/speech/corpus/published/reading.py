"""The result of a reader of a published corpus, and calls of lhotse's recipes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lhotse.audio.utils import AudioLoadingError

from murmur.speech.corpus.corpus import Corpus, CorpusError, Problem
from murmur.speech.corpus.file_errors import NONSENSE


@dataclass(frozen=True)
class Read:
    """The result of a reader.

    Attributes:
        splits: utterances by split, transcripts as published.
        seconds: length of every utterance, by split: two splits may hold recordings of the same name.
        files: text files that belong to the data, such as a lexicon, by name.
        absent: optional parts that are missing.
        rate_hz: sample rate of all recordings; None if the reader has not checked it.
        wordless: segments without words that were left out, by split.
        outside: recordings that belong to no split.
        rules: rules that were applied to the transcripts of parts with conventions of their own, by part.
    """

    splits: Mapping[str, Corpus]
    seconds: Mapping[str, Mapping[str, float]]
    files: Mapping[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    rate_hz: int | None = None
    wordless: Mapping[str, Sequence[str]] = field(default_factory=dict)
    outside: tuple[Problem, ...] = ()
    rules: Mapping[str, str] = field(default_factory=dict)


Reader = Callable[[Path, tuple[str, ...], int], Read]


def by_lhotse(root: Path, prepare: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Call a recipe of lhotse.

    Raises:
        CorpusError: the recipe fails; names the folder.
    """
    try:
        return prepare()
    except (AssertionError, AudioLoadingError, OSError, *NONSENSE) as error:
        told = str(error).strip().splitlines() or [type(error).__name__]
        raise CorpusError(f"{root} cannot be read by lhotse's recipe: {told[0][:300]}") from error


def joined(corpora: Iterable[Corpus]) -> Corpus:
    """All utterances and problems of several corpora."""
    all_of_them = tuple(corpora)
    return Corpus(
        tuple(u for corpus in all_of_them for u in corpus.utterances),
        tuple(p for corpus in all_of_them for p in corpus.problems),
    )
