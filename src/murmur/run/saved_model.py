"""Trained models on disk: chooses one of a run, checks every name and shape, and loads its weights into a model."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from murmur.core.errors import DamagedCheckpoint, SettingError, nearest
from murmur.core.plain_files import UNREADABLE, check_plain, read_plain
from murmur.engine.checkpoints.checkpoint import layouts_of, read_facts, read_pair, shapes_of
from murmur.engine.experiment import Experiment
from murmur.engine.task import outputs_of
from murmur.report.records import is_number

Choice = Literal["lowest", "last", "best", "averaged"]
FILES = {"last": "model", "best": "best", "averaged": "averaged"}

log = logging.getLogger(__name__)


def find_model(path: Path, choice: Choice | None = None) -> Path:
    """Return a trained model's file without its suffix: `path` itself, or one of the models in a run's folder.

    Args:
        path: A file or a folder.
        choice: Model to take from a folder. None takes the tested model, or, in a run without score.json, the model
            with the lowest held-out loss.

    Raises:
        SettingError: there is no such model.
    """
    if choice is not None and not path.is_dir():
        raise SettingError(f"--weights {choice} chooses among the models of a run's folder, and {path} is a file")
    if choice is not None:
        return choose(path, choice)[1]
    if path.suffix == ".safetensors" and path.is_file():
        return path.with_suffix("")
    if path.with_name(f"{path.name}.safetensors").is_file():
        return path
    return _of_run(path)


def model_to_read(path: Path, choice: Choice | None = None) -> Path:
    stem = find_model(path, choice)
    file = stem.with_suffix(".safetensors")
    try:
        check_plain(file)
        with safe_open(file, framework="numpy"):
            return stem
    except (SafetensorError, OSError) as error:
        raise SettingError(f"{file} cannot be read: {error}") from error


def tested_model(experiment: Experiment, choice: Choice | None) -> None:
    if choice == "averaged" and experiment.averaged_checkpoints == 0:
        known = ", ".join(name for name in ("lowest", *FILES) if name != "averaged")
        raise SettingError(
            f"--weights averaged needs averaged_checkpoints of 1 or more: set it, or choose one of {known}"
        )


def _of_run(folder: Path) -> Path:
    """Tested model of a run, else the one with the lowest held-out loss, else any that exists."""
    there = [name for name in ("best", "model", "averaged") if (folder / f"{name}.safetensors").is_file()]
    if (folder / "score.json").is_file():
        named = _object(folder / "score.json").get("model", {"name": "last"})  # old records name no model
        if not isinstance(named, dict) or str(named.get("name")) not in FILES:
            raise SettingError(f"{folder / 'score.json'}: the tested model is {named!r}; there are {', '.join(FILES)}")
        if FILES[str(named["name"])] in there:
            return folder / FILES[str(named["name"])]
    if any((folder / f"{name}.json").is_file() for name in there):
        return choose(folder, "lowest")[1]
    if there:
        return folder / there[0]
    raise SettingError(f"{folder} is neither a .safetensors file nor a run's folder with a trained model")


def told_choice(stem: Path, choice: Choice | None, facts: Mapping[str, Any]) -> str:
    """Name of the model in use and the rule that chose it, for the lines of its figures.

    A file that the caller named is "named", unless its folder would choose the same one.
    """
    names = {file: name for name, file in FILES.items()}
    figures = facts.get("figures")
    loss = figures.get("loss") if isinstance(figures, dict) else None
    told = f" {loss:.5g}" if isinstance(loss, float) or is_number(loss) else ""
    if stem.name not in names or not facts:
        return f"weights: {stem.name}"
    tested = choice is None and (stem.parent / "score.json").is_file()
    why = "the tested ones, " if tested else "lowest " if choice in (None, "lowest") else "--weights, "
    if choice is None and stem != _default(stem.parent):
        why = "named, "
    return f"weights: {names[stem.name]} ({why}held-out loss{told})"


def _default(folder: Path) -> Path | None:
    try:
        return _of_run(folder)
    except SettingError:
        return None


def choose(out: Path, choice: Choice, digest: str | None = None) -> tuple[str, Path]:
    """Choose the model that represents a finished run, and return its name and path.

    Args:
        out: The run's folder.
        choice: "last", "best", "averaged", or "lowest" for the lowest held-out loss, where ties go to the last.
        digest: Digest of the run's experiment; models of another experiment, left by an earlier run, are ignored.
            None considers all models.
    """
    losses: dict[str, float] = {}
    for name, file in FILES.items():
        facts = out / f"{file}.json"
        if facts.is_file():
            found = _object(facts)
            if digest is None or found.get("experiment") == digest:
                figures = found.get("figures")
                loss = figures.get("loss") if isinstance(figures, dict) else None
                losses[name] = loss if loss is not None and is_number(loss) else math.inf
    if not losses or (choice != "lowest" and choice not in losses):
        raise SettingError(f"{out} has no {choice} model: a run needs a finite held-out loss to have one")
    name = min(losses, key=lambda n: losses[n]) if choice == "lowest" else choice
    return name, out / FILES[name]


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_plain(path))
    except UNREADABLE as error:
        raise SettingError(f"{path} is damaged ({error}): train again, or name a .safetensors file") from error
    if not isinstance(found, dict):
        raise SettingError(f"{path} holds a {type(found).__name__}, not an object: train again")
    return found


def read_into(model: nn.Module, stem: Path) -> dict[str, Any]:
    """Load a trained model's weights into `model`, and return the facts beside them.

    Reads the files of training (vectors, with names in a JSON file beside them), and any .safetensors file of named
    tensors. `starts_without` of a model names modules that the file may hold in addition, as a pre-trained stack does.

    Raises:
        SettingError: a tensor is missing, superfluous or of another shape; names it.
        DamagedCheckpoint: the file is not as it was written.
    """
    if not stem.with_suffix(".json").is_file():
        try:
            check_plain(stem.with_suffix(".safetensors"))
            named = load_file(stem.with_suffix(".safetensors"))
        except (SafetensorError, OSError) as error:
            raise SettingError(f"{stem.with_suffix('.safetensors')} cannot be read: {error}") from error
        _put_named(model, named, stem)
        return {}
    vectors, facts = read_pair(stem)
    mine = shapes_of(model)
    for part, wanted in layouts_of(model).items():
        vector = _vector(vectors, part, stem)
        if "tensors" in facts:
            pieces, shapes = _cut(vector, facts["tensors"], part, stem)
            given = {n: s for n, s in shapes.items() if not _left_out(n, model)}
            _compare(given, {n: s for n, s in mine[part]}, stem)
            vector = torch.cat([pieces[n] for n in given]) if given else vector
        if vector.numel() != wanted.numel:
            raise SettingError(
                f"{stem}: its {part} are {vector.numel()} numbers, the model has {wanted.numel}: it is of"
                " another experiment"
            )
        wanted.scatter(vector.to(wanted.device))
    return facts


def _vector(vectors: Mapping[str, Tensor], part: str, stem: Path) -> Tensor:
    if (
        part not in vectors
        or vectors[part].ndim != 1
        or not (vectors[part].is_floating_point() or (part == "integers" and vectors[part].dtype == torch.int64))
    ):
        raise DamagedCheckpoint(f"{stem}.safetensors holds no vector {part!r} of numbers")
    return vectors[part]


def _cut(vector: Tensor, tensors: Any, part: str, stem: Path) -> tuple[dict[str, Tensor], dict[str, list[int]]]:
    try:
        shapes = {str(name): [int(n) for n in shape] for name, shape in tensors[part]}
        cut = torch.split(vector, [math.prod(shape) for shape in shapes.values()])
        return dict(zip(shapes, cut, strict=True)), shapes
    except (*UNREADABLE, RuntimeError) as error:
        raise DamagedCheckpoint(f"{stem}.json: its list of {part} does not fit the vector: {error}") from error


def _put_named(model: nn.Module, named: Mapping[str, Tensor], stem: Path) -> None:
    own = {n: t for n, t in model.state_dict().items() if t.is_floating_point()}
    given = {n: t for n, t in named.items() if t.is_floating_point() and not _left_out(n, model)}
    _compare({n: list(t.shape) for n, t in given.items()}, {n: list(t.shape) for n, t in own.items()}, stem)
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(given[name])


def _left_out(name: str, model: nn.Module) -> bool:
    own = {n.partition(".")[0] for n, _ in model.named_children()}
    return name.partition(".")[0] in set(getattr(model, "starts_without", ())) - own


def _compare(given: Mapping[str, list[int]], wanted: Mapping[str, list[int]], stem: Path) -> None:
    for name, shape in wanted.items():
        if name not in given:
            raise SettingError(f"{stem} has no tensor {name!r}, which the model needs{nearest(name, list(given))}")
        if list(given[name]) != list(shape):
            raise SettingError(
                f"{stem}: tensor {name!r} has shape {tuple(given[name])}, the model's has {tuple(shape)}: train the"
                " same model, or leave --init out"
            )
    for name in given:
        if name not in wanted:
            raise SettingError(
                f"{stem} holds tensor {name!r}, which the model does not have{nearest(name, list(wanted))}"
            )


@dataclass(frozen=True)
class InitialWeights:
    """Weights of a trained model, from which the models of a run start (`Experiment.initial`).

    Learners that read files of other `content`, a digest, do not start.
    """

    stem: Path = field(repr=False)
    content: str

    def __call__(self, model: nn.Module) -> None:
        read_into(model, self.stem)

    @property
    def outputs(self) -> str:
        return str(read_facts(self.stem).get("outputs", "")) if self.stem.with_suffix(".json").is_file() else ""


def prepare(experiment: Experiment) -> None:
    """Prepare the task's data, and warn if the initial weights are those of a model with other outputs."""
    experiment.task.prepare()
    initial = experiment.initial
    if isinstance(initial, InitialWeights) and initial.outputs not in ("", outputs_of(experiment.task)):
        log.warning("the outputs of %s stand for other classes than those of this task", initial.stem)
