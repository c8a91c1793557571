"""Options for words and sentences of a user's own, which `decode`, `transcribe` and `export` share."""

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

OWN = "Words of your own (docs/my_vocabulary.md)"

GrammarOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE",
        help="A JSGF file (or an acceptor as OpenFst's text), or a grammar of the set: loop, 'one word', a language"
        " model; for CTC also greedy. The experiment's otherwise.",
        rich_help_panel=OWN,
    ),
]
LmOption = Annotated[
    Path | None, typer.Option("--lm", help="Language model in ARPA format, plain or .gz.", rich_help_panel=OWN)
]
WordsOption = Annotated[
    Path | None,
    typer.Option("--words", help="List of words, one a line: any number of them in any order.", rich_help_panel=OWN),
]
LexiconOption = Annotated[
    Path | None,
    typer.Option(help="Pronunciations of words that the model's lexicon lacks, or has otherwise.", rich_help_panel=OWN),
]
GuessOption = Annotated[
    WhichGuess,
    typer.Option(
        help="Pronunciation of words that no lexicon has: espeak, graphemes, none (refuse them), or auto (what fits"
        " the model and is installed).",
        rich_help_panel=OWN,
    ),
]
DevOption = Annotated[
    str | None,
    typer.Option(
        metavar="DATA",
        help="Tune scale and word cost on it: a Kaldi data directory, a cut manifest, or dev of the experiment.",
        rich_help_panel=OWN,
    ),
]


def chosen(
    grammar: str | None, lm: Path | None, words: Path | None, lexicon: Path | None, guess: WhichGuess
) -> str | Vocabulary | None:
    """The vocabulary that the options ask for: a user's own, the name of a grammar of the set, or None for the run's.

    Raises:
        SettingError: options that exclude each other or belong to another one, or a file that is not there.
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
        raise SettingError(f"{option} is for words of your own: give a --grammar FILE, --lm or --words too")
    return grammar


def _file(grammar: str | None) -> Path | None:
    """A grammar's file; None for names and for language models, which CTC takes as --grammar too."""
    if grammar is None or grammar in (LOOP, ONE_WORD, GREEDY) or not Path(grammar).is_file():
        return None
    return None if looks_like_arpa(Path(grammar)) else Path(grammar)
