"""`murmur lm train | prune | perplexity`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from murmur.commands.options import WritingRule
from murmur.core.counted import are, counted
from murmur.core.errors import SettingError
from murmur.core.path_checks import file_to_read, file_to_write, not_an_input
from murmur.core.printable import say
from murmur.core.whole_files import in_place_of
from murmur.run.timed import timed
from murmur.speech.corpus.left_out import left_out
from murmur.speech.corpus.text_lines import text_lines
from murmur.speech.language_model.arpa import read_arpa, write_arpa
from murmur.speech.language_model.entropy_pruning import prune
from murmur.speech.language_model.kneser_ney import UNKNOWN, KneserNey, TrainedLanguageModel, frequent_words, words_of
from murmur.speech.language_model.ngram import UNKNOWN_NAMES, NgramModel, perplexity
from murmur.speech.lexicon.lexicon import listed_words
from murmur.tasks.sentences import check_text, files_of, sentences_of

app = typer.Typer(
    help="Language models in ARPA format: train (modified Kneser-Ney), prune (relative entropy), perplexity.\n\n"
    "Example: murmur lm train text.txt --order 3 --out lm.arpa.gz",
    no_args_is_help=True,
    add_completion=False,
)

Text = Annotated[
    list[Path],
    typer.Argument(
        metavar="TEXT...",
        help="Files of sentences, one per line (also .gz), folders of them, or Kaldi data directories.",
    ),
]
Model = Annotated[Path, typer.Argument(metavar="LM", help="ARPA file, plain or .gz.")]
Cutoffs = Annotated[
    str | None,
    typer.Option(help="One number per order, such as 0,0,1: n-grams that occur no more often than that are left out."),
]
Unknown = Annotated[
    str | None,
    typer.Option(
        help="Word for everything outside the vocabulary, <unk> or <UNK>, and for the other one in TEXT; '' for a"
        " closed vocabulary."
    ),
]
Out = Annotated[Path, typer.Option(help="ARPA file to write; compressed if its name ends in .gz.")]


@app.command("train")
def train_command(
    text: Text,
    out: Out,
    order: Annotated[int, typer.Option(min=1, max=4, help="Length of the longest n-gram, in words.")] = 3,
    cutoffs: Cutoffs = None,
    vocabulary: Annotated[
        Path | None, typer.Option(help="File of words, one per line (or a lexicon); other words count as unknown.")
    ] = None,
    most: Annotated[int | None, typer.Option(min=1, help="Keep only this many words, the most frequent ones.")] = None,
    unknown: Unknown = UNKNOWN,
    writing: WritingRule = "as-is",
) -> None:
    """Estimate an interpolated modified Kneser-Ney model.

    Example: murmur lm train text.txt --order 3 --most 20000 --cutoffs 0,0,1 --out lm.arpa.gz

    Example, prose beside transcripts: murmur lm train data/train prose.txt --writing english --out lm.arpa.gz
    """
    if vocabulary is not None and most is not None:
        raise SettingError("--vocabulary and --most both choose the words: give one of them")
    if unknown and unknown not in UNKNOWN_NAMES:
        raise SettingError(f"--unknown {unknown}: readers of models know {' and '.join(UNKNOWN_NAMES)} alone")
    config = KneserNey(order, numbers(cutoffs), unknown or None)
    file_to_write(out, "--out")
    check_text(text)
    if vocabulary is not None:
        file_to_read(vocabulary, "--vocabulary")
    not_an_input(out, "--out", [*(file for path in text for file in files_of(path)), *filter(None, [vocabulary])])
    lines = sentences_of(text, writing)
    words = None if vocabulary is None else listed_words(text_lines(vocabulary))
    words = words if most is None else frequent_words(lines, most)
    with timed(f"counting and estimating {counted(len(lines), 'sentence')}"):
        trained = config.train(lines, words)
    for fallen in trained.fell_back:
        say(f"order {fallen}: too little text to estimate discounts; 0.5, 1, 1.5 are used", err=True)
    with timed(f"writing {out}"):
        write(trained.model, out)
    _tell_unknown(trained, lines, vocabulary)


def _tell_unknown(trained: TrainedLanguageModel, lines: Sequence[str], vocabulary: Path | None) -> None:
    """Print the size of a trained model and the words of its text that are outside the vocabulary."""
    lost = trained.unknown_words
    say(f"{summary(trained.model)}; {counted(lost, 'word')} of the text {are(lost)} outside the vocabulary")
    if vocabulary is not None and lost:
        say(left_out("word", outside(lines, trained.model, vocabulary)))


def outside(lines: Sequence[str], model: NgramModel, vocabulary: Path) -> list[tuple[str, str]]:
    """Words of a text that a model lacks, each with the reason."""
    known = set(model.words)
    lost = dict.fromkeys(word for line in lines for word in words_of(line) if word not in known)
    return [(word, f"not in {vocabulary}") for word in lost]


@app.command("prune")
def prune_command(
    model: Model,
    out: Out,
    threshold: Annotated[
        float, typer.Option(help="Remove n-grams whose removal raises the perplexity by a smaller share than this.")
    ] = 1e-8,
) -> None:
    """Make a model smaller by relative entropy pruning (Stolcke 1998).

    Example: murmur lm prune lm.arpa.gz --threshold 1e-7 --out small.arpa.gz

    Compare the perplexities of both models afterwards: Kneser-Ney models lose more than others.
    """
    file_to_read(model, "LM")
    file_to_write(out, "--out")
    not_an_input(out, "--out", [model])
    with timed(f"reading {model}"):
        before = read_arpa(model)
    with timed("pruning"):
        after = prune(before, threshold)
    write(after, out)
    say(f"before: {summary(before)}\nafter:  {summary(after)}")


@app.command("perplexity")
def perplexity_command(model: Model, text: Text, writing: WritingRule = "as-is") -> None:
    """Measure the perplexity of a text under a model, and count the words that the model does not know.

    Example: murmur lm perplexity lm.arpa.gz data/dev
    """
    file_to_read(model, "LM")
    check_text(text)
    with timed(f"reading {model}"):
        loaded = read_arpa(model)
    say(str(perplexity(loaded, sentences_of(text, writing))))


def numbers(text: str | None) -> tuple[int, ...]:
    """Parse whole numbers separated by commas; None gives an empty tuple.

    Raises:
        SettingError: the text holds something else.
    """
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError as error:
        raise SettingError(f"--cutoffs {text!r}: give whole numbers separated by commas, one per order") from error


def write(model: NgramModel, out: Path) -> None:
    """Write a model under another name first, so that `out` is complete at any time; a FIFO or a device is kept."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with in_place_of(out, ".gz" if out.suffix == ".gz" else "") as beside:  # the suffix decides on compression
        write_arpa(model, beside)


def summary(model: NgramModel) -> str:
    """Numbers of words and of n-grams by order."""
    counts = ", ".join(counted(len(grams), f"{n}-gram") for n, grams in enumerate(model.orders, 1))
    return f"{counted(len(model.words), 'word')}; {counts}"
