"""The engine's interface to a problem: a model, numbered minibatches, a loss, held-out figures.

A minibatch is one integer. `minibatch(n)` is a pure function of the task and n, so that the order of the data, exact
resume, handing work out on request and a changing number of learners all follow from counting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn


@dataclass(frozen=True)
class Loss:
    """The loss of one minibatch: `total` is summed over `samples` (frames, utterances: what the task counts).

    Attributes:
        total: scalar tensor, the sum of the losses of all samples; backward() is called on total / samples.
        samples: how many samples were summed; the weight of this minibatch in every mean over learners.
    """

    total: Tensor
    samples: float


@dataclass(frozen=True)
class Recognised:
    """One test utterance: what was said, what was recognised, the errors (ins + del + sub) and the words said."""

    utterance: str
    speaker: str
    reference: str
    hypothesis: str
    errors: int
    words: int


@dataclass(frozen=True)
class Score:
    """Results of a trained model on unseen data.

    Attributes:
        figures: for programs.
        lines: for people.
        recognised: every utterance of test, where words were recognised; paired comparisons of runs need them.
        others: how many of the first lines are of other systems than the trained model.
    """

    figures: Mapping[str, float] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    recognised: tuple[Recognised, ...] = ()
    others: int = 0


class Task(Protocol):
    """One learning problem. Implementations are usually frozen dataclasses, so that `--set task.field=value` works."""

    @property
    def per_epoch(self) -> int:
        """Minibatches in one pass over the corpus."""

    @property
    def samples_per_epoch(self) -> float:
        """Samples (what `Loss.samples` counts) in one pass over the corpus."""

    def prepare(self) -> object:
        """Make what the data needs and is not there yet; called once on a host before learners start."""

    def model(self) -> nn.Module:
        """A fresh model; the engine seeds torch's generator before it calls this."""

    def minibatch(self, n: int) -> Any:
        """Minibatch number n, n = 0, 1, 2, ...; the same value for the same n, on every learner, in every run."""

    def loss(self, model: nn.Module, minibatch: Any) -> Loss:
        """The loss of `model` on one minibatch, ready for backward."""

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        """Figures on held-out data; the entry "loss" (mean per sample) ranks checkpoints."""

    def test(self, model: nn.Module) -> Score:
        """Figures on test data, asked for once, at the end."""


@runtime_checkable
class Checkable(Protocol):
    """Optional addition to `Task`: a check of its paths and names before anything is made."""

    def check(self) -> None:
        """Find missing files, unknown names and missing libraries; takes well under a second, and writes nothing.

        Raises:
            ValueError: names the setting and what to do.
        """


@dataclass(frozen=True)
class Unmade:
    """Something that `Task.prepare` would make.

    Attributes:
        what: for people, such as "monophone system of train".
        folder: where it goes.
        seconds: about how long it takes on this host when nothing else runs.
        size_bytes: about how large it is.
    """

    what: str
    folder: Path
    seconds: float
    size_bytes: float


@runtime_checkable
class Preparable(Protocol):
    """Optional addition to `Task`: an estimate of what `prepare` would do."""

    def unprepared(self) -> Sequence[Unmade]:
        """List what is not prepared yet, in the order in which it would be made, without making anything."""


@runtime_checkable
class ResumableTest(Protocol):
    """Optional addition to `Task`: a test that goes on where it was cut off."""

    def test_in(self, model: nn.Module, kept: Path | None) -> Score:
        """`Task.test`, parts of whose work are kept in a folder as they are done; None keeps nothing."""


def test_in(task: Task, model: nn.Module, kept: Path | None) -> Score:
    """Test a model with a task; what a task can keep while it tests is kept in the folder."""
    return task.test_in(model, kept) if isinstance(task, ResumableTest) else task.test(model)


@runtime_checkable
class Stackable(Protocol):
    """Optional addition to `Task`: gradients of many learners by one call (torch.func.vmap over their weights).

    Its models draw no random numbers and have no running statistics: torch could not keep those of learners apart.
    """

    def tensors(self, minibatch: Any) -> tuple[tuple[Tensor, ...], float]:
        """A minibatch as tensors, and its samples; minibatches whose tensors have equal shapes are stacked."""

    def total(self, model: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """Return the `Loss.total` of `loss`, by tensor operations alone: no number may be read out of a tensor."""
