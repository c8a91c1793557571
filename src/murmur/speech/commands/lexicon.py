"""`murmur lexicon`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import typer

from murmur.commands.options import grouped
from murmur.core.counted import counted
from murmur.core.errors import SettingError
from murmur.core.path_checks import file_to_read, folder_to_write, not_inputs
from murmur.core.printable import say
from murmur.speech.commands.lm import Text, WritingRule
from murmur.speech.corpus.synth import check_installed
from murmur.speech.language_model.ngram import words_of
from murmur.speech.lexicon.g2p import LEXICON, ORIGINS, REFUSED, complete, is_as_written
from murmur.speech.lexicon.lexicon import read_lexicon, without_stress
from murmur.speech.lexicon.spelling import Digits
from murmur.speech.tasks.pronouncing import Guess, guesser
from murmur.speech.tasks.texts import check_text, files_of, sentences_of

app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Known:
    """The pronunciations that are known, and the folder of the lexicon.

    Attributes:
        base: Base lexicon for the pronunciations: Kaldi's lexicon.txt or CMUdict.
        whole: Also write the words of the base that TEXT lacks.
        stress: Keep the stress digits of the base (AH0), or drop them.
        force: Overwrite a lexicon that was changed by hand.
    """

    base: Path | None = None
    out: Annotated[Path, typer.Option(help=f"Folder for {LEXICON}, {ORIGINS} and {REFUSED}.")] = Path("runs/lexicon")
    whole: bool = False
    stress: Literal["as-is", "drop"] = "as-is"
    force: bool = False


@dataclass(frozen=True)
class Guesses:
    """The pronunciations that are guessed.

    Attributes:
        guess: espeak: phones by espeak-ng; graphemes: letters as phones; none: refuse the word.
        voice: Voice of espeak-ng; every voice other than en-us needs --map.
        phone_map: File of lines `IPA phone phone ...` to replace CMUdict's phones.
        digits: Refuse words with digits, or read them (espeak-ng: as numbers; graphemes: digit by digit).
    """

    panel: ClassVar[str] = "Words that the base lacks"
    guess: Guess = "none"
    voice: str = "en-us"
    phone_map: Annotated[Path | None, typer.Option("--map")] = None
    digits: Digits = "refuse"

    def __post_init__(self) -> None:
        if (self.phone_map is not None or self.voice != "en-us") and self.guess != "espeak":
            raise SettingError("--voice and --map are for --guess espeak")
        if self.guess == "none" and self.digits != "refuse":
            raise SettingError("--digits is about words that are guessed: give --guess too")


HELP = """Make a lexicon for the words of a text: pronunciations of a base lexicon, and guesses for the rest.

Example: murmur lexicon data/train --base cmudict.dict --guess espeak --out data/lexicon

Example, with the words of a text: murmur lexicon data/train prose.txt --writing english --base cmudict.dict

Example, letters as phones, no base: murmur lexicon data/train --guess graphemes --out data/lexicon

All pronunciations of a word are kept. Upper and lower case are not told apart when a word is looked up in the
base. pronunciations.tsv lists the guesses: review them, and correct the lines in a copy of lexicon.txt, which is
the --base of the next call. A lexicon.txt in --out that was changed by hand is not overwritten without --force.
refused.tsv lists tokens that are not words (digits, symbols), each with the reason. See docs/lexicons.md.
"""


@app.command(help=HELP)
@grouped
def lexicon(text: Text, *, known: Known, guesses: Guesses, writing: WritingRule = "as-is") -> None:
    base, out = known.base, known.out
    check(text, known, guesses)
    entries = [] if base is None else read_lexicon(base)
    if known.stress == "drop":
        entries = without_stress(entries)
    counts = Counter(word for sentence in sentences_of(text, writing) for word in words_of(sentence))
    words = [*counts, *(word for word, _ in entries)] if known.whole else list(counts)
    found = complete(words, entries, guesser(guesses.guess, entries, guesses.digits, guesses.voice, guesses.phone_map))
    if not found.origins:
        raise SettingError(
            f"none of the {counted(len(counts), 'word')} has a pronunciation; the first: {found.reasons()}"
        )
    found.write(out)
    say(found.summary(counts))
    say(str(out / LEXICON))


def check(text: Sequence[Path], known: Known, guesses: Guesses) -> None:
    """Check, before any file is read, that all options have an effect, files can be read and the folder written.

    Raises:
        SettingError, SynthesisError: something is missing, or a lexicon that was changed since this command wrote it
            would be overwritten; the message names it.
    """
    base, out = known.base, known.out
    if base is None and known.stress == "drop":
        raise SettingError("--stress drop changes the phones of --base: give --base too")
    if base is None and (known.whole or guesses.guess == "none"):
        raise SettingError("without --base there are no pronunciations to look up or keep: give --base, or --guess")
    if base is not None and base.resolve() == (out / LEXICON).resolve():
        raise SettingError(f"{base} is the base and would be overwritten: choose another --out")
    check_text(text)
    read = (file for path in text for file in files_of(path))
    not_inputs((out / name for name in (LEXICON, ORIGINS, REFUSED)), "--out", read)
    for path, option in ((base, "--base"), (guesses.phone_map, "--map")):
        if path is not None:
            file_to_read(path, option)
    folder_to_write(out, "--out")
    if guesses.guess == "espeak":
        check_installed()
    if not known.force and (out / LEXICON).is_file() and not is_as_written(out):
        raise SettingError(
            f"{out / LEXICON} was changed by hand, or another program wrote it: copy it elsewhere and name the copy by"
            " --base, choose another --out, or add --force to overwrite it"
        )
