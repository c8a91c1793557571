"""`murmur lm train | prune | perplexity`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.progress import TaskID

from murmur.commands.options import grouped, memory_bytes, numbers
from murmur.core.counted import are, counted
from murmur.core.errors import SettingError
from murmur.core.path_checks import file_to_read, file_to_write, folder_to_write, not_an_input
from murmur.core.printable import say
from murmur.execution.processes import bar_of
from murmur.run.timed import timed
from murmur.speech.corpus.corpus import left_out
from murmur.speech.corpus.file_content import text_lines
from murmur.speech.corpus.published.transcripts import Writing
from murmur.speech.language_model.arpa import read_arpa, write_arpa
from murmur.speech.language_model.columns import Scratch
from murmur.speech.language_model.kneser_ney import KneserNey
from murmur.speech.language_model.lmplz import check_lmplz, write_with_lmplz
from murmur.speech.language_model.ngram import UNKNOWN, UNKNOWN_NAMES, perplexity, prune
from murmur.speech.language_model.ngram_counts import frequent_words
from murmur.speech.lexicon.lexicon import listed_words
from murmur.speech.tasks.texts import SentenceFiles, check_text, files_of

app = typer.Typer(
    help="Language models in ARPA format: train (modified Kneser-Ney), prune (relative entropy), perplexity.\n\n"
    "Example: murmur lm train text.txt --order 3 --out lm.arpa.gz",
    no_args_is_help=True,
    add_completion=False,
)

Text = Annotated[
    tuple[Path, ...],
    typer.Argument(
        metavar="TEXT...",
        help="Files of words or sentences, one per line (also .gz), folders of them, or Kaldi data directories.",
    ),
]
Model = Annotated[Path, typer.Argument(metavar="LM", help="ARPA file, plain or .gz.")]
WritingRule = Annotated[
    Writing,
    typer.Option(
        help="Rule for the words of text files; english and unspaced are those by which `murmur prepare` writes"
        " transcripts (capitals without punctuation; without spaces). Data directories stay as they are."
    ),
]
Out = Annotated[Path, typer.Option(help="ARPA file to write; compressed if its name ends in .gz.")]


@dataclass(frozen=True)
class Estimate:
    """The n-grams and the words of a model.

    Attributes:
        order: Length of the longest n-gram, in words.
        cutoffs: One number per order, such as 0,0,1: n-grams that occur no more often than that are left out.
        vocabulary: File of words, one per line (or a lexicon); other words count as unknown.
        most: Keep only this many words, the most frequent ones.
        unknown: Word for everything outside the vocabulary, <unk> or <UNK>, and for the other one in TEXT; '' for a
            closed vocabulary.
    """

    order: Annotated[int, typer.Option(min=1, max=4)] = 3
    cutoffs: str | None = None
    vocabulary: Path | None = None
    most: Annotated[int | None, typer.Option(min=1)] = None
    unknown: str | None = UNKNOWN


@dataclass(frozen=True)
class Resources:
    """Program, memory and disk for estimating.

    Attributes:
        memory: Memory for n-grams, such as 500M or 2G; beyond it they are sorted in temporary files. Words, and some
            250 MB of the program, come on top. The model is the same. By default everything is held in memory.
        temporary: Folder of temporary files; by default that of --out, or TMPDIR if --out is not a file. They have no
            names, and take up to 48 bytes for each word and order.
        tool: murmur, or lmplz, the program of kenlm; it must be on PATH, and gets --order, --cutoffs, --memory and the
            words.
    """

    memory: str | None = None
    temporary: Path | None = None
    tool: Literal["murmur", "lmplz"] = "murmur"

    def folder(self, out: Path) -> Path | None:
        """Folder of temporary files; None is that of the system."""
        if self.temporary is None and out.exists() and not out.is_file():
            return None
        folder = self.temporary or out.parent
        folder_to_write(folder, "--temporary")
        folder.mkdir(parents=True, exist_ok=True)
        return folder


@app.command("train")
@grouped
def train_command(text: Text, *, out: Out, how: Estimate, resources: Resources, writing: WritingRule = "as-is") -> None:
    """Estimate an interpolated modified Kneser-Ney model.

    Example: murmur lm train text.txt --order 3 --most 20000 --cutoffs 0,0,1 --out lm.arpa.gz

    Example, prose beside transcripts: murmur lm train data/train prose.txt --writing english --out lm.arpa.gz

    Example, a text larger than memory: murmur lm train librispeech-lm-norm.txt.gz --memory 2G --out lm.arpa.gz
    """
    vocabulary, most, unknown = how.vocabulary, how.most, how.unknown
    if vocabulary is not None and most is not None:
        raise SettingError("--vocabulary and --most both choose the words: give one of them")
    if unknown and unknown not in UNKNOWN_NAMES:
        raise SettingError(f"--unknown {unknown}: readers of models know {' and '.join(UNKNOWN_NAMES)} alone")
    config = KneserNey(how.order, numbers(how.cutoffs or "", "--cutoffs"), unknown or None)
    memory = None if resources.memory is None else memory_bytes(resources.memory, "--memory")
    file_to_write(out, "--out")
    check_text(text)
    if vocabulary is not None:
        file_to_read(vocabulary, "--vocabulary")
    not_an_input(out, "--out", [*(file for path in text for file in files_of(path)), *filter(None, [vocabulary])])
    words = None if vocabulary is None else listed_words(text_lines(vocabulary))
    sentences, folder = SentenceFiles(text, writing), resources.folder(out)
    if resources.tool == "lmplz":
        _train_with_lmplz(config, sentences, out, words, most, memory, folder)
        return
    with _progress() as progress:
        trained = config.write(sentences, out, words, most, Scratch(memory, folder, progress))
    for fallen in trained.fell_back:
        say(f"order {fallen}: too little text to estimate discounts; 0.5, 1, 1.5 are used", err=True)
    lost = trained.unknown_words
    say(f"{trained}; {counted(lost, 'word')} of the text {are(lost)} outside the vocabulary")
    if vocabulary is not None and lost:
        say(left_out("word", [(word, f"not in {vocabulary}") for word in trained.outside]))


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """A progress bar for each table."""
    with bar_of() as bar:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield show


def _train_with_lmplz(
    config: KneserNey,
    sentences: SentenceFiles,
    out: Path,
    words: Iterable[str] | None,
    most: int | None,
    memory: int | None,
    folder: Path | None,
) -> None:
    if config.unknown != UNKNOWN:
        raise SettingError(f"--unknown {config.unknown or repr('')}: lmplz knows {UNKNOWN} alone")
    check_lmplz()
    words = words if most is None else frequent_words(sentences, most)
    with timed(f"estimating {out} with lmplz"):
        warnings = write_with_lmplz(config, sentences, out, words, memory, folder)
    for warning in warnings:
        say(f"lmplz: {warning}", err=True)


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
    write_arpa(after, out)
    say(f"before: {before}\nafter:  {after}")


@app.command("perplexity")
@grouped
def perplexity_command(model: Model, text: Text, writing: WritingRule = "as-is") -> None:
    """Measure the perplexity of a text under a model, and count the words that the model does not know.

    Example: murmur lm perplexity lm.arpa.gz data/dev
    """
    file_to_read(model, "LM")
    check_text(text)
    with timed(f"reading {model}"):
        loaded = read_arpa(model)
    say(str(perplexity(loaded, SentenceFiles(text, writing))))
