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
import os
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

from murmur.core.errors import DamagedCheckpoint, SettingError, not_written
from murmur.core.flat import Layout
from murmur.core.plain_files import UNREADABLE, read_plain
from murmur.core.whole_files import name_beside

KEEP = 2  # complete checkpoints: the newest, and one before it in case a file is damaged
OWN_DIGEST = "facts_digest"
PART = re.compile(r"learner-(0|[1-9][0-9]*)\.json")
KEEPING = ("momentum", "amsgrad", "centered")  # options of torch's optimizers that add a vector to their state


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that after a crash, even of the host, either it or the old one is there in full.

    Raises:
        OSError: It cannot be written (a full disk, a read-only folder); the old file is unchanged.
    """
    beside = name_beside(path)
    try:
        _make_folder(path.parent)
        beside.unlink(missing_ok=True)
        with beside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):  # a folder without write access holds no such file
            beside.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise not_written(path, len(data), error) from error


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk: a crash of the host may otherwise lose a new name."""
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
    """Return a digest of thirty-two hexadecimal digits."""
    return blake2b(data, digest_size=16).hexdigest()


def minibatches_of(name: str) -> int | None:
    """Return the minibatches in the name of a checkpoint or a mark, ten digits; None for any other name."""
    number = int(name) if name.isascii() and name.isdecimal() else -1
    return number if name == name_of(number) else None


def name_of(minibatches: int) -> str:
    """Return the name of the checkpoint or mark after a number of minibatches."""
    return f"{minibatches:010d}"


def write_pair(stem: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write `stem`.safetensors, then `stem`.json, which makes the pair valid.

    Raises:
        OSError: As for `write_whole`.
    """
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
        right = facts.get(OWN_DIGEST, "") in ("", _digest_of_facts(facts))  # "": a pair of an older version
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
    """Learners with a part in the folder of a checkpoint; files of other names, such as copies, are none."""
    named = (PART.fullmatch(file.name) for file in folder.glob("learner-*.json"))
    return {int(found[1]) for found in named if found is not None}


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
    """Return names and shapes of the tensors in the vectors of a saved model, in order."""
    names = {id(t): name for name, t in [*model.named_parameters(), *model.named_buffers()]}
    parts = {"weights": Layout.trainable(model), "buffers": Layout.buffers(model)}
    integers = Layout.integers(model)
    if integers.tensors:
        parts["integers"] = integers
    return {part: [(names[id(t)], list(t.shape)) for t in layout.tensors] for part, layout in parts.items()}


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
    """State from which one learner resumes.

    Attributes:
        tensors, facts: Its own, or those of the learner whose part it takes.
        all_facts: Facts of all parts of the checkpoint, by learner.
    """

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]
    all_facts: Sequence[Mapping[str, Any]]


class Checkpoints:
    """Checkpoints of one run, in one folder: each is a folder named by the number of completed minibatches."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, minibatches: int, learner: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write one learner's part of the checkpoint after a number of minibatches.

        Raises:
            OSError: It cannot be written.
        """
        facts = {**facts, "minibatches": minibatches}
        write_pair(self._at(minibatches) / f"learner-{learner}", tensors, facts)

    def marks(self) -> list[int]:
        """Return the completed minibatches of all checkpoints, complete or not, newest first.

        Other names, such as copies of a checkpoint, do not count.
        """
        named = (minibatches_of(folder.name) for folder in self.folder.glob("[0-9]*") if folder.is_dir())
        return sorted((done for done in named if done is not None), reverse=True)

    def facts(self) -> Iterator[dict[str, Any]]:
        """Yield the facts of all parts that can be read, those of the newest checkpoint first."""
        for done in self.marks():
            for learner in sorted(_parts_in(self._at(done))):
                with suppress(DamagedCheckpoint):
                    yield read_facts(self._at(done) / f"learner-{learner}")

    def part(self, minibatches: int, learner: int) -> CheckpointPart:
        """Read a learner's part of one checkpoint: its own tensors, and the facts of all learners.

        A member of a super-learner without a part takes that of its leader, the nearest learner before it; a learner
        with a new number takes the part of an existing one.

        Raises:
            DamagedCheckpoint: The part of a learner of the checkpoint is not complete; names it.
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
        """Return True if all parts have been written; tensors are not read."""
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
