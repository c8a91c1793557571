"""Each learner's part of the data: its number among the learners, and a sampler that can be resumed.

    order of epoch e:   p, a permutation of the dataset's indices, the same for all learners
    learner r of L:     p[r], p[r + L], p[r + 2 L], ...

After s steps' samples a further division of the rest p[s L:] among L learners gives each what it had left, and a
division among another number of learners leaves nothing out and gives nothing twice.
"""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch.utils.data import Sampler

from murmur.core.errors import SettingError
from murmur.core.facts import training_learners
from murmur.core.learner import Strategy

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataSplit:
    """Place of a learner among those that divide the data: `DynamicBucketingSampler(cuts, **me.split)`.

    Attributes:
        rank: Number of its part, 0 <= rank < world_size.
        world_size: Number of parts.
    """

    rank: int
    world_size: int

    def keys(self) -> list[str]:
        return [field.name for field in fields(self)]

    def __getitem__(self, key: str) -> int:
        return int(getattr(self, key))


class LearnerSampler(Sampler[int]):
    """One learner's part of each epoch of a dataset: the parts of all learners are disjoint and cover it once.

    A pass begins behind the samples that steps have used, so that a resumed epoch, or one left by `break`, goes on. A
    pass that is complete is followed by one of the next epoch.

    Attributes:
        epoch: Number of the epoch of the pass under way; of the next one after `load_state_dict`.
    """

    def __init__(self, dataset: Sized, split: DataSplit, shuffle: bool, seed: int, step_samples: int | None) -> None:
        try:
            self._samples = len(dataset)
        except TypeError as error:
            raise TypeError(f"{type(dataset).__name__} has no length: divide it by me.split in its __iter__") from error
        if step_samples is not None and step_samples < 1:
            raise ValueError(f"step_samples must be at least 1 or None, got {step_samples}")
        self._split, self._shuffle, self._seed, self._step_samples = split, shuffle, seed, step_samples
        self._pass: object = None
        self._loader_works_ahead = False
        self._begin(0)

    def _begin(self, epoch: int, start: int = 0, used: int = 0) -> None:
        """Stand in an epoch before whose present division `start` samples were done, of which `used` here since."""
        self.epoch, self._start = epoch, start
        self._began = self._used = self._drawn = used
        self._ended = False

    @property
    def _part(self) -> range:
        return range(self._start + self._split.rank, self._samples, self._split.world_size)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch of the next pass; the same number keeps a position in it that was resumed."""
        if epoch != self.epoch or self._ended:
            self._begin(epoch)

    def __len__(self) -> int:
        """Number of samples in the pass under way, or else in the next one."""
        return len(self._part) - self._began

    def __iter__(self) -> Iterator[int]:
        if self._ended:
            self._begin(self.epoch + 1)
        self._begin(self.epoch, self._start, self._used)
        self._loader_works_ahead = bool(multiprocessing.active_children())  # by now a loader's workers are there
        positions = self._part[self._used :]
        self._pass = object()
        return self._draw(self._order()[positions.start : positions.stop : positions.step].tolist(), self._pass)

    def _order(self) -> torch.Tensor:
        if not self._shuffle:
            return torch.arange(self._samples)
        return torch.randperm(self._samples, generator=torch.Generator().manual_seed(self._seed + self.epoch))

    def _draw(self, part: Sequence[int], this_pass: object) -> Iterator[int]:
        for index in part:
            if self._pass is this_pass:
                self._drawn += 1
            yield index
        if self._pass is this_pass:
            self._ended = True

    def mark(self) -> None:
        """Count the samples of a step as used."""
        after = self._drawn if self._step_samples is None else self._used + self._step_samples
        self._used = min(self._drawn, after)

    def state_dict(self) -> dict[str, Any]:
        if self._loader_works_ahead and self._step_samples is None:
            self._loader_works_ahead = False
            log.warning(
                "a resumed run may leave out samples that the loader's workers have drawn ahead: set"
                " me.sampler(..., step_samples=...) to the samples of one step"
            )
        over = self._ended and self._used == self._drawn
        return {
            "epoch": self.epoch + over,
            "start": 0 if over else self._start,
            "used": 0 if over else self._used,
            "learners": self._split.world_size,
            **self._same,
        }

    @property
    def _same(self) -> dict[str, Any]:
        return {"samples": self._samples, "shuffle": self._shuffle, "seed": self._seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a position, of this learner or of one among another number of learners.

        Raises:
            SettingError: It is a position in another dataset, or in another order.
        """
        for name, value in self._same.items():
            if state[name] != value:
                raise SettingError(
                    f"the sampler has {name}={value}, its saved position {state[name]}: set it as it was"
                )
        epoch, start, used = (int(state[name]) for name in ("epoch", "start", "used"))
        if state["learners"] != self._split.world_size:
            start, used = start + used * int(state["learners"]), 0
        self._begin(epoch, start, used)
        if start >= self._samples or (used and used >= len(self._part)):
            self._begin(epoch + 1)


class LearnerData:
    """One of several learners that divide the data.

    Attributes:
        rank: Number of this learner.
        size: Number of learners.
        shard: Number of this process among those of its learner; 0 unless the learner is sharded.
        shards: Number of processes of each learner.
    """

    def __init__(self, strategy: Strategy, rank: int, size: int, shard: int = 0, shards: int = 1) -> None:
        self.strategy, self.rank, self.size, self.shard, self.shards = strategy, rank, size, shard, shards
        self._samplers: list[LearnerSampler] = []
        self._positions: list[Mapping[str, Any]] = []  # saved ones, of samplers that are not made yet

    @property
    def trains(self) -> bool:
        """False for a server of the strategy (`ASGD`): the gradients of its loop are not used."""
        return self.rank >= self.size - training_learners(self.strategy, self.size)

    @property
    def split(self) -> DataSplit:
        """Place of this learner among those whose gradients are used, for samplers of one's own.

        A server of the strategy (`ASGD`) gets the place of another learner, because its data are not used. Each process
        of a sharded learner has a part of its own, as FSDP averages their gradients.

        Raises:
            ValueError: The strategy has no learners that train.
        """
        training = training_learners(self.strategy, self.size)
        return DataSplit((self.rank - self.size) % training * self.shards + self.shard, training * self.shards)

    def sampler(
        self, dataset: Sized, shuffle: bool = True, seed: int = 0, step_samples: int | None = None
    ) -> LearnerSampler:
        """Return a sampler of this learner's part of each epoch, for `DataLoader(dataset, 32, sampler=...)`.

        Its position is in `state_dict()`. It counts the samples that steps have used: all that were drawn by the time
        of `step()`, as by a loader without workers. A loader with `num_workers` draws ahead; give it `step_samples`.
        A state is resumed by the samplers in the order in which they were made.

        Args:
            dataset: Dataset with a length.
            shuffle: Shuffle each epoch, with the order of `DistributedSampler`; all learners set the same.
            seed: Seed of that, the same for all learners.
            step_samples: Samples that one step uses (minibatch times accumulated ones); None: those that were drawn.

        Raises:
            SettingError: A resumed state is one of another dataset or order.
            TypeError: The dataset has no length.
        """
        made = LearnerSampler(dataset, self.split, shuffle, seed, step_samples)
        if self._positions:
            made.load_state_dict(self._positions.pop(0))
        self._samplers.append(made)
        return made

    def mark(self) -> None:
        """Count what was drawn for a step as used."""
        for sampler in self._samplers:
            sampler.mark()

    def positions(self) -> list[dict[str, Any]]:
        return [sampler.state_dict() for sampler in self._samplers]

    def go_on_from(self, positions: Sequence[Mapping[str, Any]]) -> None:
        for sampler, position in zip(self._samplers, positions, strict=False):
            sampler.load_state_dict(position)
        self._positions = list(positions[len(self._samplers) :])
