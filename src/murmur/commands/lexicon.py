"""`murmur lexicon`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

import typer

from murmur.commands.lm import check_text, sentences_of
from murmur.core.errors import SettingError
from murmur.core.path_checks import file_to_read, folder_to_write
from murmur.speech.corpus.synth import check_installed
from murmur.speech.lexicon.lexicon import read_lexicon, without_stress
from murmur.speech.lexicon.pronounce import LEXICON, ORIGINS, REFUSED, Completed, complete
from murmur.speech.lexicon.spelling import Digits
from murmur.tasks.pronouncing import Guess, guesser

app = typer.Typer(add_completion=False)
GUESSES = "Words that the base lacks"

Text = Annotated[
    list[Path],
    typer.Argument(
        metavar="TEXT...",
        help="Whose words are wanted: files of words or sentences (.gz too), or Kaldi data directories.",
    ),
]
Base = Annotated[
    Path | None, typer.Option(help="Lexicon whose pronunciations are taken over: Kaldi's lexicon.txt or CMUdict.")
]
Out = Annotated[Path, typer.Option(help=f"Folder for {LEXICON}, {ORIGINS} and {REFUSED}.")]
Whole = Annotated[bool, typer.Option("--whole", help="Keep the base lexicon's other words too.")]
Stress = Annotated[
    Literal["as-is", "drop"], typer.Option(help="Stress digits of the base (AH0): as they are, or taken off.")
]
GuessOption = Annotated[
    Guess,
    typer.Option(help="espeak: sounds by espeak-ng; graphemes: letters; none: refuse.", rich_help_panel=GUESSES),
]
Voice = Annotated[str, typer.Option(help="Voice of espeak-ng; others than en-us need --map.", rich_help_panel=GUESSES)]
Map = Annotated[
    Path | None,
    typer.Option("--map", help="Lines `IPA phone phone ...`, in place of CMUdict's phones.", rich_help_panel=GUESSES),
]
DigitsOption = Annotated[
    Digits,
    typer.Option(
        help="Words with digits: refuse them, or read them (espeak-ng as numbers, graphemes digit by digit).",
        rich_help_panel=GUESSES,
    ),
]


@app.command()
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
) -> None:
    """A lexicon for the words of a text: pronunciations of a base lexicon, and guesses for the rest.

    Example: murmur lexicon data/train data/dev --base cmudict.dict --guess espeak --out data/lexicon

    Example, letters as phones, no base: murmur lexicon data/train --guess graphemes --out data/lexicon

    All pronunciations of a word are kept. A word that the base has in another case counts as there. What was guessed
    stands in pronunciations.tsv: look it over, correct the lines in a copy of lexicon.txt. What is no word (digits,
    symbols) stands in refused.tsv with the reason. See docs/lexicons.md.
    """
    if (phone_map is not None or voice != "en-us") and guess != "espeak":
        raise SettingError("--voice and --map are for --guess espeak")
    if base is None and (whole or guess == "none"):
        raise SettingError("without --base there is nothing to keep or to look words up in: give one, or --guess")
    if base is not None and base.resolve() == (out / LEXICON).resolve():
        raise SettingError(f"{base} is the base and would be overwritten: choose another --out")
    check(text, base, guess, phone_map, out)
    entries = [] if base is None else read_lexicon(base)
    if stress == "drop":
        entries = without_stress(entries)
    counts = Counter(word for sentence in sentences_of(text) for word in sentence.split())
    words = [*counts, *(word for word, _ in entries)] if whole else list(counts)
    found = complete(words, entries, guesser(guess, entries, digits, voice, phone_map))
    if not found.origins:
        raise SettingError(f"none of the {len(counts)} words has a pronunciation; the first: {found.reasons()}")
    found.write(out)
    typer.echo(summary(found, counts))
    typer.echo(str(out / LEXICON))


def check(text: list[Path], base: Path | None, guess: Guess, phone_map: Path | None, out: Path) -> None:
    """Check that all files can be read and the folder be written, before any is read.

    Raises:
        SettingError, SynthesisError: names what is missing.
    """
    check_text(text)
    for path, option in ((base, "--base"), (phone_map, "--map")):
        if path is not None:
            file_to_read(path, option)
    folder_to_write(out, "--out")
    if guess == "espeak":
        check_installed()


def summary(found: Completed, counts: Counter[str]) -> str:
    """How many words of which origin, what was refused, and what share of the running text that is."""
    origins = Counter(how.partition(" as ")[0] for how in {word: how for word, _, how in found.origins}.values())
    words = sum(origins.values())
    lines = [f"{words} words, {len(found.origins)} pronunciations"]
    lines += [f"  {count} {how}" for how, count in origins.most_common()]
    if found.refused:
        running = sum(counts[word] for word in found.refused)
        share = 100 * running / counts.total()
        lines.append(f"  {len(found.refused)} refused, {share:.2f} % of the running words: {found.reasons()}")
    return "\n".join(lines)
