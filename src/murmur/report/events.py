"""Runs as TensorBoard event files, a copy of the records for comparing runs in TensorBoard.

Each run has a folder, and in it one folder per learner, so that TensorBoard draws learners as curves of one chart. The
steps of all curves are global samples; wall times are the run's start plus its seconds of training.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from murmur.core.plain_files import UNREADABLE, refuse_link
from murmur.core.whole_files import FinishedLines
from murmur.report.about import strategy_of
from murmur.report.cells import folders_of
from murmur.report.read import ReportError, Run, names_of, read_run
from murmur.report.records import KINDS, is_number
from murmur.run.folder.contents import written

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

STEP_FIGURES = ("loss", "rate", "staleness", *(f"{kind}_seconds" for kind in KINDS))
MARK = ".murmur-events"


def write_events(runs: Sequence[Path], out: Path) -> list[Path]:
    """Write the runs as event files, replacing those of an earlier call for the same run.

    Args:
        runs: run folders, and folders of comparisons.
        out: folder for `tensorboard --logdir`.

    Returns:
        The folder of each run.

    Raises:
        ReportError: tensorboard is not installed, a folder is not a run's folder, or an output folder holds files that
            `write_events` did not write.
    """
    try:
        from torch.utils.tensorboard.writer import SummaryWriter  # noqa: PLC0415 - the extra `viz` is optional
    except ImportError as error:
        raise ReportError("event files need tensorboard: pip install 'murmur-asr[viz]'") from error
    made, folders = [], folders_of(runs)
    for folder, name in zip(folders, names_of(folders), strict=True):
        run = read_run(folder, name)
        target = out / name.replace("/", "-")
        empty(target)
        with SummaryWriter(str(target)) as writer:
            _about(writer, run)
            _held_out(writer, run)
        _steps(SummaryWriter, run, target)
        made.append(target)
    return made


def empty(target: Path) -> None:
    """Make an empty folder for event files."""
    refuse_link(target)
    if target.exists():
        if not (target / MARK).is_file():
            raise ReportError(f"{target} was not written by murmur report --tensorboard: name another folder")
        shutil.rmtree(target)
    target.mkdir(parents=True)
    (target / MARK).touch()


def records_of(run: Run) -> Iterator[Mapping[str, Any]]:
    """Steps and evaluations with a known place; damaged and unfinished lines are skipped, as in the page."""
    path = run.folder / "records.jsonl"
    if not path.is_file():
        return
    for line in FinishedLines(path):
        try:
            row = json.loads(line)
        except UNREADABLE:
            continue
        if isinstance(row, dict) and all(is_number(row.get(key)) for key in ("samples", "seconds")):
            yield row


def _about(writer: SummaryWriter, run: Run) -> None:
    experiment = run.facts.get("experiment")
    if isinstance(experiment, Mapping):
        writer.add_text("experiment", f"```\n{json.dumps(experiment, indent=1, ensure_ascii=False)}\n```")
    command = run.facts.get("command")
    if isinstance(command, list):
        writer.add_text("command", " ".join(map(str, command)))
    figures = {f"final/{name}": value for name, value in run.heldout.items()}
    if run.headline is not None:
        figures["final/wer"] = run.headline.percent
    if figures:
        writer.add_hparams(dict(hyperparameters(run)), figures, run_name=".")


def hyperparameters(run: Run) -> Iterator[tuple[str, str | float]]:
    """Fields of the resolved experiment by their dotted names, learners and strategy."""
    yield "learners", run.learners
    yield "strategy", strategy_of(run.facts)
    experiment = run.facts.get("experiment")
    if isinstance(experiment, Mapping):
        yield from _flat("", experiment)


def _flat(before: str, value: Mapping[str, Any]) -> Iterator[tuple[str, str | float]]:
    for name, field in value.items():
        dotted = f"{before}{name}"
        if dotted == "strategy" or name == "type":
            continue
        if isinstance(field, Mapping):
            yield from _flat(f"{dotted}.", field)
        elif is_number(field) or isinstance(field, bool):
            yield dotted, field
        elif field is not None:
            yield dotted, written(field)


def _held_out(writer: SummaryWriter, run: Run) -> None:
    began = start_of(run)
    for evaluation in run.records.evaluations:
        at = {"global_step": int(evaluation.samples), "walltime": began + evaluation.seconds}
        for name, value in evaluation.figures.items():
            writer.add_scalar(f"held-out/{name}", value, **at)
        if evaluation.consensus_distance is not None:
            writer.add_scalar("averaging/consensus distance", evaluation.consensus_distance, **at)


def _steps(make: type[SummaryWriter], run: Run, target: Path) -> None:
    began = start_of(run)
    writers: dict[int, SummaryWriter] = {}
    try:
        for row in records_of(run):
            if row.get("kind") != "step" or not isinstance(row.get("learner"), int):
                continue
            learner = row["learner"]
            if learner not in writers:
                writers[learner] = make(str(target / f"learner-{learner}"))
            at = {"global_step": int(row["samples"]), "walltime": began + row["seconds"]}
            for name in STEP_FIGURES:
                if is_number(row.get(name)):
                    place = "seconds of a step" if name.endswith("_seconds") else "training"
                    writers[learner].add_scalar(f"{place}/{name.removesuffix('_seconds')}", row[name], **at)
    finally:
        for writer in writers.values():
            writer.close()


def start_of(run: Run) -> float:
    """Seconds since 1970 at which the run began; 0 if unknown, and for a simulated run."""
    started = run.facts.get("started")
    if run.simulated or not isinstance(started, str):
        return 0.0
    try:
        return datetime.fromisoformat(started).timestamp()
    except ValueError:
        return 0.0  # a text in another format: the axis then begins at 0
