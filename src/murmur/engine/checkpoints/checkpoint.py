"""Checkpoints: tensors in safetensors, the rest in JSON, each file whole or absent; nothing is unpickled.

checkpoints/0000001200/learner-3.safetensors    weights, buffers, optimizer state of learner 3
                       learner-3.json           counters; names the digest of the tensors, and its own
checkpoints/marks/0000001200.safetensors        the consensus at the best evaluation marks, for averaging
model.safetensors, model.json                   the last consensus model
best.*, averaged.*                              the one of the lowest held-out loss; the mean of the best few

A consensus model is two vectors, `weights` and `buffers`; the JSON beside it names the tensors they are made of.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from murmur.core.errors import DamagedCheckpoint, not_written
from murmur.core.flat import Layout

KEEP = 2  # whole ones: the newest, and one before it in case a file of that is damaged
OWN_DIGEST = "facts_digest"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that after a crash, of the host too, it is there in full, or the old one is.

    Raises:
        OSError: it cannot be written (a full disk, a read-only folder); what was there before is untouched.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _make_folder(path.parent)
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):  # a folder that cannot be written in holds no such file
            beside.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise not_written(path, len(data), error) from error


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder last: without this a new name may be lost when the host goes down."""
    entries = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(entries)
    finally:
        os.close(entries)


def _make_folder(folder: Path) -> None:
    missing = [f for f in (folder, *folder.parents) if not f.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync_folder(made.parent)


def digest_of(data: bytes) -> str:
    """Thirty-two hexadecimal digits."""
    return blake2b(data, digest_size=16).hexdigest()


def write_pair(stem: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write `stem`.safetensors, then `stem`.json, which makes the pair valid.

    Raises:
        OSError: as `write_whole`.
    """
    raw = save({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
    write_whole(stem.with_suffix(".safetensors"), raw)
    facts = {**facts, "digest": digest_of(raw), "bytes": len(raw)}
    facts[OWN_DIGEST] = _digest_of_facts(facts)
    write_whole(stem.with_suffix(".json"), json.dumps(facts, indent=1).encode())


def read_facts(stem: Path) -> dict[str, Any]:
    """The facts of a pair whose tensors are there, but are not looked into.

    Raises:
        DamagedCheckpoint: a file is missing, cut off or changed; names it.
    """
    try:
        facts: dict[str, Any] = json.loads(stem.with_suffix(".json").read_bytes())
        size = stem.with_suffix(".safetensors").stat().st_size
        right = facts.get(OWN_DIGEST, "") in ("", _digest_of_facts(facts))  # "": a pair of an older version
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise DamagedCheckpoint(f"{stem}: cannot be read: {error}") from error
    if not right:
        raise DamagedCheckpoint(f"{stem.with_suffix('.json')}: its content is not what was written")
    if size != facts.get("bytes", size):
        raise DamagedCheckpoint(f"{stem.with_suffix('.safetensors')}: {size} bytes, {facts['bytes']} were written")
    return facts


def read_pair(stem: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_pair` wrote.

    Raises:
        DamagedCheckpoint: a file is missing, cut off or changed; names it.
    """
    facts = read_facts(stem)
    try:
        raw = stem.with_suffix(".safetensors").read_bytes()
    except OSError as error:
        raise DamagedCheckpoint(f"{stem}: cannot be read: {error}") from error
    if digest_of(raw) != facts.get("digest"):
        raise DamagedCheckpoint(f"{stem.with_suffix('.safetensors')}: its content is not what was written")
    try:
        return load(raw), facts
    except (SafetensorError, ValueError, KeyError) as error:
        raise DamagedCheckpoint(f"{stem.with_suffix('.safetensors')}: holds no tensors: {error}") from error


def _learners_of(facts: Mapping[str, Any], folder: Path) -> tuple[set[int], int]:
    """Learners whose parts make up a checkpoint, and the number of learners."""
    named, world = facts.get("learners"), facts.get("world")
    if not isinstance(named, list) or not all(isinstance(r, int) for r in named):
        raise DamagedCheckpoint(f"{folder}: its learners are {named!r}, not their numbers")
    if not isinstance(world, int) or world < 1:
        raise DamagedCheckpoint(f"{folder}: it is of {world!r} learners")
    return set(named), world


def _digest_of_facts(facts: Mapping[str, Any]) -> str:
    known = {name: value for name, value in facts.items() if name != OWN_DIGEST}
    return digest_of(json.dumps(known, sort_keys=True).encode())


Shapes = list[tuple[str, list[int]]]


def layout_of(model: nn.Module) -> dict[str, Shapes]:
    """Names and shapes of the tensors that the vectors `weights` and `buffers` of a model are made of, in order."""
    names = {id(t): name for name, t in [*model.named_parameters(), *model.named_buffers()]}
    parts = {"weights": Layout.trainable(model), "buffers": Layout.buffers(model)}
    return {part: [(names[id(t)], list(t.shape)) for t in layout.tensors] for part, layout in parts.items()}


def pack_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state as named tensors and JSON."""
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


def unpack_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
    """Put back what `pack_optimizer` took; parameter groups keep their present settings."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in [*tensors.items(), *plain.items()]:
        if key.startswith("optimizer."):
            _, index, name = key.split(".", 2)
            state.setdefault(int(index), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for place, named in state.items():  # torch has cast them to the parameters' type, which may be a narrow one
        loaded = optimizer.state[parameters[place]]
        for name, value in named.items():
            if isinstance(value, Tensor) and loaded[name].dtype != value.dtype:
                loaded[name] = value.to(loaded[name].device)


@dataclass(frozen=True)
class CheckpointPart:
    """State from which one learner resumes.

    Attributes:
        tensors, facts: its own, or those of the learner whose part it takes.
        all_facts: of every learner's part in the checkpoint.
    """

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]
    all_facts: Sequence[Mapping[str, Any]]


class Checkpoints:
    """The checkpoints of one run, in one folder: each a folder named by the minibatches that were behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, minibatches: int, learner: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write one learner's part of the checkpoint after so many minibatches.

        Raises:
            OSError: it cannot be written.
        """
        facts = {**facts, "minibatches": minibatches}
        write_pair(self._at(minibatches) / f"learner-{learner}", tensors, facts)

    def marks(self) -> list[int]:
        """Minibatches that were behind at the checkpoints there are, whole or not, the newest first."""
        return sorted((int(folder.name) for folder in self.folder.glob("[0-9]*")), reverse=True)

    def part(self, minibatches: int, learner: int) -> CheckpointPart:
        """A learner's part of one checkpoint; only its own tensors are read, of the others' the facts.

        A member of a node that has no part takes that of its leader, which is the nearest before it; a learner of a
        number that did not exist takes that of one that did.

        Raises:
            DamagedCheckpoint: the part of a learner that the checkpoint names is not whole; says which.
        """
        folder = self._at(minibatches)
        there = {int(file.stem.removeprefix("learner-")) for file in folder.glob("learner-*.json")}
        if not there:
            raise DamagedCheckpoint(f"{folder}: no learner's part is whole")
        facts = {r: read_facts(folder / f"learner-{r}") for r in sorted(there)}
        named, world = _learners_of(facts[min(there)], folder)
        for absent in sorted(named - there):
            raise DamagedCheckpoint(f"{folder / f'learner-{absent}.json'}: the part of learner {absent} is not there")
        place = learner % world
        own = max((r for r in there if r <= place), default=min(there))
        tensors, its_facts = read_pair(folder / f"learner-{own}")
        return CheckpointPart(tensors, its_facts, list(facts.values()))

    def newest(self, learner: int, before: float = float("inf")) -> tuple[CheckpointPart | None, list[str]]:
        """A learner's part of the newest checkpoint that is whole as far as it has to read; None if there is none.

        Also says which newer ones it passed over, and why. Only those of fewer than `before` minibatches count.
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
        """Delete all: a run that starts from the beginning must never continue from an earlier one's."""
        self.forget_after(-1)
        for folder in self.folder.glob("marks"):
            shutil.rmtree(folder)

    def forget_after(self, minibatches: int) -> None:
        """Delete what is newer: parts of another launch must not be taken for parts of this one."""
        for done in self.marks():
            if done > minibatches:
                self._delete(done)

    def prune(self) -> None:
        """Delete what is older than the newest few whole ones; not yet whole ones do not count."""
        whole = 0
        for done in self.marks():
            if whole == KEEP:
                self._delete(done)
            else:
                whole += self._complete(done)

    def _complete(self, minibatches: int) -> bool:
        """True if all parts have been written; tensors are not read."""
        folder = self._at(minibatches)
        there = sorted(int(file.stem.removeprefix("learner-")) for file in folder.glob("learner-*.json"))
        try:
            return bool(there) and _learners_of(read_facts(folder / f"learner-{there[0]}"), folder)[0] <= set(there)
        except DamagedCheckpoint:
            return False

    def _delete(self, minibatches: int) -> None:
        shutil.rmtree(self._at(minibatches))
        sync_folder(self.folder)

    def _at(self, minibatches: int) -> Path:
        return self.folder / f"{minibatches:010d}"
