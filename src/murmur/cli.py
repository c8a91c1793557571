"""The command line: `murmur COMMAND --help` says what each does, with an example."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from murmur.demo import run_demo
from murmur.settings import SettingError
from murmur.training import Request, train

app = typer.Typer(
    help="Train acoustic models on many learners: every strategy is one coroutine that runs in one process, on a real"
    " cluster and on a simulated one.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Source = Annotated[
    str, typer.Argument(metavar="EXPERIMENT", help="A Python file with experiment(), or a recipe's name.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Change a field, such as budget.epochs=2; repeatable.")
]
StrategyText = Annotated[str | None, typer.Option(help="A strategy instead of the file's, such as 'KAVG(K=8)'.")]
Learners = Annotated[int, typer.Option(min=1, help="Processes to start on this host.")]
Out = Annotated[Path, typer.Option(help="Folder for records, trace, checkpoints and the model.")]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Compute threads a learner; the cores are shared out otherwise.")
]


@app.command("train")
def train_command(
    source: Source,
    settings: Settings = None,
    strategy: StrategyText = None,
    learners: Learners = 1,
    out: Out = Path("runs/latest"),
    threads: Threads = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the newest checkpoint in --out.")] = False,
    restarts: Annotated[int, typer.Option(min=0, help="How often each learner may be started again.")] = 0,
) -> None:
    """Train an experiment with one or more learners.

    Example: murmur train ctc --learners 2 --strategy 'KAVG(K=8)' --set budget.epochs=4 --out runs/two

    The same file runs under torchrun: torchrun --nproc-per-node 2 -m murmur train FILE
    """
    request = Request(source, tuple(settings or ()), strategy, learners, out, resume, restarts, threads)
    raise typer.Exit(train(request))


@app.command("demo")
def demo_command(out: Out = Path("runs/demo")) -> None:
    """From nothing to a word error rate: synthesise digits, train with one learner and with two, compare.

    Example: murmur demo
    """
    raise typer.Exit(run_demo(out))


def main() -> None:
    """Entry point of the program `murmur`."""
    logging.basicConfig(level=logging.INFO, format="murmur: %(message)s")
    try:
        app()
    except SettingError as error:
        raise SystemExit(f"murmur: {error}") from error
