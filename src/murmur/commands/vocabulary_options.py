"""Options for a user's own vocabulary, shared by `decode`, `transcribe` and `export`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from murmur.core.errors import SettingError
from murmur.core.path_checks import file_to_read
from murmur.speech.language_model.grammar_file import looks_like_arpa
from murmur.tasks.ctc.decode import GREEDY
from murmur.tasks.hybrid.config import LOOP, ONE_WORD
from murmur.tasks.vocabulary import Kind, Vocabulary, WhichGuess

OWN = "Your own vocabulary (docs/my_vocabulary.md)"

GrammarOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE",
        help="JSGF file (or acceptor in OpenFst's text format), or a grammar by name: loop, 'one word', a language"
        " model; for CTC also greedy. By default the experiment's.",
        rich_help_panel=OWN,
    ),
]
LmOption = Annotated[
    Path | None, typer.Option("--lm", help="Language model in ARPA format, plain or .gz.", rich_help_panel=OWN)
]
WordsOption = Annotated[
    Path | None,
    typer.Option("--words", help="List of words, one per line; they are recognised in any order.", rich_help_panel=OWN),
]
LexiconOption = Annotated[
    Path | None,
    typer.Option(help="Pronunciations that the model's lexicon lacks, or that replace its own.", rich_help_panel=OWN),
]
GuessOption = Annotated[
    WhichGuess,
    typer.Option(
        help="Pronunciation of words that are in no lexicon: espeak, graphemes, none (refuse them), or auto (the"
        " installed method that fits the model).",
        rich_help_panel=OWN,
    ),
]
DevOption = Annotated[
    str | None,
    typer.Option(
        metavar="DATA",
        help="Data to tune scale and word cost on: a Kaldi data directory, a cut manifest, or dev of the experiment.",
        rich_help_panel=OWN,
    ),
]


def chosen(
    grammar: str | None, lm: Path | None, words: Path | None, lexicon: Path | None, guess: WhichGuess
) -> str | Vocabulary | None:
    """Return the vocabulary of the options: a user's own, the name of a grammar, or None for that of the run.

    Raises:
        SettingError: options exclude or need each other, or a file is missing.
    """
    given = [name for name, value in (("--grammar", grammar), ("--lm", lm), ("--words", words)) if value is not None]
    if len(given) > 1:
        raise SettingError(f"{' and '.join(given)} exclude each other: give one")
    sources: Mapping[Kind, Path | None] = {"grammar": _file(grammar), "lm": lm, "words": words}
    for kind, source in sources.items():
        if source is not None:
            file_to_read(source, f"--{kind}")
            if lexicon is not None:
                file_to_read(lexicon, "--lexicon")
            return Vocabulary(kind, source, lexicon, guess)
    if lexicon is not None or guess != "auto":
        option = "--lexicon" if lexicon is not None else "--guess"
        raise SettingError(f"{option} needs your own vocabulary: add a --grammar FILE, --lm or --words")
    return grammar


def _file(grammar: str | None) -> Path | None:
    """Return the file of a grammar; None for names and for language models, which CTC also takes as --grammar."""
    if grammar is None or grammar in (LOOP, ONE_WORD, GREEDY) or not Path(grammar).is_file():
        return None
    return None if looks_like_arpa(Path(grammar)) else Path(grammar)
