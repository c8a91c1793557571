"""The command line: `murmur COMMAND --help` says what each does, with an example.

Every command is a module of `murmur.commands`, imported when it is used: the speech libraries take seconds, and
training a plain PyTorch model needs none of them. Mistakes of the caller end with a message and status 1 (2 for wrong
options), without a traceback; `murmur --traceback COMMAND` shows where they came from. A stop signal ends any command
within seconds, with a line that says how to go on and status 79.
"""

from __future__ import annotations

import errno
import importlib
import logging
import os
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from murmur.commands.stopped import say_stopped
from murmur.core.errors import WRITING, DamagedCheckpoint, nearest
from murmur.core.stop_signals import Stoppable

COMMANDS: Mapping[str, str] = {
    "demo": "From nothing to a word error rate and a report: digits, one learner beside two.",
    "prepare": "Speech data to feature shards, or everything an experiment needs before training.",
    "align": "Gaussian half of a hybrid experiment: train it, write phone, word and state alignments.",
    "settings": "Every field of an experiment that --set changes: name, value, type, meaning.",
    "train": "Train an experiment with one or more learners.",
    "add": "Add a learner to a run that is under way.",
    "launch": "Start a program of your own, with murmur.join in it, as several learners.",
    "decode": "Recognise speech with a trained model: hypotheses, word times, speed.",
    "transcribe": "Write down recordings: times of words, how sure each is; text, JSON, CTM, subtitles.",
    "export": "A model for other runtimes (ONNX): with its normalisation, graph and word list.",
    "score": "Word or character error rate with its interval, by speaker; compare two systems.",
    "lexicon": "Pronunciations for the words of a text: from a lexicon, guessed where it has none.",
    "lm": "Language models: train, prune, perplexity.",
    "plan": "Hours, bottleneck and cost of strategies on a cluster, before it is bought.",
    "simulate": "Train on a cluster on paper: loss against virtual hours, stragglers, failures.",
    "watch": "A run in the terminal: progress, loss, slow and lost learners, time to go.",
    "compare": "A grid of strategies, learners and seeds, real and virtual: one table.",
    "papers": "Experiments of five papers, small, on a virtual cluster; their conclusions judged.",
    "report": "One HTML page from the records of runs.",
    "doctor": "Check libraries, store, network between learners, cores, disk, memory.",
}
# What a caller can cause and mend. SettingError and CorpusError are ValueErrors.
MISTAKES = (
    *(ValueError, DamagedCheckpoint),
    *(FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError),
)
PLACES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTEMPTY)
SPEECH_EXTRA = "pip install -c constraints.txt 'murmur[speech,synth,viz]'"


class Commands(TyperGroup):
    """The commands, each imported on first use."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Words as a shell means them: it leaves the ~ of --out=~/runs and task.corpus=~/an4 as it is."""
        own = args[:1] != ["launch"]  # what follows that is another program's
        parsed: list[str] = super().parse_args(ctx, [_at_home(word) for word in args] if own else args)
        return parsed

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's signature
        """Names in the order of their use."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name; ends the program with the nearest name where there is none."""
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
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The list of commands, without importing any of them."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))
        with formatter.section("Options"):
            rows = (option.get_help_record(ctx) for option in self.get_params(ctx))
            formatter.write_dl([row for row in rows if row is not None])

    def invoke(self, ctx: Any) -> Any:
        """Run a command; a mistake of the caller becomes one line and status 1."""
        try:
            return super().invoke(ctx)
        except (*MISTAKES, OSError) as error:
            if ctx.params.get("traceback") or not (isinstance(error, MISTAKES) or error.errno in PLACES):
                raise
            typer.echo(f"murmur: {error}{_to_do(error)}", err=True)
            raise typer.Exit(1) from error


def _to_do(error: Exception) -> str:
    """What to do about a place that cannot be written, where the error does not say it."""
    what = WRITING.get(error.errno or 0) if isinstance(error, OSError) else None
    return "" if what is None or what in str(error) else f": {what}"


def _at_home(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"{name}={os.path.expanduser(value)}" if equals and value.startswith("~/") else word


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def root(
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where a mistake was found, for debugging.")
    ] = False,
) -> None:
    """Train acoustic models on many learners, from audio to a word error rate.

    Every strategy is one coroutine that runs in one process, on a real cluster and on a simulated one. Start with
    `murmur demo`; `murmur COMMAND --help` shows an example of each command.
    """


def main() -> None:
    """Entry point of the program `murmur`."""
    logging.basicConfig(level=logging.INFO, format="murmur: %(message)s", stream=sys.stderr)
    with Stoppable(lambda stopped: say_stopped(stopped.name, sys.argv[1:])):
        app()
