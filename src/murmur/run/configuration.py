"""Builds an Experiment from a Python file and a command line: checks names, converts values, ignores nothing.

The list of settings has every name that `--set` takes, with its type, value and explanation.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from murmur import strategies
from murmur.core.errors import SettingError, nearest
from murmur.core.learner import Strategy
from murmur.engine import schedule
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim import optimizer
from murmur.execution.executors import Engine, Jobs, engine_of
from murmur.plugins import installed
from murmur.worlds.virtual import cluster

VALUES: Mapping[str, Any] = {
    **strategies.ALL,
    **strategies.PARTS,
    **{name: getattr(optimizer, name) for name in ("SGD", "Adam", "NaturalGradientSGD", "FisherConfig")},
    **{name: getattr(schedule, name) for name in ("Constant", "Cosine", "Exponential", "LargeBatch", "NewBob")},
    **{name: getattr(schedule, name) for name in ("TimesLearners", "WarmUpAnneal")},
    **{name: getattr(cluster, name) for name in ("Cluster", "Link", "ConstantSeconds", "LognormalSeconds")},
}


# Errors of Python on a text that is not a literal; some need a list as a key, or too many brackets or signs.
UNREADABLE = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)
RECIPES = "murmur.recipes"
MOST_SHOWN = 200  # characters of a text in a message
ENTRY = re.compile(r"(\w+(?:, \w+)*): *(.*)")  # of a section of a docstring


class UnknownField(SettingError):
    """A setting names a field that does not exist."""


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
    """Names of the recipes of murmur and of its plugins: the modules that define `experiment()`."""
    return sorted(_recipe_modules())


def _recipe_modules() -> dict[str, str]:
    packages = [RECIPES, *(plugin.recipes for plugin in installed().values() if plugin.recipes is not None)]
    # In this order of precedence: a plugin replaces no recipe of murmur.
    return {path.stem: f"{package}.{path.stem}" for package in reversed(packages) for path in _files_of(package)}


def _files_of(package: str) -> list[Path]:
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        spec = None  # the plugin names a package that is not there
    folders = [] if spec is None else spec.submodule_search_locations or []
    files = (path for folder in folders for path in Path(folder).glob("[!_]*.py"))
    return [path for path in files if "\ndef experiment(" in path.read_text(encoding="utf-8")]


def configure(
    experiment: Experiment, settings: Sequence[str] = (), strategy: str | None = None, source: str = "EXPERIMENT"
) -> Experiment:
    """Return an experiment changed by settings such as "budget.epochs=2" and a strategy such as "KAVG(K=8)".

    `source` is its file or recipe, for the hint in messages about unknown names.

    Raises:
        SettingError: an unknown name (the nearest valid one is given) or a value of the wrong type.
    """
    if strategy is not None:
        experiment = replace(experiment, strategy=strategy_of(strategy))
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


def resolved(
    source: str, settings: Sequence[str] = (), jobs: Jobs | None = None, strategy: str | None = None
) -> Experiment:
    """Return the experiment of a command line; `jobs` sets task.jobs, and task.executor if it is an engine.

    Settings that name parameters of the file's `experiment()` come first, whatever their place; the others change what
    the function returns.
    """
    make = maker(source)  # once: a file may take long to load
    names, given, others = parameters(make), dict[str, str](), list[str]()
    for setting in settings:
        name, equals, value = setting.partition("=")
        if equals and name.strip() in names:
            given[name.strip()] = value.strip()
        else:
            others.append(setting)
    count = None if jobs is None else engine_of(jobs).jobs
    more = [] if count is None else [f"task.jobs={count}"]
    more += [f"task.executor={jobs.name}"] if isinstance(jobs, Engine) else []
    return configure(_made(source, make, given), [*others, *more], strategy, source)


def strategy_of(text: str) -> Strategy:
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
        raise SettingError(f"{full}={value}: {error}") from error


def typed(text: str, wanted: Any, name: str) -> Any:
    """Convert a command line's text to a value of the annotated type."""
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


@dataclass(frozen=True)
class Setting:
    """One name that `--set` takes: dotted, with its type, its value as `--set` would take it, and one line about it."""

    name: str
    type: str
    default: str
    explanation: str


def settings_of(experiment: Experiment) -> list[Setting]:
    """List every setting, in the order of the fields; the fields of a value follow the value."""
    return list(_below(experiment, ""))


def arguments_of(source: str, settings: Sequence[str] = ()) -> list[Setting]:
    """List the parameters of a file's or recipe's `experiment()`, with their values after `settings`."""
    make = maker(source)
    lines, texts = argument_lines(make), {n.strip(): v.strip() for n, _, v in (s.partition("=") for s in settings)}
    return [
        Setting(name, _type_name(p.annotation, object, name), texts.get(name, written(p.default)), lines.get(name, ""))
        for name, p in parameters(make).items()
    ]


def _below(owner: Any, prefix: str) -> Iterator[Setting]:
    lines = attribute_lines(type(owner))
    for name, wanted in settable(owner).items():
        value, full = getattr(owner, name), f"{prefix}{name}"
        if not (is_dataclass(value) and isinstance(wanted, type)):  # a value of one class changes only in its fields
            explanation = lines.get(name) or first_line(type(owner))
            yield Setting(full, _type_name(wanted, type(owner), name), written(value), explanation)
        if is_dataclass(value):
            yield from _below(value, f"{full}.")


def written(value: Any) -> str:
    """Format a value in the notation of `--set`: plain text for strings and paths, calls without default values."""
    return str(value) if isinstance(value, str | Path) else _expression(value)


def _expression(value: Any) -> str:
    if is_dataclass(value) and not isinstance(value, type):
        shown = [f.name for f in fields(value) if f.init and _changed(value, f)]
        given = [f"{name}={_expression(getattr(value, name))}" for name in shown]
        return f"{type(value).__name__}({', '.join(given)})"
    if isinstance(value, tuple):
        return f"({', '.join(map(_expression, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, Path):
        return repr(str(value))
    if isinstance(value, Callable):  # type: ignore[arg-type]
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    return repr(value)


def _changed(owner: Any, field: Any) -> bool:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return bool(default is MISSING or getattr(owner, field.name) != default)


def _type_name(wanted: Any, owner: type, name: str) -> str:
    origin = get_origin(wanted)
    if origin in (Union, UnionType):
        return " | ".join(_type_name(option, owner, name) for option in get_args(wanted))
    if origin is Literal:
        return " | ".join(map(str, get_args(wanted)))
    if wanted is type(None):
        return "None"
    if isinstance(wanted, type) and origin is None:
        return wanted.__name__
    if origin is tuple:
        inner = ("..." if option is ... else _type_name(option, owner, name) for option in get_args(wanted))
        return f"tuple[{', '.join(inner)}]"
    # A function type is shown by its name in the class's annotations, such as Schedule.
    return next(str(own[name]) for own in map(inspect.get_annotations, owner.__mro__) if name in own)


def attribute_lines(cls: type) -> dict[str, str]:
    """Field names with their explanations, each on one line; those of base classes included."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        found |= _section(inspect.cleandoc(base.__dict__.get("__doc__") or ""), "Attributes")
    return found


def argument_lines(function: Callable[..., object]) -> dict[str, str]:
    return _section(inspect.getdoc(function) or "", "Args")


def first_line(cls: type) -> str:
    line = inspect.cleandoc(cls.__dict__.get("__doc__") or "").partition("\n")[0]
    return "" if line.startswith(f"{cls.__name__}(") else line


def _section(doc: str, title: str) -> dict[str, str]:
    found: dict[str, str] = {}
    names: list[str] = []
    margin = None  # indentation of the entries; a line with more indentation continues an entry
    _, _, section = f"\n{doc}".partition(f"\n{title}:\n")
    for line in section.splitlines():
        if not (text := line.strip()):
            continue
        indent = len(line) - len(line.lstrip())
        if indent == 0:
            break
        margin = indent if margin is None else margin
        entry = ENTRY.fullmatch(text) if indent == margin else None
        if entry:
            names, text = entry[1].split(", "), entry[2]
        for name in names:
            found[name] = f"{found[name]} {text}" if not entry else text
    return found
