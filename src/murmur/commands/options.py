"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from murmur.run.saved_model import Choice

Source = Annotated[
    str, typer.Argument(metavar="EXPERIMENT", help="A Python file with experiment(), or a recipe's name.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a field, such as budget.epochs=2; repeatable; murmur settings lists all."),
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Processes; an experiment's own task.jobs otherwise.")]

OfRun = Annotated[
    str | None, typer.Option("--experiment", help="File or recipe, where the run's run.json does not name it.")
]

TestedWeights = Annotated[
    Choice,
    typer.Option(
        "--weights",
        help="Which model is tested and stands for the run: lowest (the one of the lowest held-out loss), last, best"
        " (evaluation mark) or averaged (mean of the best marks).",
    ),
]
Weights = Annotated[
    Choice | None,
    typer.Option(
        "--weights",
        help="Which model of the run: lowest (held-out loss), last, best or averaged; otherwise the one that the run"
        " tested, which is lowest unless its --weights said otherwise.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Run the Python file that the run's run.json names, though another user wrote it."),
]
