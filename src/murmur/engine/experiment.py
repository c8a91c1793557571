"""Experiment: a frozen value that defines a run; a Python file returns it, and the command line may change it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Protocol

from torch import nn

from murmur.core.buffers import check_rules
from murmur.core.facts import training_learners
from murmur.core.learner import Strategy
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD, OptimizerFactory
from murmur.engine.scaling import Auto, Scaled, Scaling
from murmur.engine.schedule import Constant, Schedule
from murmur.engine.task import Divisible, Task

# Metadata of a field without `repr` that was added to a setting after runs were made with it. Descriptions and digests
# name it only where its value is not the default, so that those of earlier runs stay.
ADDED = MappingProxyType({"added": True})


class Initialiser(Protocol):
    """Function that puts initial weights into a new model."""

    def __call__(self, model: nn.Module) -> object: ...


@dataclass(frozen=True)
class Experiment:
    """Task, strategy and budget of a training run.

    Attributes:
        task: Model and data.
        strategy: Strategy of the learners.
        budget: Length of training.
        optimizer: Function that makes a learner's local optimizer from its model.
        schedule: Factor on the optimizer's learning rates.
        cluster: Simulated cluster, for `murmur simulate`.
        scaling: Rule by which minibatch, rate and horizons follow the number of learners.
        seed: Seed of all random numbers of the run.
        evaluate_every_epochs: Epochs between evaluations on held-out data, each with a checkpoint.
        max_gradient_norm: Largest norm of a gradient, which is scaled down before a step; None: no limit.
        prefetch: Minibatches that each learner prepares in the background; 0: none. Changes no bit.
        most_skipped: Number of consecutive minibatches skipped for a non-finite loss or gradient that ends the run.
        averaged_checkpoints: Number of checkpoints of lowest held-out loss in the averaged model; 0: none.
        begun: Rule of a run, as `scaled` sets it; not part of the digest.
        buffers: Rules of the model's buffers ("mean", "first", "own"), by name or pattern (`*.mask`), in place of those
            that `murmur.core.buffers` lists.
        published: Figures of a publication about this experiment, with which plans and simulations are compared.
        initial: Source of initial weights, such as a trained model; None leaves those that the task draws.
    """

    task: Task
    strategy: Strategy
    budget: Budget = field(default_factory=Budget)
    optimizer: OptimizerFactory = field(default_factory=SGD)
    schedule: Schedule = field(default_factory=Constant)
    cluster: Any = None
    scaling: Scaling = field(default_factory=Auto)
    seed: int = 0
    evaluate_every_epochs: float = 1.0
    max_gradient_norm: float | None = None
    most_skipped: int = 10
    averaged_checkpoints: int = 5
    prefetch: int = field(default=2, repr=False)  # does not change the result: a run may be resumed with another value
    begun: Scaled | None = field(default=None, repr=False)
    published: Published | None = field(default=None, repr=False)  # changes nothing either
    buffers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False, metadata=ADDED)
    initial: Initialiser | None = field(default=None, repr=False, metadata=ADDED)

    def __post_init__(self) -> None:
        check_rules(self.buffers)
        if self.most_skipped < 1:
            raise ValueError(f"most_skipped must be at least 1, got {self.most_skipped}")

        if self.averaged_checkpoints < 0:
            raise ValueError(f"averaged_checkpoints must not be negative, got {self.averaged_checkpoints}")

        if self.prefetch < 0:
            raise ValueError(f"prefetch must not be negative, got {self.prefetch}")

        if not self.evaluate_every_epochs > 0:
            raise ValueError(f"evaluate_every_epochs must be positive, got {self.evaluate_every_epochs}")

        if self.max_gradient_norm is not None and not self.max_gradient_norm > 0:
            raise ValueError(f"max_gradient_norm must be positive or None, got {self.max_gradient_norm}")

    def scaled(self, learners: int, cut: int | None = None) -> Experiment:
        """Return the experiment with the rule of its run, for so many learners at the start, servers included.

        If the run has begun already, with minibatches in `cut` pieces, the whole rule follows from their number.
        """
        if self.begun is not None:
            return self
        if cut is not None:
            return replace(self, begun=self.scaling.with_cut(cut, self.strategy, self.schedule))
        training = training_learners(self.strategy, learners)
        return replace(self, begun=self.scaling.of(training, self.task, self.strategy, self.schedule))

    @property
    def rule(self) -> Scaled:
        """The rule of the run; that of one learner before `scaled`."""
        return self.begun or self.scaling.of(1, self.task, self.strategy, self.schedule)

    @property
    def cut(self) -> int:
        """Pieces of each minibatch of the task; 1 before `scaled`."""
        return self.rule.cut

    @property
    def per_epoch(self) -> int:
        """Minibatches of learners (pieces) in one pass over the corpus."""
        return self.task.per_epoch * self.cut

    @property
    def total(self) -> int:
        return self.budget.total(self.task) * self.cut

    def model(self) -> nn.Module:
        """Return a new model of the task, with the initial weights; the caller seeds torch's generator."""
        model = self.task.model()
        if self.initial is not None:
            self.initial(model)
        return model

    def minibatch(self, n: int, number: int = 0, of: int = 1) -> Any:
        """Return piece `number` of `of` of a learner's minibatch n; None if it has no samples."""
        if self.cut * of == 1:
            return self.task.minibatch(n)
        whole, place = divmod(n, self.cut)
        if not isinstance(self.task, Divisible):
            raise ValueError(
                f"{type(self.task).__name__} cannot cut its minibatches in {self.cut * of}: leave them whole, or give"
                " it `piece` and `most_pieces` (murmur.engine.task.Divisible)"
            )
        return self.task.piece(whole, place * of + number, self.cut * of)

    def digest(self) -> str:
        """Sixteen hexadecimal digits; equal if and only if the described experiments are equal."""
        return blake2b(json.dumps(describe(self), sort_keys=True).encode(), digest_size=8).hexdigest()


def differences(then: Any, now: Any, name: str = "", ignored: Sequence[str] = ()) -> Iterator[tuple[str, Any, Any]]:
    """Return (setting, earlier value, present value) of two descriptions; one value is missing in another version."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        if name and then.get("type") != now.get("type"):
            yield name, in_short(then), in_short(now)
            return
        for key in sorted(then.keys() & now.keys()):
            if key not in ignored:
                yield from differences(then[key], now[key], f"{name}.{key}" if name else key, ignored)
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for number, (was, value) in enumerate(zip(then, now, strict=True)):
            yield from differences(was, value, f"{name}[{number}]", ignored)
    elif then != now and not (then != then and now != now):  # noqa: PLR0124 - numbers that are none are alike
        yield name, in_short(then), in_short(now)


def in_short(described: Any) -> str:
    """Return a described value in the form of a command line, such as KAVG(K=8)."""
    if isinstance(described, Mapping):
        fields_of = [f"{key}={in_short(value)}" for key, value in described.items() if key != "type"]
        return f"{str(described.get('type', '')).rpartition('.')[2]}({', '.join(fields_of)})"
    if isinstance(described, list):
        return f"({', '.join(map(in_short, described))})"
    return repr(described)


def describe(value: Any) -> Any:
    """Return a value of an experiment as JSON types, with the names of its classes; for run.json and digests."""
    if is_dataclass(value) and not isinstance(value, type):
        told = [f for f in fields(value) if f.repr or _is_new(f, getattr(value, f.name))]
        shown = {f.name: describe(_declared(getattr(value, f.name), f.type)) for f in told}
        return {"type": f"{type(value).__module__}.{type(value).__qualname__}", **shown}
    if isinstance(value, Mapping):
        return {str(k): describe(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [describe(v) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Callable):  # type: ignore[arg-type]
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    return str(value)


def _is_new(declared: Field[Any], value: Any) -> bool:
    if not declared.metadata.get("added"):
        return False
    made = declared.default_factory
    return bool(value != (declared.default if made is MISSING else made()))


def _declared(value: Any, annotation: Any) -> Any:
    """A field's value; an integer where its type says float is that float, so that 12 and 12.0 are described alike."""
    if type(value) is not int:
        return value
    declared = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    options = {option.strip() for option in declared.split("|")}
    return float(value) if "float" in options and "int" not in options else value


@dataclass(frozen=True)
class Published:
    """Figures that a publication gives for an experiment.

    Attributes:
        paper: Authors, year, place.
        hours: Hours of the whole training, by number of learners.
        speed_ups: Speed-up over one learner, by number of learners.
        note: Conditions under which the figures hold, and other figures of the paper.
    """

    paper: str
    hours: Mapping[int, float] = field(default_factory=dict)
    speed_ups: Mapping[int, float] = field(default_factory=dict)
    note: str = ""

    def __post_init__(self) -> None:
        for what in ("hours", "speed_ups"):
            for learners, value in getattr(self, what).items():
                if learners < 1 or not 0 < value < float("inf"):
                    raise ValueError(f"Published.{what} needs positive finite figures, got {{{learners}: {value}}}")
