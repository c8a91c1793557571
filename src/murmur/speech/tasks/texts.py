"""Sentences of text files, folders of them and Kaldi data directories; the texts of a language model."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from murmur.core.counted import counted
from murmur.core.errors import SettingError
from murmur.speech.corpus.corpus import left_out
from murmur.speech.corpus.file_content import each_line
from murmur.speech.corpus.kaldi_dir import read_table
from murmur.speech.corpus.published.transcripts import WRITINGS, Writing
from murmur.speech.language_model.word_lstm import UNKNOWN_NUMBER, NumberedText, WordNumbers

log = logging.getLogger(__name__)
SUFFIXES = (".txt", ".txt.gz")
MANY_UNKNOWN, FEW_WORDS = 0.2, 10
BESIDE = ("lm_text", "lm_text.txt", "lm_text.txt.gz")  # text for language models in a corpus folder


def check_text(paths: Sequence[Path]) -> None:
    """Check that all texts exist before any is read."""
    for path in paths:
        if not path.exists():
            raise SettingError(f"there is no file {path}")
        if path.is_dir() and not (path / "text").is_file() and not _files_in(path):
            raise SettingError(
                f"{path} is a folder without a file 'text': name a data directory, a text file, or a folder of .txt or"
                " .txt.gz files"
            )


@dataclass(frozen=True)
class SentenceFiles:
    """The sentences of text files, of folders of them, and the transcripts of data directories, read one by one.

    Blank lines are left out. Files of a folder are read in the order of their names.

    Attributes:
        paths: texts.
        writing: rule for the words of text files: "english" and "unspaced" are those by which `murmur prepare` writes
            transcripts (capitals without punctuation; capitals without spaces). Transcripts stay as they are.
    """

    paths: Sequence[Path]
    writing: Writing = "as-is"

    def __iter__(self) -> Iterator[str]:
        """Read the texts.

        Raises:
            SettingError: there is no text, or no sentence in it.
        """
        check_text(self.paths)
        empty = True
        for line in self._lines():
            if line.strip():
                empty = False
                yield line
        if empty:
            raise SettingError(f"no sentence in {', '.join(map(str, self.paths))}: give one sentence a line")

    def _lines(self) -> Iterator[str]:
        for path in self.paths:
            _tell_other_files(path)
            for file in files_of(path):
                if file == path / "text":
                    yield from read_table(file).values()
                else:
                    yield from map(WRITINGS[self.writing], each_line(file))


def sentences_of(paths: Sequence[Path], writing: Writing = "as-is") -> list[str]:
    """Return `SentenceFiles` as a list."""
    return list(SentenceFiles(paths, writing))


def files_of(path: Path) -> list[Path]:
    """Return the files that are read of a text: itself, those of a folder, or the transcripts of a data directory."""
    if (path / "text").is_file():
        return [path / "text"]
    return _files_in(path) if path.is_dir() else [path]


def _tell_other_files(path: Path) -> None:
    if not path.is_dir() or (path / "text").is_file():
        return
    files = sorted(each.name for each in path.iterdir() if each.is_file() and not each.name.startswith("."))
    others = [(name, f"only {' and '.join(SUFFIXES)} are read") for name in files if not name.endswith(SUFFIXES)]
    if others:
        log.warning("%s: %s", path, left_out("file", others, len(files)))


def _files_in(folder: Path) -> list[Path]:
    return sorted((path for path in folder.iterdir() if path.name.endswith(SUFFIXES)), key=lambda p: p.name.encode())


@dataclass(frozen=True)
class Texts:
    """Sources of the three texts.

    Attributes:
        train: training text.
        dev: held-out text; None sets sentences of the training text apart.
        test: text of the final figure; None takes the held-out text again.
    """

    train: Path
    dev: Path | None
    test: Path | None

    @staticmethod
    def found(corpus: Path | None, text: Path | None, dev: Path | None, test: Path | None) -> Texts:
        if text is None and corpus is None:
            raise SettingError("there is no text: name it (task.text), or a corpus that has one (task.corpus)")
        if corpus is not None and not corpus.is_dir():
            raise SettingError(f"there is no folder {corpus}: name the folder of the set (task.corpus)")
        if text is None:
            assert corpus is not None
            text = _text_of(corpus)
        parts = [None if corpus is None else _there(corpus / "data" / part) for part in ("dev", "test")]
        return Texts(text, dev or parts[0], test or parts[1])

    def check(self) -> None:
        check_text([path for path in (self.train, self.dev, self.test) if path is not None])


@dataclass(frozen=True, eq=False)
class TextData:
    """Vocabulary and numbered texts."""

    words: WordNumbers
    train: NumberedText
    dev: NumberedText
    test: NumberedText


def load(texts: Texts, held_out_every: int, most: int | None, min_count: int, writing: Writing = "as-is") -> TextData:
    """Read the texts; the vocabulary is that of the training text, without sentences that are set apart."""
    train = sentences_of([texts.train], writing)
    if texts.dev is None:
        train, dev = _apart(train, held_out_every, texts.train)
    else:
        dev = sentences_of([texts.dev], writing)
    test = dev if texts.test is None else sentences_of([texts.test], writing)
    words = WordNumbers.frequent(train, most, min_count)
    data = TextData(words, words.numbered(train), words.numbered(dev), words.numbered(test))
    if texts.dev is not None:
        check_held_out(data.dev, "held-out text")
    if texts.test is not None:
        check_held_out(data.test, "text of the final figure")
    return data


def check_held_out(text: NumberedText, name: str) -> None:
    """Log the share of unknown words of a named text if it is large; a few words say nothing."""
    unknown = int((text.numbers == UNKNOWN_NUMBER).sum())
    share = 0.0 if len(text.numbers) < FEW_WORDS else unknown / len(text.numbers)
    hint = "does it differ from the training text in case, punctuation or language? task.writing=english is for prose"
    if share == 1:
        raise SettingError(f"all {unknown} words of the {name} are unknown: {hint}")
    if share > MANY_UNKNOWN:
        log.warning("%.0f %% of the words of the %s are unknown: %s", 100 * share, name, hint)


def _apart(sentences: Sequence[str], every: int, source: Path) -> tuple[list[str], list[str]]:
    """Training sentences, and every n-th sentence as held-out text."""
    if len(sentences) < every:
        raise SettingError(
            f"{source} has {counted(len(sentences), 'sentence')}, too few to set every {every}-th one apart: name"
            " held-out text (task.dev_text), or set task.held_out_every"
        )
    train = [sentence for number, sentence in enumerate(sentences, 1) if number % every]
    return train, list(sentences[every - 1 :: every])


def _text_of(corpus: Path) -> Path:
    """The text of a corpus, or else the transcripts of its training set."""
    found = next((corpus / name for name in BESIDE if (corpus / name).exists()), None) or _there(
        corpus / "data" / "train"
    )
    if found is None:
        raise SettingError(f"{corpus} has neither {BESIDE[0]} nor data/train: name a text (task.text)")
    return found


def _there(folder: Path) -> Path | None:
    return folder if (folder / "text").is_file() else None
