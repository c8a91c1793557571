"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from murmur.run.configuration import recipe_names
from murmur.run.saved_model import Choice
from murmur.speech.corpus.published.transcripts import Writing

Source = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT", help=f"A Python file with experiment(), or a recipe: {', '.join(recipe_names())}."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Change a field, such as budget.epochs=2; repeatable; murmur settings lists the fields."
    ),
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Number of processes; by default task.jobs of the experiment.")]

WritingRule = Annotated[
    Writing,
    typer.Option(
        help="Rule for the words of text files; english and unspaced are those by which `murmur prepare` writes"
        " transcripts (capitals without punctuation; without spaces). Data directories stay as they are."
    ),
]

OfRun = Annotated[
    str | None,
    typer.Option(
        "--experiment",
        help="File or recipe of the run, if it is needed (for its corpus or its code) and run.json does not name it.",
    ),
]

TestedWeights = Annotated[
    Choice,
    typer.Option(
        "--weights",
        help="Model that is tested and represents the run: lowest (the one of the lowest held-out loss), last, best"
        " (best checkpoint) or averaged (mean of the best checkpoints).",
    ),
]
Weights = Annotated[
    Choice | None,
    typer.Option(
        "--weights",
        help="Model of the run: lowest (held-out loss), last, best or averaged; by default the one that the run tested,"
        " which is lowest unless the run had another --weights.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Run the Python file named in run.json, if its code is needed (docs/security.md), even if it belongs to"
        " another user.",
    ),
]
