"""Checkpoints: tensors in safetensors, other values in JSON, each file complete or absent; no pickle.

checkpoints/0000001200/learner-3.safetensors    weights, buffers, optimizer state of learner 3
                       learner-3.json           counters; holds the digests of the tensors and of itself
checkpoints/marks/0000001200.safetensors        the consensus at the best evaluation points, for averaging
model.safetensors, model.json                   the last consensus model
best.*, averaged.*                              the one of lowest held-out loss; the mean of the best ones

A consensus model is two vectors, `weights` and `buffers`, and a third, `integers`, if it has integer buffers; the JSON
beside it names the tensors they are made of.
"""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from murmur.core.errors import DamagedCheckpoint, SettingError
from murmur.core.flat import Layout
from murmur.core.plain_files import UNREADABLE, read_plain
from murmur.core.whole_files import sync_folder, write_whole

KEEP = 2  # complete checkpoints: the newest, and one before it in case a file is damaged
OWN_DIGEST = "facts_digest"
PART = re.compile(r"learner-(0|[1-9][0-9]*)\.json")
KEEPING = ("momentum", "amsgrad", "centered")  # options of torch's optimizers that add a vector to their state
log = logging.getLogger(__name__)
Shapes = list[tuple[str, list[int]]]


def digest_of(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def minibatches_of(name: str) -> int | None:
    """Return the minibatches in the name of a checkpoint or a mark, ten digits; None for any other name."""
    number = int(name) if name.isascii() and name.isdecimal() else -1
    return number if name == name_of(number) else None


def name_of(minibatches: int) -> str:
    return f"{minibatches:010d}"


def write_pair(stem: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write `stem`.safetensors, then `stem`.json, which makes the pair valid."""
    raw = save({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
    write_whole(stem.with_suffix(".safetensors"), raw)
    facts = {**facts, "digest": digest_of(raw), "bytes": len(raw)}
    facts[OWN_DIGEST] = _digest_of_facts(facts)
    write_whole(stem.with_suffix(".json"), json.dumps(facts, indent=1).encode())


def read_facts(stem: Path) -> dict[str, Any]:
    """Read the facts of a pair; its tensors must exist, but are not read.

    Raises:
        DamagedCheckpoint: A file is missing, cut off or changed; names it.
    """
    try:
        facts: dict[str, Any] = json.loads(read_plain(stem.with_suffix(".json")))
        size = stem.with_suffix(".safetensors").stat().st_size
        right = facts.get(OWN_DIGEST) == _digest_of_facts(facts)
    except (OSError, *UNREADABLE) as error:
        raise DamagedCheckpoint(f"{stem}: cannot be read: {error}") from error
    if not right:
        raise DamagedCheckpoint(f"{stem.with_suffix('.json')}: its content is not what was written")
    if size != facts.get("bytes", size):
        raise DamagedCheckpoint(f"{stem.with_suffix('.safetensors')}: {size} bytes, {facts['bytes']} were written")
    return facts


def read_pair(stem: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_pair` wrote.

    Raises:
        DamagedCheckpoint: A file is missing, cut off or changed; names it.
    """
    facts = read_facts(stem)
    try:
        raw = read_plain(stem.with_suffix(".safetensors"))
    except (OSError, SettingError) as error:
        raise DamagedCheckpoint(f"{stem}: cannot be read: {error}") from error
    if digest_of(raw) != facts.get("digest"):
        raise DamagedCheckpoint(f"{stem.with_suffix('.safetensors')}: its content is not what was written")
    try:
        return load(raw), facts
    except (SafetensorError, ValueError, KeyError) as error:
        raise DamagedCheckpoint(f"{stem.with_suffix('.safetensors')}: holds no tensors: {error}") from error


def _parts_in(folder: Path) -> set[int]:
    named = (PART.fullmatch(file.name) for file in folder.glob("learner-*.json"))
    return {int(found[1]) for found in named if found is not None}


def _learners_of(facts: Mapping[str, Any], folder: Path) -> tuple[set[int], int]:
    named, world = facts.get("learners"), facts.get("world")
    if not isinstance(named, list) or not all(isinstance(r, int) for r in named):
        raise DamagedCheckpoint(f"{folder}: its learners are {named!r}, not their numbers")
    if not isinstance(world, int) or world < 1:
        raise DamagedCheckpoint(f"{folder}: it is of {world!r} learners")
    return set(named), world


def _digest_of_facts(facts: Mapping[str, Any]) -> str:
    known = {name: value for name, value in facts.items() if name != OWN_DIGEST}
    return digest_of(json.dumps(known, sort_keys=True).encode())


def layouts_of(model: nn.Module) -> dict[str, Layout]:
    found = {"weights": Layout.trainable(model), "buffers": Layout.buffers(model), "integers": Layout.integers(model)}
    return {part: layout for part, layout in found.items() if layout.tensors or part != "integers"}


def shapes_of(model: nn.Module) -> dict[str, Shapes]:
    """Return names and shapes of the tensors in the vectors of a saved model, in order."""
    names = {id(t): name for name, t in [*model.named_parameters(), *model.named_buffers()]}
    return {part: [(names[id(t)], list(t.shape)) for t in x.tensors] for part, x in layouts_of(model).items()}


def set_vectors(model: nn.Module, vectors: Mapping[str, Tensor]) -> None:
    for part, layout in layouts_of(model).items():
        if layout.tensors:
            layout.scatter(vectors[part].to(layout.device))


def pack_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return an optimizer's state as named tensors and JSON types."""
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            key = f"optimizer.{index}.{name}"
            if isinstance(value, Tensor):
                tensors[key] = value
            else:
                plain[key] = value
    return tensors, plain


def kind_of_state(optimizer: torch.optim.Optimizer) -> str:
    """Return a text that is equal for optimizers that can go on with each other's state: class and kept vectors."""
    kept = [name for name in KEEPING if any(group.get(name) for group in optimizer.param_groups)]
    return " with ".join([type(optimizer).__qualname__, *([", ".join(kept)] if kept else [])])


def unpack_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
    """Restore the state from `pack_optimizer`; parameter groups keep their present settings."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in [*tensors.items(), *plain.items()]:
        if key.startswith("optimizer."):
            _, index, name = key.split(".", 2)
            state.setdefault(int(index), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for place, named in state.items():  # torch has cast them to the parameters' type, which may be narrower
        loaded = optimizer.state[parameters[place]]
        for name, value in named.items():
            if isinstance(value, Tensor) and loaded[name].dtype != value.dtype:
                loaded[name] = value.to(loaded[name].device)


@dataclass(frozen=True)
class CheckpointPart:
    """State from which one learner resumes, and the facts of all parts of the checkpoint, by learner."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]
    all_facts: Sequence[Mapping[str, Any]]


class Checkpoints:
    """Checkpoints of one run, in one folder: each is a folder named by the number of completed minibatches."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, minibatches: int, learner: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        facts = {**facts, "minibatches": minibatches}
        write_pair(self._at(minibatches) / f"learner-{learner}", tensors, facts)

    def marks(self) -> list[int]:
        """Return the completed minibatches of all checkpoints, newest first; copies with other names do not count."""
        named = (minibatches_of(folder.name) for folder in self.folder.glob("[0-9]*") if folder.is_dir())
        return sorted((done for done in named if done is not None), reverse=True)

    def facts(self) -> Iterator[dict[str, Any]]:
        """Yield the facts of all parts that can be read, newest checkpoint first."""
        for done in self.marks():
            for learner in sorted(_parts_in(self._at(done))):
                with suppress(DamagedCheckpoint):
                    yield read_facts(self._at(done) / f"learner-{learner}")

    def part(self, minibatches: int, learner: int) -> CheckpointPart:
        """Read a learner's part of one checkpoint: its own tensors, and the facts of all learners.

        A member of a super-learner without a part takes that of its leader, the nearest learner before it; one with a
        new number takes the part of an existing one.
        """
        folder = self._at(minibatches)
        there = _parts_in(folder)
        if not there:
            raise DamagedCheckpoint(f"{folder}: no learner's part is whole")
        facts = {r: read_facts(folder / f"learner-{r}") for r in sorted(there)}
        for r, found in facts.items():
            if found.get("minibatches") != minibatches or isinstance(found["minibatches"], bool | float):
                told = f"it is of {found.get('minibatches')!r} minibatches, and lies among those of {minibatches}"
                raise DamagedCheckpoint(f"{folder / f'learner-{r}.json'}: {told}")
        named, world = _learners_of(facts[min(there)], folder)
        for absent in sorted(named - there):
            raise DamagedCheckpoint(f"{folder / f'learner-{absent}.json'}: the part of learner {absent} is not there")
        place = learner % world
        own = max((r for r in there if r <= place), default=min(there))
        tensors, its_facts = read_pair(folder / f"learner-{own}")
        return CheckpointPart(tensors, its_facts, list(facts.values()))

    def newest(self, learner: int, before: float = float("inf")) -> tuple[CheckpointPart | None, list[str]]:
        """Read a learner's part of the newest checkpoint whose files it can read; None if there is none.

        Also returns newer ones that it skipped, with reasons. Only those of fewer than `before` minibatches count.
        """
        passed_over = list[str]()
        for done in self.marks():
            if done < before:
                try:
                    return self.part(done, learner), passed_over
                except DamagedCheckpoint as error:
                    passed_over.append(str(error))
        return None, passed_over

    def clear(self) -> None:
        """Delete all checkpoints: a run from the beginning must never continue from those of an earlier run."""
        self.forget_after(-1)
        for folder in self.folder.glob("marks"):
            shutil.rmtree(folder)

    def forget_after(self, minibatches: int) -> None:
        """Delete newer checkpoints: parts of another launch must not be mistaken for parts of this one."""
        for done in self.marks():
            if done > minibatches:
                self._delete(done)

    def prune(self) -> None:
        """Delete checkpoints older than the newest `KEEP` complete ones; incomplete ones do not count."""
        whole = 0
        for done in self.marks():
            if whole == KEEP:
                self._delete(done)
            else:
                whole += self._complete(done)

    def _complete(self, minibatches: int) -> bool:
        folder = self._at(minibatches)
        there = _parts_in(folder)
        try:
            return bool(there) and _learners_of(read_facts(folder / f"learner-{min(there)}"), folder)[0] <= there
        except DamagedCheckpoint:
            return False

    def _delete(self, minibatches: int) -> None:
        shutil.rmtree(self._at(minibatches))
        sync_folder(self.folder)

    def _at(self, minibatches: int) -> Path:
        return self.folder / name_of(minibatches)


class BestCheckpoints:
    """Consensus models at the `most` evaluation points of lowest held-out loss, in a folder.

    The mean of the weights of several points of one run is Polyak and Juditsky, "Acceleration of stochastic
    approximation by averaging" (1992), with the points chosen by held-out loss, as in speech recipes.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self.folder, self.most = folder, most
        self._left_out = set[Path]()  # damaged marks that a warning has named

    def add(self, tensors: Mapping[str, Tensor], figures: Mapping[str, float], done: int) -> None:
        """Keep the model after `done` minibatches if it is among the best; a loss of nan never is."""
        loss = figures.get("loss", math.nan)
        if self.most < 1 or not math.isfinite(loss):
            return
        stem = self._stem(done)
        kept = self._losses()
        if stem not in kept and len(kept) >= self.most and not loss < sorted(kept.values())[self.most - 1]:
            return
        write_pair(stem, tensors, {"minibatches": done, "figures": dict(figures)})
        for worse in self.ranked()[self.most :]:
            _delete(worse)

    def ranked(self) -> list[Path]:
        """Return the stems of the kept models, lowest held-out loss first; a damaged one is left out with a warning."""
        losses = self._losses()
        return sorted(losses, key=lambda stem: (losses[stem], stem.name))

    def forget_after(self, done: int) -> None:
        """Delete models beyond `done` minibatches, damaged or not: a resumed run makes them again."""
        for minibatches, stem in self._stems():
            if minibatches > done:
                _delete(stem)

    def mean(self, averaged: Tensor | None = None) -> tuple[dict[str, Tensor], list[int]] | None:
        """Return the mean of the kept models, summed in float64, and the minibatches after which they were saved.

        Buffers that are not `averaged`, and integers, are those of the last model. A damaged file is left out with a
        warning, so that a finished run can still end. None: no complete model is kept.
        """
        models: dict[int, Mapping[str, Tensor]] = {}
        for stem in sorted(self.ranked()):
            try:
                models[int(stem.name)] = read_pair(stem)[0]
            except DamagedCheckpoint as error:
                self._leave_out(stem, error)
        return (_mean_of(list(models.values()), averaged), list(models)) if models else None

    def _losses(self) -> dict[Path, float]:
        losses = {}
        for _, stem in self._stems():
            try:
                losses[stem] = _loss(stem)
            except DamagedCheckpoint as error:
                self._leave_out(stem, error)
        return losses

    def _stems(self) -> list[tuple[int, Path]]:
        stems = [path.with_suffix("") for path in self.folder.glob("[0-9]*.json")]
        named = [(minibatches_of(stem.name), stem) for stem in stems]
        return [(minibatches, stem) for minibatches, stem in named if minibatches is not None]

    def _leave_out(self, stem: Path, error: DamagedCheckpoint) -> None:
        if stem not in self._left_out:  # marks are read at every evaluation
            log.warning("left out of the averaged model: %s", error)
        self._left_out.add(stem)

    def _stem(self, done: int) -> Path:
        return self.folder / name_of(done)


def _mean_of(models: Sequence[Mapping[str, Tensor]], averaged: Tensor | None) -> dict[str, Tensor]:
    *_, last = models
    means = {
        name: torch.stack([model[name].double() for model in models]).mean(0).to(tensor.dtype)
        for name, tensor in last.items()
        if name != "integers"
    }
    if averaged is not None and not averaged.all():
        means["buffers"] = torch.where(averaged, means["buffers"], last["buffers"])
    return {**last, **means}


def _loss(stem: Path) -> float:
    facts = read_facts(stem)
    try:
        return float(facts["figures"]["loss"])
    except UNREADABLE as error:
        raise DamagedCheckpoint(f"{stem.with_suffix('.json')}: names no held-out loss") from error


def _delete(stem: Path) -> None:
    for suffix in (".json", ".safetensors"):  # the JSON makes the pair valid: it is deleted first
        stem.with_suffix(suffix).unlink(missing_ok=True)
