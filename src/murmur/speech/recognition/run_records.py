"""Records of a run's experiment and tuning: run.json and score.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from murmur.core.errors import SettingError
from murmur.core.printable import say
from murmur.engine.experiment import describe, differences
from murmur.engine.task import Task
from murmur.execution.executors import Jobs
from murmur.report.records import is_number
from murmur.run.configuration import resolved
from murmur.run.origin import is_of, located
from murmur.speech.corpus.file_content import read_object

SETTINGS = ("acoustic_scale", "insertion_penalty", "beam", "max_active")
IRRELEVANT = ("cache", "jobs", "executor")  # settings without effect on results


def task_of(folder: Path, source: str, settings: Sequence[str], jobs: Jobs | None = None) -> Task:
    """Return the task of a run's experiment, with the run's settings and then `settings`.

    Paths are the present ones of the run's files. Changes of the experiment since the run began are reported on
    standard error, because a model needs the front end of its training.
    """
    trained, run = settings_of(folder, source), recorded(folder, "run.json")
    if not is_of(run, source):
        return resolved(source, [*trained, *settings], jobs).task
    found = located(folder, run, settings)
    if then := described_task(run):
        for said in _differences(then, source, trained):
            say(f"murmur: {source} has changed since {folder} was trained: {said}", err=True)
    return resolved(source, [*trained, *found, *settings], jobs).task


def _differences(then: Mapping[str, Any], source: str, trained: Sequence[str]) -> list[str]:
    try:
        now = describe(resolved(source, trained).task)
    except SettingError as error:  # further settings may correct this
        return [f"the run's settings are not valid by themselves any more: {error}"]
    found = differences(then, now, "task", IRRELEVANT)
    return [f"{name} was {was} and is {value} now" for name, was, value in found]


def described_task(run: Mapping[str, Any]) -> Mapping[str, Any]:
    """Task of an experiment as run.json describes it; empty if it does not."""
    described = run.get("experiment")
    task = described.get("task") if isinstance(described, dict) else None
    return task if isinstance(task, dict) else {}


def experiment_name(folder: Path, run: Mapping[str, Any]) -> str:
    """Experiment and type of its task, from run.json; the folder's name if it states none."""
    source = run.get("source_file", run.get("source", folder.name))
    kind = described_task(run).get("type")
    return f"{source}, {kind.rpartition('.')[2]}" if isinstance(kind, str) else str(source)


def settings_of(folder: Path, source: str) -> list[str]:
    """Settings of a run's training; empty if there is no record, or if it is of another experiment."""
    run = recorded(folder, "run.json")
    found = run.get("settings", []) if is_of(run, source) else []
    return [str(s) for s in found if str(s).startswith("task.")] if isinstance(found, list) else []


def scales_of(folder: Path, system: str = "network") -> dict[str, Any]:
    """Search settings of a system that the run tuned on dev, from its score.json; empty if it was not tested."""
    found = recorded(folder, "score.json").get("test")
    figures = {name: x for name, x in found.items() if is_number(x)} if isinstance(found, dict) else {}
    names = {field: field.replace("_", " ") for field in SETTINGS}
    tuned = {field: figures.get(f"{system} dev {name}", figures.get(name)) for field, name in names.items()}
    return {f: int(x) if f == "max_active" else float(x) for f, x in tuned.items() if x is not None}


def recorded(folder: Path, name: str) -> dict[str, Any]:
    """Read a record of a run; empty if there is none.

    Raises:
        CorpusError: the record is damaged.
    """
    path = folder / name
    return read_object(path, "restore it, or move it away and give its settings as options") if path.is_file() else {}
