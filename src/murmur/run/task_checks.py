"""Checks before work: trained models, and what a task says of its own paths and names. They take milliseconds."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open

from murmur.core.errors import SettingError
from murmur.engine.experiment import Experiment
from murmur.engine.task import Checkable
from murmur.run.saved_model import FILES, Choice, find_model


def model_to_read(path: Path, choice: Choice | None = None) -> Path:
    """The file, without suffix, of a trained model whose header is whole.

    Raises:
        SettingError: there is none, or it is damaged.
    """
    stem = find_model(path, choice)
    file = stem.with_suffix(".safetensors")
    try:
        with safe_open(file, framework="numpy"):
            return stem
    except (SafetensorError, OSError) as error:
        raise SettingError(f"{file} cannot be read: {error}") from error


def task_to_do(task: object) -> None:
    """Check the paths and names of a task, where it offers that.

    Raises:
        SettingError, CorpusError: something is not there; names the setting.
    """
    if isinstance(task, Checkable):
        task.check()


def tested_model(experiment: Experiment, choice: Choice | None) -> None:
    """Check that a run of this experiment will have the model that is to be tested.

    Raises:
        SettingError: it keeps no marks to average.
    """
    if choice == "averaged" and experiment.averaged_checkpoints == 0:
        known = ", ".join(name for name in ("lowest", *FILES) if name != "averaged")
        raise SettingError(
            f"--weights averaged needs averaged_checkpoints of 1 or more: set it, or choose one of {known}"
        )
