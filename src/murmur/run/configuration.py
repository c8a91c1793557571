"""Builds an Experiment from a Python file and a command line: checks names, converts values, ignores nothing."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from murmur import strategies
from murmur.core.errors import SettingError, nearest
from murmur.core.learner import Strategy
from murmur.core.setting_names import renamed
from murmur.engine import schedule
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim import optimizer
from murmur.speech import models
from murmur.worlds.virtual import cluster

VALUES: Mapping[str, Any] = {
    **strategies.ALL,
    **strategies.PARTS,
    **{name: getattr(optimizer, name) for name in ("SGD", "Adam", "NaturalGradientSGD", "FisherConfig")},
    **{name: getattr(models, name) for name in ("Dnn", "Lstm", "Blstm", "Tdnn", "TdnnF", "Convolutions")},
    **{name: getattr(schedule, name) for name in schedule.__all__ if name[0].isupper()},
    **{name: getattr(cluster, name) for name in ("Cluster", "Link", "ConstantSeconds", "LognormalSeconds")},
}


# Errors of Python on a text that is not a literal; some need a list as a key, or too many brackets or signs.
UNREADABLE = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)
MOST_SHOWN = 200  # characters of a text in a message


class UnknownField(SettingError):
    """A setting names a field that does not exist."""


def load(source: str) -> Experiment:
    """Return the experiment that `experiment()` of a file, or of a recipe of this package, makes.

    Raises:
        SettingError: there is no such file or recipe, or it has no such function.
    """
    return _made(source, maker(source), {})


def _made(source: str, make: Callable[..., object], given: Mapping[str, str]) -> Experiment:
    types = {name: parameter.annotation for name, parameter in parameters(make).items()}
    arguments = {name: typed(value, types[name], name) for name, value in given.items()}
    try:
        made = make(**arguments)
    except ValueError as error:
        if not given:
            raise  # raised by the file's own code
        told = ", ".join(f"{name}={value}" for name, value in given.items())
        raise SettingError(f"{told}: {error}") from error
    if not isinstance(made, Experiment):
        raise SettingError(f"experiment() of {source} must return an Experiment, got {type(made).__name__}")
    return made


def parameters(make: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """Return the parameters of an `experiment()` that a setting can name: those with a default value and a type."""
    empty = inspect.Parameter.empty
    found = {n: p for n, p in inspect.signature(make).parameters.items() if empty not in (p.default, p.annotation)}
    types = get_type_hints(make) if found else {}
    return {name: parameter.replace(annotation=types[name]) for name, parameter in found.items()}


def maker(source: str) -> Callable[..., object]:
    """Return the function `experiment()` of a file, or of a recipe of this package.

    Raises:
        SettingError: there is no such file or recipe, or it has no such function.
    """
    make = getattr(_module(source), "experiment", None)
    if not callable(make):
        raise SettingError(f"{source} has no function experiment(); it must return a murmur Experiment")
    found: Callable[..., object] = make
    return found


def _module(source: str) -> ModuleType:
    path = Path(source)
    if path.suffix == ".py":
        if not path.is_file():
            raise SettingError(f"there is no file {source}")
        name = f"murmur_experiment_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise SettingError(f"{source} cannot be read as a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look their module up
        try:
            spec.loader.exec_module(module)
        except SyntaxError as error:
            raise SettingError(f"{error.filename or source}, line {error.lineno}: {error.msg}") from error
        except ValueError as error:
            if "null bytes" not in str(error):
                raise  # raised by the file's own code
            raise SettingError(f"{source} cannot be read as a Python file: {error}") from error
        except MemoryError as error:
            raise SettingError(f"{source} cannot be read as a Python file: too many brackets or signs") from error
        return module
    recipes = _recipe_modules()
    if source not in recipes:
        raise SettingError(f"{source!r} is neither a .py file nor a recipe{nearest(source, list(recipes))}")
    return importlib.import_module(recipes[source])


def recipe_names() -> list[str]:
    """Names of this package's recipes: the modules that define `experiment()`, in folders of any depth."""
    return sorted(_recipe_modules())


def _recipe_modules() -> dict[str, str]:
    package = Path(__file__).parents[1]
    return {
        path.stem: ".".join(["murmur", *path.relative_to(package).with_suffix("").parts])
        for path in (package / "recipes").rglob("[!_]*.py")
        if "\ndef experiment(" in path.read_text(encoding="utf-8")
    }


def configure(
    experiment: Experiment, settings: Sequence[str] = (), strategy: str | None = None, source: str = "EXPERIMENT"
) -> Experiment:
    """Return an experiment changed by settings such as "budget.epochs=2" and a strategy such as "KAVG(K=8)".

    Args:
        experiment: Experiment to start from.
        settings: Names and values, as for --set.
        strategy: Strategy that replaces the experiment's own.
        source: File or recipe of the experiment, for the hint in messages about unknown names.

    Raises:
        SettingError: an unknown name (the nearest valid one is given) or a value of the wrong type.
    """
    if strategy is not None:
        experiment = replace(experiment, strategy=_strategy(strategy))
    waiting: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise SettingError(f"--set needs name=value, got {setting!r}")
        waiting.pop(name.strip(), None)  # the last one counts, at its own position
        waiting[name.strip()] = value.strip()
    while waiting:  # settings that are valid only together may come in any order
        refused: dict[str, SettingError] = {}
        for name, value in waiting.items():
            try:
                experiment = _put(experiment, name.split("."), value, name)
            except UnknownField as error:
                refused[name] = SettingError(f"{error} (all names: murmur settings {shlex.quote(source)})")
            except SettingError as error:
                refused[name] = error
        if len(refused) == len(waiting):
            raise next(iter(refused.values()))
        waiting = {name: waiting[name] for name in refused}
    return experiment


def resolved(source: str, settings: Sequence[str], jobs: int | None = None, strategy: str | None = None) -> Experiment:
    """Return the experiment of a command line; `jobs` sets task.jobs.

    Settings that name parameters of the file's `experiment()` come first, whatever their place; the others change what
    the function returns.

    Raises:
        SettingError: an unknown name, or a value that does not fit.
    """
    make = maker(source)  # once: a file may take long to load
    names, given, others = parameters(make), dict[str, str](), list[str]()
    for setting in settings:
        name, equals, value = setting.partition("=")
        if equals and name.strip() in names:
            given[name.strip()] = value.strip()
        else:
            others.append(setting)
    more = [] if jobs is None else [f"task.jobs={jobs}"]
    return configure(_made(source, make, given), [*others, *more], strategy, source)


def _strategy(text: str) -> Strategy:
    made = _evaluate(text, "strategy", {**strategies.ALL, **strategies.PARTS})
    if isinstance(made, type) and made.__name__ in strategies.ALL:
        made = made()
    if type(made).__name__ not in strategies.ALL:
        raise SettingError(f"strategy: {text!r} is not a strategy; there are {', '.join(strategies.ALL)}")
    strategy: Strategy = made
    return strategy


def settable(owner: Any) -> dict[str, Any]:
    """Fields of a value that a setting can name, with their types; empty unless the value is a dataclass."""
    if not is_dataclass(owner):
        return {}
    types = get_type_hints(type(owner))
    return {f.name: types.get(f.name, Any) for f in fields(owner) if f.init}


def _put(owner: Any, path: list[str], value: str, full: str) -> Any:
    known = settable(owner)
    if path[0] not in known:
        where = type(owner).__name__
        raise UnknownField(f"{full}: {where} has no field {path[0]!r}{nearest(path[0], list(known))}")
    new = _put(getattr(owner, path[0]), path[1:], value, full) if len(path) > 1 else typed(value, known[path[0]], full)
    # A budget has one unit: the new one replaces the old.
    anew = isinstance(owner, Budget) and new is not None
    try:
        return Budget(**{path[0]: new}) if anew else replace(owner, **{path[0]: new})
    except (ValueError, TypeError) as error:
        told = str(error)
        if hasattr(type(owner), "minibatch"):  # a task, perhaps inside another one, whose settings have longer names
            told = renamed(told, ".".join(full.split(".")[: -len(path)]))
        raise SettingError(f"{full}={value}: {told}") from error


def typed(text: str, wanted: Any, name: str) -> Any:
    """Convert a command line's text to a value of the annotated type.

    Raises:
        SettingError: it cannot be read as that type.
    """
    options = get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,)
    if type(None) in options and text in ("None", "none", ""):
        return None
    for option in options:
        if get_origin(option) is Literal and text in get_args(option):
            return text
        if option in (str, Path):
            return option(text)
        if option in (int, float, bool):
            value = _literal(text)
            if isinstance(value, bool) == (option is bool) and isinstance(value, (int, option)):
                if option is float and abs(value) > sys.float_info.max and isinstance(value, int):
                    raise SettingError(f"{name}: an integer of {len(text)} characters is too large")
                return option(value)
    if any(get_origin(o) is Literal for o in options):
        choices = [str(c) for o in options for c in get_args(o)]
        raise SettingError(f"{name}: {_short(text)} is none of {', '.join(choices)}{nearest(text, choices)}")
    if any(o in (int, float, bool) for o in options):
        raise SettingError(f"{name}: {_short(text)} is not a value of type {getattr(wanted, '__name__', wanted)}")
    return _evaluate(text, name, {**VALUES, **_classes(wanted)})


def _classes(wanted: Any) -> dict[str, Any]:
    """Dataclasses of an annotated type and of their fields, by name; a setting's value may call them."""
    waiting, found = [wanted], dict[str, Any]()
    while waiting:
        option = waiting.pop()
        if get_origin(option) in (Union, UnionType):
            waiting += get_args(option)
        elif isinstance(option, type) and is_dataclass(option) and option.__name__ not in found:
            found[option.__name__] = option
            waiting += get_type_hints(option).values()
    return found


def _short(text: str) -> str:
    return repr(text) if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]!r}..."


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except UNREADABLE:
        return None


def _evaluate(text: str, name: str, names: Mapping[str, Any]) -> Any:
    """Evaluate a literal, or a call such as KAVG(K=8) of a known name with literal arguments; refuse all else."""
    try:
        tree = ast.parse(text, mode="eval").body
    except UNREADABLE as error:
        raise SettingError(f"{name}: {_short(text)} cannot be read: {error or 'too many brackets'}") from error
    return _node(tree, name, names)


def _node(node: ast.expr, name: str, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return _known(node.id, name, names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        made = _known(node.func.id, name, names)
        positional = [_node(a, name, names) for a in node.args]
        named = {k.arg: _node(k.value, name, names) for k in node.keywords if k.arg is not None}
        valid = [f.name for f in fields(made)] if is_dataclass(made) else list(named)
        for unknown in set(named) - set(valid):
            raise SettingError(f"{name}: {node.func.id} has no field {unknown!r}{nearest(unknown, valid)}")
        try:
            return made(*positional, **named)
        except (TypeError, ValueError) as error:
            raise SettingError(f"{name}: {error}") from error
    try:
        return ast.literal_eval(node)
    except UNREADABLE as error:
        raise SettingError(f"{name}: only names, literals and calls such as KAVG(K=8) are understood") from error


def _known(word: str, name: str, names: Mapping[str, Any]) -> Any:
    if word not in names:
        raise SettingError(f"{name}: there is no {word!r}{nearest(word, list(names))}")
    return names[word]
