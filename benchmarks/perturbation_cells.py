"""Runs of `noise_perturbation`: AN4 with a small sigmoid network, on a virtual clock.

Task: AN4's published cepstra with deltas, states of monophones (made by murmur's own Gaussian systems), three sigmoid
layers of 128 on eleven frames, single frames in random order. Held out: every eighth training speaker. The clock is
virtual; gradients are real, without momentum and without clipping. The rate, and its growth with the square root of
the number of learners unless a study says otherwise, were chosen by pilot runs that are not among the rows.

A run of one learner with 64 frames a minibatch stands for IBM's one V100 with 256 sequences a minibatch: 192 h for 16
passes over 33.9 M sequences are 0.326 s a minibatch (arXiv 1907.05701 and its talk). Seconds are taken as linear in the
minibatch, with 10 % of jitter; messages have the size of their model, 164.6 MiB; the machines are the preset
`v100-ethernet`: eight learners a node.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from murmur.core.facts import training_learners
from murmur.core.learner import Strategy
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD, NaturalGradientSGD
from murmur.engine.scaling import Fixed
from murmur.engine.schedule import Exponential, Schedule, WarmUpAnneal
from murmur.recipes import an4
from murmur.run.configuration import configure
from murmur.speech.models import Dnn
from murmur.studies.comparison.rows import digest_of
from murmur.tasks.hybrid.config import Decoding, FrontEnd, HmmStages, Search
from murmur.tasks.hybrid.task import HybridTask
from murmur.tasks.random_frames import FrameTask
from murmur.worlds.virtual.cluster import Cluster, LognormalSeconds
from murmur.worlds.virtual.presets import preset

NETWORK = Dnn(hidden=128, layers=3, context=5)
FRAMES = 128  # minibatch to which rates refer
PASS = 240_000  # frames of all learners, by default: about one pass over the data
SECONDS_PER_FRAME = 0.326 / 64
IBM_EPOCHS = 16  # of the papers, into which the budget is cut
MESSAGE_BYTES, PRESET, JITTER = 164.6 * 2**20, "v100-ethernet", 0.1
STACK_RATE = 0.04  # rate of the machines, from the studies on digits
FIXED = {
    "format": 2,
    "data": "AN4 cepstra, states of monophones, every eighth speaker of train held out",
    "network": repr(NETWORK),
    "kaldi": "exponential to a tenth",
    "ibm": "linear warm-up over 10 of 16 parts of the budget, then times 1 / sqrt 2 in each part",
    "constant": "the same rate throughout",
    "stack": "one pass a machine, momentum 0.9, weight decay 2e-4",
    "clock": [SECONDS_PER_FRAME, MESSAGE_BYTES, PRESET, JITTER],
}

Optimizer = Literal["SGD", "natural gradient"]
Shape = Literal["kaldi", "ibm", "constant"]


@dataclass(frozen=True)
class StudyCell:
    """One run.

    Attributes:
        strategy: strategy, as on a command line.
        learners: number of virtual learners.
        rate: rate of one learner with 128 frames a minibatch; scaled by frames / 128 and by learners ** `power`.
        power: 1 for one step with the minibatch of all learners, 0 for updates one by one.
        seed: seed of the weights and of the order of the frames.
        frames: number of frames in a learner's minibatch.
        budget: number of frames of all learners.
        schedule: name of the schedule, see FIXED.
        optimizer: name of the optimizer, without momentum.
        stack: take weights from a stack of restricted Boltzmann machines, trained on the same features.
        slow: factor on the time of learner 0.
        decoded: decode test at the end.
    """

    strategy: str = "SyncSGD()"
    learners: int = 1
    rate: float = 2.0
    power: float = 0.0
    seed: int = 0
    frames: int = FRAMES
    budget: int = PASS
    schedule: Shape = "kaldi"
    optimizer: Optimizer = "SGD"
    stack: bool = False
    slow: float = 1.0
    decoded: bool = False

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits; independent of decoding test and of the location of the data."""
        return digest_of([{k: v for k, v in asdict(self).items() if k != "decoded"}, FIXED])

    @property
    def told(self) -> str:
        """A short description."""
        return f"{self.strategy}, {self.learners} learners, {self.frames} frames, {self.schedule}, seed {self.seed}"

    @property
    def made(self) -> Strategy:
        """The strategy."""
        return configure(an4.experiment(), (), self.strategy).strategy

    @property
    def times(self) -> float:
        """Factor on the rate, by the number of learners that train."""
        return float(self.frames / FRAMES * training_learners(self.made, self.learners) ** self.power)

    def cluster(self) -> Cluster:
        """The virtual machines."""
        compute = LognormalSeconds(
            SECONDS_PER_FRAME * self.frames, JITTER, factors={0: self.slow} if self.slow != 1 else {}
        )
        return preset(PRESET).cluster(self.learners, compute, MESSAGE_BYTES)

    def experiment(self, task: Any, per_epoch: int) -> Experiment:
        """The experiment on a task of `per_epoch` minibatches."""
        total = self.budget // self.frames
        passes = total / per_epoch
        optimizer = {"SGD": SGD, "natural gradient": NaturalGradientSGD}[self.optimizer](self.rate)
        return Experiment(
            task,
            self.made,
            Budget(minibatches=total),
            optimizer,
            self._schedule(passes),
            scaling=Fixed(),
            seed=self.seed,
            evaluate_every_epochs=passes / 2,
            averaged_checkpoints=0,
            prefetch=0,
        )

    def _schedule(self, passes: float) -> Schedule:
        if self.schedule == "ibm":
            epoch = passes / IBM_EPOCHS
            return WarmUpAnneal(self.times, 10 * epoch, 2 ** (-0.5 / epoch))
        return Exponential(0.1 if self.schedule == "kaldi" else 1.0, self.times)


@dataclass(frozen=True)
class StudyMaterial:
    """The folders of the speech and of the data made from it.

    Attributes:
        corpus: folder of AN4.
        cache: folder of features, alignments, stacks.
    """

    corpus: Path
    cache: Path
    _tasks: dict[int, HybridTask] = field(default_factory=dict, repr=False, compare=False)

    def network_task(self, seed: int) -> HybridTask:
        """AN4 with the network, for a seed; its data are read once."""
        return self._tasks.setdefault(seed, replace(self.supervised, seed=seed))

    def frame_task(self, cell: StudyCell) -> FrameTask:
        """The task of a cell."""
        return FrameTask(self.network_task(cell.seed), cell.frames, cell.seed)

    @cached_property
    def supervised(self) -> HybridTask:
        """AN4 with a small network on the states of monophones."""
        task = an4.experiment().task
        assert isinstance(task, HybridTask)
        search = Search("ug", scales=(0.1, 0.14, 0.2, 0.28))
        return replace(
            task,
            corpus=self.corpus,
            cache=self.cache,
            front=FrontEnd(),
            hmm=HmmStages(triphone=None),
            network=NETWORK,
            decoding=Decoding(network=search, scored="none", tune_every=2),
            precision="float32",
        )
