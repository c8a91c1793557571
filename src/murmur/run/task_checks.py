"""Quick checks before slow work: trained models, and the paths and names of a task. They take milliseconds."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open

from murmur.core.errors import SettingError
from murmur.core.plain_files import check_plain
from murmur.engine.experiment import Experiment
from murmur.engine.task import Checkable
from murmur.run.saved_model import FILES, Choice, find_model


def model_to_read(path: Path, choice: Choice | None = None) -> Path:
    """Return a trained model's file without its suffix, after a check of its header.

    Raises:
        SettingError: there is no such model, or its file is damaged.
    """
    stem = find_model(path, choice)
    file = stem.with_suffix(".safetensors")
    try:
        check_plain(file)
        with safe_open(file, framework="numpy"):
            return stem
    except (SafetensorError, OSError) as error:
        raise SettingError(f"{file} cannot be read: {error}") from error


def task_to_do(task: object) -> None:
    """Check the paths and names of a task, if the task supports it.

    Raises:
        SettingError, CorpusError: a path or name does not exist; names the setting.
    """
    if isinstance(task, Checkable):
        task.check()


def tested_model(experiment: Experiment, choice: Choice | None) -> None:
    """Check that a run of this experiment will have the model to test.

    Raises:
        SettingError: the experiment saves no evaluation points to average.
    """
    if choice == "averaged" and experiment.averaged_checkpoints == 0:
        known = ", ".join(name for name in ("lowest", *FILES) if name != "averaged")
        raise SettingError(
            f"--weights averaged needs averaged_checkpoints of 1 or more: set it, or choose one of {known}"
        )
