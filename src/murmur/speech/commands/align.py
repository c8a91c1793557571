"""`murmur align`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from murmur.commands.options import Parallel, Settings, grouped
from murmur.core.counted import counted
from murmur.core.errors import SettingError, nearest
from murmur.core.path_checks import folder_to_write
from murmur.core.printable import say
from murmur.run.configuration import resolved
from murmur.run.preparation import task_to_do
from murmur.run.timed import timed
from murmur.speech.tasks.hybrid.alignments import write_alignments
from murmur.speech.tasks.hybrid.task import HybridTask

app = typer.Typer(add_completion=False)
PARTS = ("train", "dev", "test")

Source = Annotated[
    str, typer.Argument(metavar="EXPERIMENT", help="A hybrid experiment: a Python file or the name of a recipe.")
]
Out = Annotated[Path, typer.Option(help="Folder for the alignments; each part has a folder below it.")]
Parts = Annotated[
    tuple[str, ...], typer.Option("--part", help="train, dev or test; repeatable; train and dev by default.")
]
StageOption = Annotated[
    str | None, typer.Option(help="Gaussian system: monophone, triphone, lda or sat; the last one by default.")
]


@app.command()
@grouped
def align(
    source: Source,
    out: Out = Path("runs/align"),
    parts: Parts = (),
    stage: StageOption = None,
    settings: Settings = (),
    *,
    parallel: Parallel,
) -> None:
    """Train the Gaussian systems of a hybrid experiment and write their alignments.

    Example: murmur align yesno --set task.corpus=FOLDER --out runs/align --jobs 2

    Each part gets phones.ctm and words.ctm (lines of utterance, 1, start, duration, label; in seconds), pdfs.npz (for
    each utterance an array with one pdf per frame: the targets of a network) and summary.json (frames, pdfs, share of
    silence, utterances without an alignment). Every stage is stored in task.cache; after an interruption the same
    command continues with the next stage.
    """
    task = resolved(source, settings, parallel.chosen).task
    if not (isinstance(task, HybridTask) and task.criterion.aligned):
        raise SettingError(
            f"{source} trains a {type(task).__name__}, which needs no alignment: name a hybrid experiment"
        )
    check(task, parts, stage, out)
    with timed("Gaussian systems"):
        systems = {each.name: each for each in task.hmms.trained}
    system = systems[stage or list(systems)[-1]]
    for part in parts or ("train", "dev"):
        corpus = task.utterances(part)
        with timed(f"aligning {part}"):
            tids = task.aligned(system, part)
        facts = write_alignments(system, corpus.texts, tids, out / part)
        say(
            f"{part}: {counted(facts['utterances'], 'utterance')}, {counted(facts['frames'], 'frame')},"
            f" {facts['silence']:.0%} silence; {out / part}"
        )


def check(task: HybridTask, parts: Sequence[str], stage: str | None, out: Path) -> None:
    """Check names and paths before anything is prepared.

    Raises:
        SettingError, CorpusError: something is missing or unknown; the message names it.
    """
    for part in parts:
        if part not in PARTS:
            raise SettingError(f"--part {part!r} is not one of {', '.join(PARTS)}{nearest(part, PARTS)}")
    names = task.hmm.names
    if stage is not None and stage not in names:
        raise SettingError(f"the experiment has no stage {stage!r}{nearest(stage, names)}")
    folder_to_write(out, "--out")
    task_to_do(task)
