"""Experiment of a trained run, loaded only for its corpus or for a network class of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from murmur.core.errors import SettingError
from murmur.engine.task import Recognises
from murmur.recognition.run_records import recorded, settings_of, task_of
from murmur.run.configuration import resolved
from murmur.run.origin import source_of
from murmur.tasks.acoustic_model import NetworkConfig, UnknownNetwork, made_network, type_name


@dataclass(frozen=True)
class Origin:
    """Experiment that trained a model.

    Attributes:
        folder: Folder of the run.
        given: Experiment as the caller names it, a file or a recipe; None for the one that run.json names.
        settings: Changes to the experiment.
        trust: True if any Python file that run.json names may be run.
        jobs: Number of processes; None for the experiment's.
    """

    folder: Path
    given: str | None
    settings: tuple[str, ...]
    trust: bool
    jobs: int | None

    @cached_property
    def source(self) -> str:
        """File or recipe of the experiment.

        Raises:
            SettingError: run.json names none, or a file that may not be run.
        """
        return self.given or source_of(self.folder, recorded(self.folder, "run.json"), self.trust)

    @cached_property
    def task(self) -> Recognises:
        """Task of the experiment, set to prepare nothing.

        Raises:
            SettingError: the task recognises no speech, or files of the experiment are not there.
        """
        task = task_of(self.folder, self.source, self.settings, self.jobs)
        if not isinstance(task, Recognises):
            raise SettingError(f"{self.source} trains a {type(task).__name__}, which recognises no speech")
        return _preparing_nothing(task)

    def network(self, wanted: UnknownNetwork) -> NetworkConfig:
        """Description of a network by the class of that name which the experiment's task uses; needs no corpus.

        Raises:
            SettingError: the experiment may not be run, or uses no such class.
        """
        task = resolved(self.source, [*settings_of(self.folder, self.source), *self.settings]).task
        kind = next((type(value) for value in _values_in(task) if type_name(value) == wanted.type), None)
        if kind is None:
            raise SettingError(f"the task of {self.source} uses no such class: name its experiment with --experiment")
        try:
            made: NetworkConfig = made_network(kind, wanted.values)
        except (TypeError, ValueError) as error:
            raise SettingError(f"the class of {self.source} does not take the run's values: {error}") from error
        return made


def experiment_name(folder: Path, run: Mapping[str, Any]) -> str:
    """Experiment and type of its task, from run.json; the folder's name if it states none."""
    source = run.get("source_file", run.get("source", folder.name))
    described = run.get("experiment")
    task = described.get("task") if isinstance(described, dict) else None
    while isinstance(task, dict) and isinstance(task.get("task"), dict):  # started from a trained model
        task = task["task"]
    kind = task.get("type") if isinstance(task, dict) else None
    return f"{source}, {kind.rpartition('.')[2]}" if isinstance(kind, str) else str(source)


def recorded_jobs(run: Mapping[str, Any], task: object = None) -> int:
    """Number of processes of a task, or of the task that run.json describes; 1 if none is stated."""
    described = run.get("experiment")
    described = described.get("task") if isinstance(described, dict) else None
    jobs = getattr(task, "jobs", described.get("jobs") if isinstance(described, dict) else None)
    return jobs if isinstance(jobs, int) and jobs > 0 else 1


def _preparing_nothing(task: Recognises) -> Recognises:
    names: list[str] = [field.name for field in fields(task)] if is_dataclass(task) else []
    refusing: Any = replace(task, absent="refuse") if "absent" in names else task  # type: ignore[type-var]
    made: Recognises = refusing
    return made


def _values_in(value: object) -> Iterator[object]:
    """Dataclass values among a value's fields, at any depth."""
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            inner = getattr(value, field.name)
            yield inner
            yield from _values_in(inner)
