"""`murmur prepare`: make data sets from published corpora, features from speech, and the data of an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from murmur.commands.options import Parallel, Settings, grouped
from murmur.core.errors import READ_ONLY, SettingError, nearest
from murmur.core.path_checks import folder_to_write
from murmur.core.printable import say
from murmur.engine.task import Preparable
from murmur.execution.executors import Jobs
from murmur.run.configuration import recipe_names, resolved
from murmur.run.folder.lock import beside, locked
from murmur.run.preparation import task_to_do, tell_preparation
from murmur.run.timed import timed
from murmur.speech.corpus.corpus import LOST_AT_MOST, Problem
from murmur.speech.corpus.published.catalogue import CORPORA, Published
from murmur.speech.corpus.published.dataset_writer import earlier_splits, write_set
from murmur.speech.corpus.published.fetch import fetch
from murmur.speech.corpus.published.readers import with_plain_audio
from murmur.speech.corpus.remote import is_remote, location
from murmur.speech.features.cmvn import Scope
from murmur.speech.features.shards import Storage
from murmur.speech.tasks.prepare_data import Kind, Making, Wanted, check, prepare_data
from murmur.speech.tasks.published_set import chosen_parts, contents, from_only, listing

app = typer.Typer(add_completion=False)
CACHE, SETS = Path("runs/cache"), Path("corpora")
FOR_DATA = "--kind, --bins, --alignments and --allow-commands are for data; an experiment has settings"

Source = Annotated[
    str,
    typer.Argument(
        metavar="CORPUS|DATA|EXPERIMENT",
        help="A published corpus with --from or --download, a Kaldi data directory, a lhotse cut manifest (.jsonl, "
        ".jsonl.gz) or Shar folder, each a path or a URL (s3://, gs://, https://), or an experiment.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the data set (default corpora/CORPUS) or of the feature store (default runs/cache); aligned "
        "frames may go to a URL (s3://, gs://)."
    ),
]


@dataclass(frozen=True)
class FeatureOptions:
    """The features of data.

    Attributes:
        kind: log-mel (default for audio), mfcc, or stored: the features of feats.scp as they are.
        bins: Mel bins; by default 80 for log-mel and 23 for mfcc.
        cmvn: Scope of the mean and deviation that are written, or removed from aligned frames.
        alignments: Classes of all frames, as .npz (a path or a URL) or a folder of ali.*.gz; makes a corpus for the
            recipe `frames`.
        storage: Type of the values of aligned frames: 4, 2 or 1 bytes each.
        allow_commands: Run the shell commands in wav.scp. Use it only with data whose programs you would run.
    """

    panel: ClassVar[str] = "Features of data"
    kind: Kind | None = None
    bins: Annotated[int | None, typer.Option(min=1)] = None
    cmvn: Scope = "speaker"
    alignments: Path | None = None
    storage: Storage = "float16"
    allow_commands: bool = False

    @property
    def wanted(self) -> Wanted:
        """The request of features."""
        alignments = None if self.alignments is None else location(self.alignments)
        return Wanted(self.kind, self.bins, self.cmvn, alignments, self.allow_commands)


@dataclass(frozen=True)
class From:
    """Source of a published corpus.

    Attributes:
        folder: Folder with the unpacked corpus; no network is used.
        download: Fetch the archives into this folder and unpack them there.
        parts: Use only this part of the corpus (see --list); repeatable.
        mirror: Address of the archives, in place of the publisher's.
        skip: Leave unusable utterances out, however many, and name all of them.
    """

    panel: ClassVar[str] = "Published corpora"
    folder: Annotated[Path | None, typer.Option("--from")] = None
    download: Path | None = None
    parts: Annotated[tuple[str, ...], typer.Option("--part")] = ()
    mirror: str | None = None
    skip: bool = False


def show_corpora(wanted: bool) -> None:
    """Print the list of corpora and end the program if `wanted`."""
    if wanted:
        say("\n".join(listing()))
        raise typer.Exit


List = Annotated[
    bool,
    typer.Option(
        "--list",
        help="Show the corpora with size, licence and parts.",
        is_eager=True,
        callback=show_corpora,
        rich_help_panel=From.panel,
    ),
]


@app.command()
@grouped
def prepare(
    source: Source,
    *,
    out: Out = None,
    features: FeatureOptions,
    places: From,
    listed: List = False,  # noqa: ARG001 - its callback does the work
    parallel: Parallel,
    settings: Settings = (),
) -> None:
    """Prepare a published corpus for training, the features of data, or everything that an experiment needs.

    Example: murmur prepare yesno --download downloads && murmur train yesno

    Example: murmur prepare data/train --kind mfcc --cmvn speaker --jobs 4 --out runs/cache

    Example: murmur prepare data/train --alignments exp/tri/pdfs --storage uint8 --jobs 4 --out runs/train

    The name of a recipe or a .py file is an experiment; with --from or --download a name is a corpus. Unusable
    utterances are named and left out; more than 1 % of them is an error without --skip.
    """
    wanted = features.wanted
    plain = wanted == Wanted(None, None, features.cmvn, None)
    if places != From() or (source in CORPORA and source not in recipe_names()):
        refuse(settings or not plain, "options of features and --set are not for corpora")
        refuse(parallel.executor, "--executor is for features and experiments: this host reads a corpus")
        prepare_set(source, places, out or SETS / source, parallel.jobs or 1)
    elif source in recipe_names() or source.endswith(".py"):
        refuse(not plain, FOR_DATA)
        prepare_experiment(source, settings, parallel.chosen)
    else:
        refuse(settings, f"--set is for experiments, and {source!r} is neither a recipe nor a .py file")
        prepare_features(source, wanted, Making(location(out or CACHE), features.storage, parallel.chosen or 1))


def prepare_set(name: str, places: From, out: Path, jobs: int) -> None:
    """Fetch, read and write a published corpus; print its contents and the next commands.

    Raises:
        SettingError: the corpus or a part is unknown, or there is not exactly one source.
        CorpusError: the corpus cannot be fetched, read or used; the message names what is missing.
    """
    folder_to_write(out, "--out")
    if places.download is not None:
        folder_to_write(places.download, "--download")
    with locked(beside(out)):
        corpus, folder = published(name, places)
        chosen = chosen_parts(name, places.parts, download=places.download is not None)
        if places.download is not None:
            fetch(corpus, chosen, places.download, places.mirror)
        with timed(f"reading {name} in {folder}"):
            read = corpus.read(folder, tuple(part.name for part in chosen), jobs)
        if places.parts and read.absent:
            lacking = ", ".join(read.absent)
            raise SettingError(f"{folder} lacks {lacking}: choose other parts, or fetch them by --download")
        earlier_splits(out, name)  # refuses a folder of other data before recordings are unpacked into it
        with timed(f"recordings of {name}"):
            read = with_plain_audio(read, out / "audio", jobs)
        manifest = write_set(out, name, corpus, read, 1.0 if places.skip else LOST_AT_MOST)
        for split, facts in manifest["splits"].items() if places.skip else ():
            for problem in facts["skipped"]:
                say(f"data/{split} without {Problem(**problem)}")
        for line in contents(corpus, out, manifest):
            say(line)


def published(name: str, places: From) -> tuple[Published, Path]:
    """Check the name and the source of a published corpus; return it with its folder."""
    refuse(name not in CORPORA, f"there is no corpus {name!r}{nearest(name, list(CORPORA))}; see --list")
    corpus, folder = CORPORA[name], places.folder or places.download
    if folder is None or None not in (places.folder, places.download):
        ways = "--from FOLDER takes an unpacked copy, --download FOLDER fetches one (not both)"
        raise SettingError(f"where is {name}? {ways if corpus.address else from_only(name, corpus)}")
    if places.download is not None and not corpus.address:
        raise SettingError(from_only(name, corpus))
    refuse(places.mirror is not None and places.download is None, "--mirror is for --download")
    return corpus, folder


def prepare_features(source: str, wanted: Wanted, how: Making) -> None:
    """Make the features of data while holding the lock of their folder."""
    if not is_remote(location(source)) and not Path(source).exists():
        known = nearest(source, recipe_names())
        raise SettingError(f"{source!r} is not a folder, a manifest, a .py file or a recipe{known}")
    check(source, wanted, how.out)
    with nullcontext() if is_remote(how.out) else locked(beside(how.out)):
        prepare_data(source, wanted, how)


def prepare_experiment(source: str, settings: Sequence[str], jobs: Jobs | None) -> None:
    """Make all data that an experiment needs for training, while holding the lock of its cache."""
    task = resolved(source, settings, jobs).task
    task_to_do(task)
    complete = not tell_preparation(task) and isinstance(task, Preparable)
    cache = getattr(task, "cache", None)
    with ExitStack() as held:
        try:
            if isinstance(cache, Path):
                held.enter_context(locked(beside(cache)))
        except OSError as error:
            if not complete or error.errno not in READ_ONLY:  # nothing is written to a complete cache
                raise
        held.enter_context(timed(f"preparing {source}"))
        task.prepare()


def refuse(where: object, message: str) -> None:
    """Refuse options that do not fit: `where` is not empty."""
    if where:
        raise SettingError(message)
