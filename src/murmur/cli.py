"""The command line: `murmur COMMAND --help` describes a command and shows an example.

Every command is a module that is imported on first use: the speech libraries take seconds to import, and training a
plain PyTorch model needs none of them. Installed plugins (`murmur.plugins`) add commands of their own. A user error
ends with a message and status 1 (2 for wrong options), without a traceback; `murmur --traceback COMMAND` shows the
traceback. A stop signal ends any command within seconds, with status 79 and a line that says how to continue.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from murmur.core.errors import nearest, user_message
from murmur.core.printable import OutputError, say
from murmur.execution.messages import told_once
from murmur.plugins import commands, part_of, parts


class Commands(TyperGroup):
    """The commands, each imported on first use."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Expand ~ in --out=~/runs and task.corpus=~/an4, which a shell leaves as it is."""
        own = args[:1] != ["launch"]  # the words after `launch` belong to another program
        parsed: list[str] = super().parse_args(ctx, [_at_home(word) for word in args] if own else args)
        return parsed

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's signature
        """Names of the commands in their usual order."""
        return list(commands())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of that name; for an unknown name, exit with the nearest one."""
        if cmd_name not in commands():
            ctx.fail(f"there is no command {cmd_name!r}{nearest(cmd_name, list(commands()))}")
        entry = commands()[cmd_name]
        try:
            module = importlib.import_module(entry.module)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("murmur"):
                raise
            hint = part_of(cmd_name).install
            remedy = f": {hint}" if hint else ""
            raise SystemExit(f"murmur: {cmd_name} needs {error.name}, which is not installed{remedy}") from None
        command = get_command(module.app)
        command.name = cmd_name
        if entry.many_items and command.callback is not None:
            command.callback = _telling_once(command.callback)
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands without importing any of them."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        for part in (part for part in parts() if part.commands):
            with formatter.section(part.title):
                formatter.write_dl([(name, command.help) for name, command in part.commands.items()])
        with formatter.section("Options"):
            rows = (option.get_help_record(ctx) for option in self.get_params(ctx))
            formatter.write_dl([row for row in rows if row is not None])

    def invoke(self, ctx: Any) -> Any:
        """Run a command; turn a user error into one line and status 1."""
        try:
            return super().invoke(ctx)
        except OutputError:
            raise  # what cannot be written is dropped by the entry point
        except Exception as error:
            message = user_message(error)
            if message is None or ctx.params.get("traceback"):
                raise
            typer.echo(f"murmur: {message}", err=True)
            raise typer.Exit(1) from error


def _telling_once(callback: Callable[..., Any]) -> Callable[..., Any]:
    """The callback of a command, whose repeated warnings are told once, with their count at the end."""

    @wraps(callback)
    def call(*args: Any, **options: Any) -> Any:
        with told_once(lambda text: say(f"murmur: {text}", err=True)):
            return callback(*args, **options)

    return call


def _at_home(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"{name}={os.path.expanduser(value)}" if equals and value.startswith("~/") else word


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def root(
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show the traceback of a user error, for debugging.")
    ] = False,
) -> None:
    """Train acoustic models on many learners, from audio to a word error rate.

    Every strategy is one coroutine that runs in one process, on a real cluster and on a simulated one. Start with
    `murmur demo`; `murmur COMMAND --help` describes a command and shows an example.
    """
