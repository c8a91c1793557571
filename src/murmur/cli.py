"""The command line: `murmur COMMAND --help` describes a command and shows an example.

Every command is a module of `murmur.commands` and is imported on first use: the speech libraries take seconds to
import, and training a plain PyTorch model needs none of them. A user error ends with a message and status 1 (2 for
wrong options), without a traceback; `murmur --traceback COMMAND` shows the traceback. A stop signal ends any command
within seconds, with status 79 and a line that says how to continue.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from murmur.__main__ import main  # noqa: F401 - the entry point of programs that an earlier version has installed
from murmur.core.errors import nearest, user_message
from murmur.core.printable import say
from murmur.core.standard_streams import OutputError
from murmur.execution.told_once import told_once

COMMANDS: Mapping[str, str] = {
    "demo": "Make a digits corpus, train one learner and two, report their word error rates.",
    "prepare": "Prepare a published corpus, the features of data, or the data of an experiment.",
    "align": "Train the Gaussian systems of a hybrid experiment; write phone, word and state alignments.",
    "settings": "List every field of an experiment that --set changes: name, value, type, meaning.",
    "train": "Train an experiment with one or more learners.",
    "add": "Add a learner to a running experiment.",
    "launch": "Start a program that calls murmur.join as several learners.",
    "decode": "Recognise speech with a trained model: hypotheses, word times, speed.",
    "transcribe": "Transcribe recordings: word times and confidences; text, JSON, CTM, subtitles.",
    "export": "Export a model to other runtimes (ONNX) with its normalisation, graph and word list.",
    "score": "Compute word or character error rates with intervals, by speaker; compare two systems.",
    "lexicon": "Make a lexicon for the words of a text: looked up, or guessed where missing.",
    "lm": "Train and prune language models; measure perplexity.",
    "plan": "Estimate hours, bottleneck and cost of strategies on a cluster before buying it.",
    "simulate": "Train on a simulated cluster: loss against virtual hours, stragglers, failures.",
    "watch": "Watch a run in the terminal: progress, loss, slow and lost learners, time left.",
    "compare": "Run a grid of strategies, learners and seeds, real and virtual; make one table.",
    "papers": "Repeat experiments of five papers, small, on a virtual cluster; judge their conclusions.",
    "report": "Make one HTML page from the records of runs.",
    "doctor": "Check libraries, store, network between learners, cores, disk and memory.",
}
MANY_ITEMS = ("prepare", "align", "decode", "export", "score", "lexicon", "lm")  # commands that loop over recordings
SPEECH_EXTRA = "pip install -c constraints.txt 'murmur[speech,synth,viz]'"


class Commands(TyperGroup):
    """The commands, each imported on first use."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Expand ~ in --out=~/runs and task.corpus=~/an4, which a shell leaves as it is."""
        own = args[:1] != ["launch"]  # the words after `launch` belong to another program
        parsed: list[str] = super().parse_args(ctx, [_at_home(word) for word in args] if own else args)
        return parsed

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's signature
        """Names of the commands in their usual order."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of that name; for an unknown name, exit with the nearest one."""
        if cmd_name not in COMMANDS:
            ctx.fail(f"there is no command {cmd_name!r}{nearest(cmd_name, list(COMMANDS))}")
        try:
            module = importlib.import_module(f"murmur.commands.{cmd_name}")
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("murmur"):
                raise
            raise SystemExit(f"murmur: {cmd_name} needs {error.name}, which is not installed: {SPEECH_EXTRA}") from None
        command = get_command(module.app)
        command.name = cmd_name
        if cmd_name in MANY_ITEMS and command.callback is not None:
            command.callback = _telling_once(command.callback)
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands without importing any of them."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))
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
