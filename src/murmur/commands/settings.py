"""`murmur settings`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import Annotated

import typer

from murmur.commands.options import Settings, Source, grouped
from murmur.core.errors import SettingError, nearest
from murmur.core.printable import say
from murmur.run.configuration import Setting, arguments_of, resolved, settings_of

app = typer.Typer(add_completion=False)
WIDTH = 80  # columns

Pattern = Annotated[
    str | None,
    typer.Argument(help="List only names that contain this text or, with *, ? or [, match it: 'task.*.bins'."),
]
AsJson = Annotated[bool, typer.Option("--json", help="A JSON list of objects: name, type, default, explanation.")]


@app.command()
@grouped
def settings(source: Source, pattern: Pattern = None, set_: Settings = (), as_json: AsJson = False) -> None:
    """List every field of an experiment that --set can change: name, value, type and meaning.

    Example: murmur settings toy

    A line such as "task.hidden = 128" gives the name and the value in this experiment. The next line gives the type
    and the meaning. Give another value to any command that takes --set:

        murmur train toy --set task.hidden=64

    Quote values with brackets: --set 'optimizer=Adam(lr=0.001)'. Another value may have other fields; with --set the
    list shows them:

        murmur settings ctc optimizer --set 'optimizer=SGD()'

    Nothing is prepared or trained, and no corpus is read.
    """
    listed = [*arguments_of(source, set_), *settings_of(resolved(source, set_))]
    chosen = [setting for setting in listed if pattern is None or _matches(setting.name, pattern)]
    if not chosen:
        raise SettingError(f"no setting of {source} matches {pattern!r}{_near(str(pattern), listed)}")
    if as_json:
        say(json.dumps([asdict(setting) for setting in chosen], indent=1, ensure_ascii=False))
    else:
        say("\n".join(line for setting in chosen for line in _lines(setting)))


def _matches(name: str, pattern: str) -> bool:
    if any(letter in pattern for letter in "*?["):
        return fnmatchcase(name.lower(), pattern.lower())
    return pattern.lower() in name.lower()


def _near(pattern: str, listed: Sequence[Setting]) -> str:
    names = [setting.name for setting in listed]
    close = nearest(pattern, [*names, *{name.rpartition(".")[2] for name in names}])
    return close if "did you mean" in close else "; leave the pattern out to see all names"


def _lines(setting: Setting) -> list[str]:
    return [
        *_wrapped(f"{setting.name} = {setting.default}", "", "        "),
        *_wrapped(f"({setting.type}) {setting.explanation}".rstrip(), "    ", "    "),
    ]


def _wrapped(text: str, first: str, later: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )
