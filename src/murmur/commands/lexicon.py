"""`murmur lexicon`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

import typer

from murmur.commands.options import WritingRule
from murmur.core.counted import counted
from murmur.core.errors import SettingError
from murmur.core.path_checks import file_to_read, folder_to_write, not_an_input
from murmur.core.printable import say
from murmur.speech.corpus.left_out import left_out
from murmur.speech.corpus.synth import check_installed
from murmur.speech.language_model.kneser_ney import words_of
from murmur.speech.lexicon.lexicon import read_lexicon, without_stress
from murmur.speech.lexicon.pronounce import LEXICON, ORIGINS, REFUSED, Completed, complete, is_as_written
from murmur.speech.lexicon.spelling import Digits
from murmur.tasks.pronouncing import Guess, guesser
from murmur.tasks.sentences import check_text, files_of, sentences_of

app = typer.Typer(add_completion=False)
GUESSES = "Words that the base lacks"

Text = Annotated[
    list[Path],
    typer.Argument(
        metavar="TEXT...",
        help="Source of the words: files of words or sentences (also .gz), or Kaldi data directories.",
    ),
]
Base = Annotated[Path | None, typer.Option(help="Base lexicon for the pronunciations: Kaldi's lexicon.txt or CMUdict.")]
Out = Annotated[Path, typer.Option(help=f"Folder for {LEXICON}, {ORIGINS} and {REFUSED}.")]
Whole = Annotated[bool, typer.Option("--whole", help="Also write the words of the base that TEXT lacks.")]
Stress = Annotated[
    Literal["as-is", "drop"], typer.Option(help="Keep the stress digits of the base (AH0), or drop them.")
]
GuessOption = Annotated[
    Guess,
    typer.Option(
        help="espeak: phones by espeak-ng; graphemes: letters as phones; none: refuse the word.",
        rich_help_panel=GUESSES,
    ),
]
Voice = Annotated[
    str, typer.Option(help="Voice of espeak-ng; every voice other than en-us needs --map.", rich_help_panel=GUESSES)
]
Map = Annotated[
    Path | None,
    typer.Option(
        "--map", help="File of lines `IPA phone phone ...` to replace CMUdict's phones.", rich_help_panel=GUESSES
    ),
]
DigitsOption = Annotated[
    Digits,
    typer.Option(
        help="Refuse words with digits, or read them (espeak-ng: as numbers; graphemes: digit by digit).",
        rich_help_panel=GUESSES,
    ),
]

Force = Annotated[bool, typer.Option("--force", help="Overwrite a lexicon that was changed by hand.")]


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
def lexicon(
    text: Text,
    base: Base = None,
    out: Out = Path("runs/lexicon"),
    whole: Whole = False,
    stress: Stress = "as-is",
    guess: GuessOption = "none",
    voice: Voice = "en-us",
    phone_map: Map = None,
    digits: DigitsOption = "refuse",
    writing: WritingRule = "as-is",
    force: Force = False,
) -> None:
    if (phone_map is not None or voice != "en-us") and guess != "espeak":
        raise SettingError("--voice and --map are for --guess espeak")
    if guess == "none" and digits != "refuse":
        raise SettingError("--digits is about words that are guessed: give --guess too")
    if base is None and stress == "drop":
        raise SettingError("--stress drop changes the phones of --base: give --base too")
    if base is None and (whole or guess == "none"):
        raise SettingError("without --base there are no pronunciations to look up or keep: give --base, or --guess")
    check(text, base, guess, phone_map, out)
    if not force:
        check_unchanged(out)
    entries = [] if base is None else read_lexicon(base)
    if stress == "drop":
        entries = without_stress(entries)
    counts = Counter(word for sentence in sentences_of(text, writing) for word in words_of(sentence))
    words = [*counts, *(word for word, _ in entries)] if whole else list(counts)
    found = complete(words, entries, guesser(guess, entries, digits, voice, phone_map))
    if not found.origins:
        raise SettingError(
            f"none of the {counted(len(counts), 'word')} has a pronunciation; the first: {found.reasons()}"
        )
    found.write(out)
    say(summary(found, counts))
    say(str(out / LEXICON))


def check(text: list[Path], base: Path | None, guess: Guess, phone_map: Path | None, out: Path) -> None:
    """Check, before any file is read, that all files can be read and the folder can be written.

    Raises:
        SettingError, SynthesisError: something is missing; the message names it.
    """
    if base is not None and base.resolve() == (out / LEXICON).resolve():
        raise SettingError(f"{base} is the base and would be overwritten: choose another --out")
    check_text(text)
    for name in (LEXICON, ORIGINS, REFUSED):
        not_an_input(out / name, "--out", (file for path in text for file in files_of(path)))
    for path, option in ((base, "--base"), (phone_map, "--map")):
        if path is not None:
            file_to_read(path, option)
    folder_to_write(out, "--out")
    if guess == "espeak":
        check_installed()


def check_unchanged(out: Path) -> None:
    """Refuse to overwrite a lexicon that was changed since this command wrote it.

    Raises:
        SettingError: it differs from the pronunciations that were listed beside it, or none were.
    """
    if (out / LEXICON).is_file() and not is_as_written(out):
        raise SettingError(
            f"{out / LEXICON} was changed by hand, or another program wrote it: copy it elsewhere and name the copy by"
            " --base, choose another --out, or add --force to overwrite it"
        )


def summary(found: Completed, counts: Counter[str]) -> str:
    """Numbers of words by origin, and the refused words with their share of the running text."""
    origins = Counter(how.partition(" as ")[0] for how in {word: how for word, _, how in found.origins}.values())
    words = sum(origins.values())
    lines = [f"{counted(words, 'word')}, {counted(len(found.origins), 'pronunciation')}"]
    lines += [f"  {count} {how}" for how, count in origins.most_common()]
    if found.refused:
        running = sum(counts[word] for word in found.refused)
        share = 100 * running / counts.total()
        told = left_out("word", list(found.refused.items()), words + len(found.refused))
        lines.append(f"  {told}\n  {share:.2f} % of the running words are left out, see {REFUSED}")
    return "\n".join(lines)
