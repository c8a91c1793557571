"""Sentences of text files, folders of text files, and transcripts of Kaldi data directories."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from murmur.core.errors import SettingError
from murmur.speech.corpus.kaldi_dir import read_table
from murmur.speech.corpus.left_out import left_out
from murmur.speech.corpus.published.transcripts import WRITINGS, Writing
from murmur.speech.corpus.text_lines import text_lines

log = logging.getLogger(__name__)
SUFFIXES = (".txt", ".txt.gz")


def check_text(paths: Sequence[Path]) -> None:
    """Check that all texts exist before any is read.

    Raises:
        SettingError: a text is missing; the message names the first one.
    """
    for path in paths:
        if not path.exists():
            raise SettingError(f"there is no file {path}")
        if path.is_dir() and not (path / "text").is_file() and not _files_in(path):
            raise SettingError(
                f"{path} is a folder without a file 'text': name a data directory, a text file, or a folder of .txt or"
                " .txt.gz files"
            )


def sentences_of(paths: Sequence[Path], writing: Writing = "as-is") -> list[str]:
    """Return the sentences of text files, of folders of them, and the transcripts of data directories.

    Blank lines are left out. Files of a folder are read in the order of their names.

    Args:
        paths: texts.
        writing: rule for the words of text files: "english" and "unspaced" are those by which `murmur prepare` writes
            transcripts (capitals without punctuation; capitals without spaces). Transcripts stay as they are.

    Raises:
        SettingError: a file is missing, or all are empty.
        CorpusError: a file is damaged or not UTF-8.
    """
    check_text(paths)
    lines: list[str] = []
    for path in paths:
        _tell_other_files(path)
        for file in files_of(path):
            if file == path / "text":
                lines += read_table(file, values_required=False).values()
            else:
                lines += map(WRITINGS[writing], text_lines(file))
    found = [line for line in lines if line.strip()]
    if not found:
        raise SettingError(f"no sentence in {', '.join(map(str, paths))}: give one sentence a line")
    return found


def files_of(path: Path) -> list[Path]:
    """Return the files that are read of a text: itself, those of a folder, or the transcripts of a data directory."""
    if (path / "text").is_file():
        return [path / "text"]
    return _files_in(path) if path.is_dir() else [path]


def _tell_other_files(path: Path) -> None:
    """Log the files of a folder of texts that are not read."""
    if not path.is_dir() or (path / "text").is_file():
        return
    files = sorted(each.name for each in path.iterdir() if each.is_file() and not each.name.startswith("."))
    others = [(name, f"only {' and '.join(SUFFIXES)} are read") for name in files if not name.endswith(SUFFIXES)]
    if others:
        log.warning("%s: %s", path, left_out("file", others, len(files)))


def _files_in(folder: Path) -> list[Path]:
    """The text files of a folder, in byte order of their names."""
    return sorted((path for path in folder.iterdir() if path.name.endswith(SUFFIXES)), key=lambda p: p.name.encode())
