"""The engine's interface to a problem: a model, numbered minibatches, a loss, held-out figures.

A minibatch is one integer. `minibatch(n)` is a pure function of the task and n, so that the order of the data, exact
resume, assignment on request and changing numbers of learners all follow from counting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from murmur.accelerator import device as accelerator
from murmur.core.model_mode import evaluating

REPORTS = "errors"


@dataclass(frozen=True)
class Loss:
    """Loss of one minibatch: `total` is summed over `samples` (frames or utterances, as the task defines).

    Attributes:
        total: Scalar tensor, sum of the losses of all samples; backward() is called on total / samples.
        samples: Number of samples summed; weight of this minibatch in every mean over learners.
    """

    total: Tensor
    samples: float


@dataclass(frozen=True)
class Recognised:
    """One test utterance: reference, recognised text, errors (ins + del + sub) and number of reference words."""

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
        figures: Figures by name.
        lines: Text to print.
        recognised: Every test utterance, if words were recognised; needed for paired comparisons of runs.
        others: Number of lines, at the beginning, about other systems than the trained model.
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
        """Prepare missing data; called once per host before learners start."""

    def model(self) -> nn.Module:
        """Return a new model; the engine seeds torch's generator before this call."""

    def minibatch(self, n: int) -> Any:
        """Return minibatch n = 0, 1, 2, ...; the same value for the same n on every learner and in every run."""

    def loss(self, model: nn.Module, minibatch: Any) -> Loss:
        """Return the loss of `model`, which is in training mode, on one minibatch, ready for backward."""

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        """Return figures on held-out data; the entry "loss" (mean per sample) ranks checkpoints.

        The model is in evaluation mode.
        """

    def test(self, model: nn.Module) -> Score:
        """Return figures on test data; called once, at the end, with a model in evaluation mode."""


@runtime_checkable
class Checkable(Protocol):
    """Optional addition to `Task`: a check of its paths and names before anything is made."""

    def check(self) -> None:
        """Find missing files, unknown names and missing libraries; takes well under a second, and writes nothing.

        Raises:
            ValueError: A setting is wrong; names it and the remedy.
        """


@dataclass(frozen=True)
class Unmade:
    """Data that `Task.prepare` would make.

    Attributes:
        what: Description, such as "monophone system of train".
        folder: Folder in which it will be.
        seconds: Estimated time on this host when nothing else runs.
        size_bytes: Estimated size.
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
    """Optional addition to `Task`: a test that continues after an interruption."""

    def test_in(self, model: nn.Module, kept: Path | None) -> Score:
        """Test like `Task.test`, and keep finished parts in a folder; None keeps nothing.

        Reports of errors, if there are any, go to the folder `REPORTS` in it.
        """


def test_in(task: Task, model: nn.Module, kept: Path | None) -> Score:
    """Test a model in evaluation mode; a task that can continue an interrupted test keeps its parts in the folder."""
    with evaluating(model):
        return task.test_in(model, kept) if isinstance(task, ResumableTest) else task.test(model)


@runtime_checkable
class NamesOutputs(Protocol):
    """Optional addition to `Task`: the meaning of the model's outputs, where it follows from data.

    Learners with other outputs do not start together, and a checkpoint of other outputs is not resumed: weights of one
    class would become those of another one.
    """

    def outputs_digest(self) -> str:
        """Return hexadecimal digits that depend on the classes of the outputs and their order, such as words."""


def outputs_of(task: Task) -> str:
    """Return the digest of what a task's outputs stand for; "" if the task does not name them."""
    return task.outputs_digest() if isinstance(task, NamesOutputs) else ""


@runtime_checkable
class IdentifiesData(Protocol):
    """Optional addition to `Task`: the identity of its training and held-out data.

    A run that is resumed with other data warns, and its best and averaged models begin anew.

    Attributes:
        data_digest: Hexadecimal digits that depend on the data, such as names, texts and lengths of utterances. They
            are equal for all learners, and depend neither on the folder of the data nor on the dates of files.
    """

    @property
    def data_digest(self) -> str: ...


def data_of(task: Task) -> dict[str, Any]:
    """Return the digest of a task's data, with its minibatches and samples per epoch; empty without a digest."""
    digest = task.data_digest if isinstance(task, IdentifiesData) else ""
    return {"digest": digest, "minibatches": task.per_epoch, "samples": task.samples_per_epoch} if digest else {}


@runtime_checkable
class ContinuesTraining(Protocol):
    """Optional addition to `Task`: the network whose training it continues.

    Attributes:
        continues: Description of that network, for the warning of a run without initial weights; None for no network.
    """

    @property
    def continues(self) -> str | None: ...


@runtime_checkable
class DescribesModel(Protocol):
    """Optional addition to `Task`: plain files that make a model usable without its training data."""

    def save_description(self, run: Path) -> None:
        """Write the files into a folder of their own, in the folder of the run; replace that folder as a whole."""


@runtime_checkable
class Divisible(Protocol):
    """Optional addition to `Task`: minibatches that can be cut, for several learners or for several steps.

    Attributes:
        most_pieces: Largest number of pieces of a full minibatch that all have samples.
    """

    @property
    def most_pieces(self) -> int: ...

    def piece(self, n: int, number: int, of: int) -> Any:
        """Return piece `number` of `of` pieces of minibatch n, of about equal size; None if it has no samples.

        The pieces of a minibatch hold each of its samples once. Piece 0 of 1 is the minibatch, to the bit.
        """


@runtime_checkable
class Stackable(Protocol):
    """Optional addition to `Task`: gradients of many learners by one call (torch.func.vmap over their weights).

    Its models draw no random numbers and have no running statistics: torch.func.vmap cannot separate those of learners.
    """

    def tensors(self, minibatch: Any) -> tuple[tuple[Tensor, ...], float]:
        """Return a minibatch as tensors, and its samples; minibatches whose tensors have equal shapes are stacked."""

    def total(self, model: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """Return the `Loss.total` of `loss`, by tensor operations alone: no element may be read as a Python number."""


@runtime_checkable
class Fillable(Protocol):
    """Optional addition to `Stackable`: minibatches that can be filled up to the size of a larger one."""

    def filled(self, tensors: tuple[Tensor, ...], units: int) -> tuple[Tensor, ...]:
        """Return the tensors of a minibatch with `units` rows; those that are added change no `total`."""


def seed_of(*names: int | str) -> int:
    """Return a seed below 2^63 for a list of names, such as (experiment seed, "minibatch", n).

    >>> seed_of(0, "model") == seed_of(0, "model"), seed_of(0, "model") == seed_of(1, "model")
    (True, False)
    """
    return int.from_bytes(blake2b(repr(names).encode(), digest_size=8).digest(), "big") >> 1


def seed_torch(seed: int, device: str) -> None:
    """Seed the generator that a model on `device` draws from.

    Gives the same numbers as torch.manual_seed(seed). That function also calls every kind of accelerator; on a machine
    without one it stores a stack trace at each call, which takes half a millisecond and memory that is never freed.
    """
    torch.default_generator.manual_seed(seed)
    accelerator.seed(device, seed)
