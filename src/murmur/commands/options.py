"""Options that several commands share."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer

from murmur.core.errors import SettingError
from murmur.execution.executors import Engine, Jobs
from murmur.run.configuration import attribute_lines, recipe_names
from murmur.simulation.scenario import KIND
from murmur.worlds.virtual.presets import PRESETS

Source = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT", help=f"A Python file with experiment(), or a recipe: {', '.join(recipe_names())}."
    ),
]
Settings = Annotated[
    tuple[str, ...],
    typer.Option(
        "--set", help="Change a field, such as budget.epochs=2; repeatable; murmur settings lists the fields."
    ),
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Compute threads per learner; an equal share of the cores by default.")
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Run the Python file named in run.json, if its code is needed (docs/security.md), even if it belongs to"
        " another user.",
    ),
]
Kind = Annotated[
    str | None,
    typer.Option("--cluster", help=f"One of {', '.join(PRESETS)}. By default the experiment's own cluster, or {KIND}."),
]
Step = Annotated[float | None, typer.Option("--step-seconds", help="Seconds per gradient of one learner.")]
Chosen = Annotated[tuple[str, ...], typer.Option("--strategy", help="Such as 'KAVG(K=16)'; repeatable.")]


@dataclass(frozen=True)
class Parallel:
    """The workers of a command.

    Attributes:
        jobs: Number of processes, or of Slurm jobs; by default task.jobs of the experiment, or 1. Workers of
            dask:ADDRESS and mpi are as many as have been started.
        executor: Place of the work: processes (of this host), dask:ADDRESS, dask:slurm or mpi (docs/many_machines.md).
    """

    jobs: Annotated[int | None, typer.Option(min=1)] = None
    executor: str | None = None

    @property
    def chosen(self) -> Jobs | None:
        """The processes or the engine; None if no option is given."""
        return self.jobs if self.executor is None else Engine(self.executor, self.jobs, progress=True)


@dataclass(frozen=True)
class Spread:
    """Differences of compute times; the fields are those of a scenario.

    Attributes:
        jitter: Spread of compute times (sigma of their logarithm).
        stragglers: 0=10x: learner 0 is 10 times slower; repeatable.
    """

    jitter: Annotated[float, typer.Option(min=0.0)] = 0.0
    stragglers: Annotated[tuple[str, ...], typer.Option("--straggler")] = ()


def numbers(text: str, option: str) -> tuple[int, ...]:
    """The whole numbers of "1,2,4"."""
    try:
        return tuple(int(part) for part in text.split(",")) if text.strip() else ()
    except ValueError:
        raise SettingError(f"{option} {text!r}: give whole numbers separated by commas, such as 1,2,4") from None


def memory_bytes(text: str, option: str) -> int:
    """The bytes of "500M": a number with K, M, G or T, powers of 1024.

    Raises:
        SettingError: it is none, or below 1M; names the option.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", text.strip().upper())
    size = int(float(found[1]) * 1024 ** " KMGT".index(found[2] or " ")) if found else 0
    if size < 1 << 20:
        raise SettingError(f"{option} {text!r}: give a size of at least 1M, such as 500M or 2G")
    return size


Result = TypeVar("Result")


def grouped(command: Callable[..., Result]) -> Callable[..., Result]:
    """Return a command with the signature that typer reads: one parameter per option.

    A parameter whose type is a dataclass is replaced by the fields of the dataclass, at its place. The help of an
    option is the line of its field under `Attributes:`. A field without annotation for typer is an option of its name,
    and a flag if its default is False; `scale: Annotated[float, typer.Option("--size", min=0.0)] = 1.0` says more. A
    class variable `panel` is the heading of the options in --help. An option that may be repeated has the type
    `tuple[str, ...]`, which typer itself takes for a fixed number of values.
    """
    hints = get_type_hints(command, include_extras=True)
    own = inspect.signature(command).parameters.values()
    options = [option for parameter in own for option in _options(parameter, hints[parameter.name])]
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    repeated = {option.name for option in options if _is_repeated(option.annotation)}

    @wraps(command)
    def call(**given: Any) -> Result:
        given |= {name: tuple(given[name] or ()) for name in repeated}
        made = {name: group(**{f.name: given.pop(f.name) for f in fields(group)}) for name, group in groups.items()}
        return command(**given, **made)

    signature = inspect.Signature([option.replace(annotation=_for_typer(option)) for option in options])
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def _options(parameter: inspect.Parameter, hint: Any) -> list[inspect.Parameter]:
    keyword = inspect.Parameter.KEYWORD_ONLY
    if not (isinstance(hint, type) and is_dataclass(hint)):
        return [parameter.replace(annotation=hint, kind=keyword)]
    types, lines, panel = get_type_hints(hint, include_extras=True), attribute_lines(hint), getattr(hint, "panel", None)
    found = []
    for name, field in inspect.signature(hint).parameters.items():
        plain = typer.Option(*([f"--{name.replace('_', '-')}"] if field.default is False else []))
        value, option = get_args(types[name]) if get_origin(types[name]) is Annotated else (types[name], plain)
        option = copy(option)  # may be shared with other groups
        option.help, option.rich_help_panel = option.help or lines[name], panel or option.rich_help_panel
        found.append(field.replace(annotation=Annotated[value, option], kind=keyword))
    return found


def _is_repeated(annotation: Any) -> bool:
    return get_origin(annotation) is Annotated and get_origin(get_args(annotation)[0]) is tuple


def _for_typer(option: inspect.Parameter) -> Any:
    if not _is_repeated(option.annotation):
        return option.annotation
    values, *about = get_args(option.annotation)
    return Annotated[list[get_args(values)[0]], *about]  # type: ignore[misc]
