"""`murmur prepare`: make data sets from published corpora, features from speech, and the data of an experiment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from murmur.commands.options import Jobs, Settings
from murmur.commands.prepare_corpus import From, prepare_corpus, show_corpora
from murmur.core.errors import READ_ONLY, SettingError, nearest
from murmur.core.path_checks import folder_to_write
from murmur.engine.task import Preparable
from murmur.run.configuration import recipe_names, resolved
from murmur.run.folder.lock import beside, locked
from murmur.run.preparation import tell_preparation
from murmur.run.task_checks import task_to_do
from murmur.run.timed import timed
from murmur.speech.corpus.published.catalogue import CORPORA
from murmur.speech.features.cmvn import Scope
from murmur.speech.features.frame_store import Storage
from murmur.tasks.prepare_data import Kind, Making, Wanted, check, prepare_data

app = typer.Typer(add_completion=False)
CACHE, SETS = Path("runs/cache"), Path("corpora")
FEATURES, PUBLISHED = "Features of data", "Published corpora"


Source = Annotated[
    str,
    typer.Argument(
        metavar="CORPUS|DATA|EXPERIMENT",
        help="A published corpus with --from or --download, a Kaldi data directory, a lhotse cut manifest (.jsonl, "
        ".jsonl.gz) or Shar folder, or an experiment.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder of the data set (default corpora/CORPUS) or of the feature store (default runs/cache)."),
]
KindOption = Annotated[
    Kind | None,
    typer.Option(
        help="log-mel (default for audio), mfcc, or stored: the features of feats.scp as they are.",
        rich_help_panel=FEATURES,
    ),
]
Bins = Annotated[
    int | None,
    typer.Option(min=1, help="Mel bins; by default 80 for log-mel and 23 for mfcc.", rich_help_panel=FEATURES),
]
Cmvn = Annotated[
    Scope,
    typer.Option(
        help="Scope of the mean and deviation that are written, or removed from aligned frames.",
        rich_help_panel=FEATURES,
    ),
]
Alignments = Annotated[
    Path | None,
    typer.Option(
        help="Classes of all frames, as .npz or a folder of ali.*.gz; makes a corpus for the recipe `frames`.",
        rich_help_panel=FEATURES,
    ),
]
AllowCommands = Annotated[
    bool,
    typer.Option(
        "--allow-commands",
        help="Run the shell commands in wav.scp. Use it only with data whose programs you would run.",
        rich_help_panel=FEATURES,
    ),
]
StorageOption = Annotated[
    Storage,
    typer.Option(help="Type of the values of aligned frames: 4, 2 or 1 bytes each.", rich_help_panel=FEATURES),
]
FromOption = Annotated[
    Path | None,
    typer.Option("--from", help="Folder with the unpacked corpus; no network is used.", rich_help_panel=PUBLISHED),
]
Download = Annotated[
    Path | None,
    typer.Option(help="Fetch the archives into this folder and unpack them there.", rich_help_panel=PUBLISHED),
]
Parts = Annotated[
    list[str] | None,
    typer.Option(
        "--part", help="Use only this part of the corpus (see --list); repeatable.", rich_help_panel=PUBLISHED
    ),
]
Mirror = Annotated[
    str | None,
    typer.Option(help="Address of the archives, in place of the publisher's.", rich_help_panel=PUBLISHED),
]
List = Annotated[
    bool,
    typer.Option(
        "--list",
        help="Show the corpora with size, licence and parts.",
        is_eager=True,
        callback=show_corpora,
        rich_help_panel=PUBLISHED,
    ),
]


@app.command()
def prepare(
    source: Source,
    out: Out = None,
    kind: KindOption = None,
    bins: Bins = None,
    cmvn: Cmvn = "speaker",
    alignments: Alignments = None,
    storage: StorageOption = "float16",
    allow_commands: AllowCommands = False,
    from_folder: FromOption = None,
    download: Download = None,
    parts: Parts = None,
    mirror: Mirror = None,
    listed: List = False,  # noqa: ARG001 - its callback does the work
    jobs: Jobs = None,
    settings: Settings = None,
) -> None:
    """Prepare a published corpus for training, the features of data, or everything that an experiment needs.

    Example: murmur prepare yesno --download downloads && murmur train yesno

    Example: murmur prepare data/train --kind mfcc --cmvn speaker --jobs 4 --out runs/cache

    Example: murmur prepare data/train --alignments exp/tri/pdfs --storage uint8 --jobs 4 --out runs/train

    The name of a recipe or a .py file is an experiment; with --from or --download a name is a corpus. Unusable
    utterances are named and left out; more than 1 % of them is an error.
    """
    wanted = Wanted(kind, bins, cmvn, alignments, allow_commands)
    plain = wanted == Wanted(None, None, cmvn, None)
    places = From(from_folder, download, tuple(parts or ()), mirror)
    if places != From() or (source in CORPORA and source not in recipe_names()):
        refuse(settings or not plain, "options of features and --set are not for corpora")
        prepare_set(source, places, out or SETS / source, jobs or 1)
    elif source in recipe_names() or source.endswith(".py"):
        refuse(not plain, FOR_DATA)
        prepare_experiment(source, settings or [], jobs)
    else:
        refuse(settings, f"--set is for experiments, and {source!r} is neither a recipe nor a .py file")
        prepare_features(source, wanted, Making(out or CACHE, storage, jobs or 1))


def prepare_set(name: str, places: From, out: Path, jobs: int) -> None:
    """Write the data set of a published corpus while holding the lock of its folder."""
    folder_to_write(out, "--out")
    if places.download is not None:
        folder_to_write(places.download, "--download")
    with locked(beside(out)):
        prepare_corpus(name, places, out, jobs)


def prepare_features(source: str, wanted: Wanted, how: Making) -> None:
    """Make the features of data while holding the lock of their folder."""
    if not Path(source).exists():
        known = nearest(source, recipe_names())
        raise SettingError(f"{source!r} is not a folder, a manifest, a .py file or a recipe{known}")
    check(source, wanted, how.out)
    with locked(beside(how.out)):
        prepare_data(source, wanted, how)


def prepare_experiment(source: str, settings: list[str], jobs: int | None) -> None:
    """Make all data that an experiment needs for training."""
    experiment = resolved(source, settings, jobs)
    task_to_do(experiment.task)
    complete = not tell_preparation(experiment.task) and isinstance(experiment.task, Preparable)
    cache = getattr(experiment.task, "cache", None)
    with cache_lock(cache, complete) if isinstance(cache, Path) else nullcontext(), timed(f"preparing {source}"):
        experiment.task.prepare()


@contextmanager
def cache_lock(cache: Path, complete: bool) -> Iterator[None]:
    """Hold the lock of a cache; a complete one that is read-only needs none, since nothing is written.

    Raises:
        SettingError: another process holds the lock.
        OSError: the lock cannot be made.
    """
    with ExitStack() as held:
        try:
            held.enter_context(locked(beside(cache)))
        except OSError as error:
            if not complete or error.errno not in READ_ONLY:
                raise
        yield


FOR_DATA = "--kind, --bins, --alignments and --allow-commands are for data; an experiment has settings"


def refuse(where: object, message: str) -> None:
    """Refuse options that do not fit.

    Raises:
        SettingError: `where` is not empty.
    """
    if where:
        raise SettingError(message)
