"""One run of the papers' experiments, with all its settings.

Gradients are real, the clock is virtual. In the regime "stays" the minibatch of one learner is cut among the learners;
where a paper is about large minibatches it "grows". Rate and horizons follow the number of learners by
`murmur.engine.scaling.Auto`, and `rate` is that of one learner times the factor of a trial.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from murmur.comparison.rows import digest_of
from murmur.core.facts import training_learners
from murmur.core.learner import Strategy
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.scaling import Auto
from murmur.run.configuration import configure
from murmur.run.folder.provenance import commit
from murmur.speech.recipes import librispeech
from murmur.speech.tasks.hybrid.task import HybridTask
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds
from murmur_papers.studies.machines import MACHINES
from murmur_papers.studies.networks import SETUPS, Name, Optimizer, Setup, Shape, ctc, hybrid, made, schedule
from murmur_papers.tasks.random_frames import FrameTask

FORMAT = 3  # to be raised with a change of networks, machines or code that changes figures
COMMIT = (commit() or "unknown")[:7]  # when this process starts: the working tree may move on
STACK_RATE = 0.04  # rate of the machines of a stack


@dataclass(frozen=True)
class StudyCell:
    """One run.

    Attributes:
        learners: number of virtual learners, servers included.
        rate: learning rate of one learner.
        minibatch: units of the minibatch of all learners; of each learner if it grows.
        budget: frames of all learners.
        peak: factor on the rate that the schedule reaches.
        stack: take weights from a stack of restricted Boltzmann machines, trained on the same features.
        machines: name of the virtual machines; "": one learner, whose seconds need no simulation.
        slow, models: see `Machines.virtual`.
        decoded: decode test at the end.
    """

    network: Name = "blstm"
    strategy: str = "SyncSGD()"
    learners: int = 1
    rate: float = 1.0
    seed: int = 0
    minibatch: int = SETUPS["blstm"].minibatch
    grows: bool = False
    budget: int = SETUPS["blstm"].budget
    optimizer: Optimizer = "Adam"
    schedule: Shape = "cosine"
    peak: float = 1.0
    stack: bool = False
    machines: str = ""
    slow: float = 1.0
    models: float = 0.0
    decoded: bool = False

    @property
    def setup(self) -> Setup:
        return SETUPS[self.network]

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits; independent of decoding test and of the location of the data."""
        return digest_of([{k: v for k, v in vars(self).items() if k != "decoded"}, FORMAT])

    @property
    def told(self) -> str:
        who = "1 learner" if self.learners == 1 else f"{self.learners} learners"
        where = f"{self.network}, {self.strategy}, {who}, {self.minibatch} a minibatch, rate {self.rate:.3g}"
        extra = [name for name in (f"{self.slow:g} times slower",) if self.slow != 1]
        extra += ["stack"] if self.stack else []
        more = [f"{self.optimizer}", self.schedule, *extra, f"{self.budget / 1e6:.1f} M frames", f"seed {self.seed}"]
        return f"{where}, {', '.join(more)}"

    @property
    def made(self) -> Strategy:
        return configure(librispeech.experiment(), (), self.strategy).strategy

    @property
    def training(self) -> int:
        return training_learners(self.made, self.learners)

    @property
    def piece_frames(self) -> float:
        pieces = 1 if self.grows else self.training
        return self.minibatch * self.setup.unit_frames / pieces

    @property
    def turns(self) -> int:
        return round(self.budget / self.piece_frames / self.training)

    def cluster(self) -> Cluster:
        if not self.machines:
            return Cluster(self.learners, ConstantSeconds(1.0))
        return MACHINES[self.machines].virtual(self.learners, self.piece_frames, self.slow, self.models)

    def experiment(self, task: Any) -> Experiment:
        passes = self.budget / task.samples_per_epoch
        return Experiment(
            task,
            self.made,
            Budget(samples=self.budget),
            made(self.optimizer, self.network, self.rate),
            schedule(self.schedule, passes, self.peak),
            scaling=Auto("grows" if self.grows else "stays"),
            seed=self.seed,
            evaluate_every_epochs=passes / self.setup.evaluations,
            max_gradient_norm=self.setup.training[self.optimizer].norm,
            averaged_checkpoints=0,
            prefetch=0,
        )


@dataclass(frozen=True)
class StudyMaterial:
    """The folders of the speech and of the data made from it.

    Attributes:
        cache: folder of features, alignments and stacks.
        device: "cpu", or a GPU that computes the gradients of all learners of a run in one call (`engine.stacked`).
    """

    corpora: dict[str, Path]
    cache: Path
    device: str = "cpu"
    _tasks: dict[tuple[Name, int], Any] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def networks(self) -> list[Name]:
        """Networks whose set has a folder."""
        return [name for name, setup in SETUPS.items() if setup.corpus in self.corpora]

    def network_task(self, name: Name, seed: int = 0) -> Any:
        """A network's task with one learner's minibatch, for a seed."""
        if (name, seed) not in self._tasks:
            plain: Any = ctc() if name == "ctc" else hybrid(name)
            folder = self.corpora[SETUPS[name].corpus]
            self._tasks.clear()  # data of several seeds would fill the memory
            self._tasks[name, seed] = replace(plain, corpus=folder, cache=self.cache, seed=seed)
        return self._tasks[name, seed]

    def task(self, cell: StudyCell) -> Any:
        plain = self.network_task(cell.network, cell.seed)
        if cell.network == "dnn":
            return FrameTask(plain, cell.minibatch, cell.seed)
        if isinstance(plain, HybridTask):
            return replace(plain, chunks=replace(plain.chunks, size=cell.minibatch))
        return replace(plain, minibatch_size=cell.minibatch)
