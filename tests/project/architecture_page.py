"""Writes the picture of the layers and the table of imports in docs/architecture.md from `MAY_IMPORT`.

python -m tests.project.architecture_page
"""

from __future__ import annotations

import runpy
from functools import cache
from typing import Any

from tests.project.generated_block import ROOT, rewrite, table

PAGE = ROOT / "docs" / "architecture.md"
RULES: dict[str, Any] = runpy.run_path(str(ROOT / "tests" / "test_architecture.py"))
TRAINER: dict[str, set[str]] = RULES["TRAINER"]
RECOGNISER: dict[str, set[str]] = RULES["RECOGNISER"]
MAY_IMPORT = TRAINER | RECOGNISER
ANYTHING: set[str] = RULES["ANYTHING"]
WIDTH = 72

WHAT = {  # package -> one sentence on it
    "__init__": "The public names of the package.",
    "__main__": "`python -m murmur`.",
    "cli": "The program `murmur`: the list of commands, user errors, stop signals.",
    "commands": "One short module per command of the trainer.",
    "comparison": "Grids of runs, their rows and tables.",
    "recipes": "The toy experiment.",
    "simulation": "Simulated runs and the planner.",
    "tasks": "Tasks that need no data: the toy problem, generated frames.",
    "run": "One run: configuration, launch, saved models, added learners.",
    "run.folder": "The folder of a run: contents, lock, state.",
    "report": "Records in, one HTML page or a terminal view out; error rates and their intervals.",
    "integrations": "Strategies inside training frameworks: each module is one framework's own extension point.",
    "user_loop": "The implementation of `murmur.join`: a strategy in a user's training loop.",
    "testing": "Conformance checks for a user's worlds and strategies.",
    "engine": "Trains a task with a strategy in a world: trainer, gradient source, schedules, records, checkpoints, "
    "optimizers.",
    "worlds": "The meaning of `await`: a virtual clock, threads, processes, MPI.",
    "strategies": "One algorithm and one equation per file, with the facts of the strategy as class attributes.",
    "elastic": "Training without a lost learner: elastic groups, rendezvous, state transfer.",
    "execution": "Workers for preparation, passes over blocks and decoding: processes, Dask, MPI.",
    "plugins": "The list of the commands, and the registration of those that other distributions add.",
    "accelerator": "Streams, events, graphs and counts of GPUs: the only package that names a vendor.",
    "core": "The view of a strategy, and the values that worlds exchange: learner, weights, group, mixing, membership, "
    "trace, errors.",
    "speech": "Adapters over speech libraries: corpora, features, lexicons, language models, HMMs, CTC, decoding, "
    "acoustic models.",
    "speech.tasks": "Trainable tasks: hybrid systems, CTC, chain models, prepared frames, pre-training, language "
    "models.",
    "speech.recognition": "Trained models in use: decoding, transcription, export.",
    "speech.recipes": "Short experiment files, one per corpus, and the demo.",
    "speech.commands": "One short module per command of the recogniser.",
    "speech.plugin": "The commands and recipes that the recogniser adds to the program.",
}


@cache
def level(package: str) -> int:
    """Return the length of the longest chain of allowed imports below a package."""
    below = {other if other in MAY_IMPORT else other.split(".")[0] for other in MAY_IMPORT[package]}
    return 1 + max((level(other) for other in below - {package}), default=-1)


def picture(part: dict[str, set[str]], top: tuple[str, ...] = ()) -> str:
    """Return the layers of a part from top to bottom; a package imports only from rows below its own."""
    rows = [list(top)] if top else []
    for n in sorted({level(p) for p in part}, reverse=True):
        rows.append(sorted(p for p in part if level(p) == n))
    rule = f"+{'-' * WIDTH}+"
    lines = [rule]
    for row in rows:
        lines += [f"|  {'   '.join(row):<{WIDTH - 2}}|", rule]
    return "\n".join(["```text", *lines, "```"])


def imports(part: dict[str, set[str]], top: tuple[str, ...] = ()) -> str:
    """Return the table of the packages of a part: sentence, and allowed imports."""
    order = [*top, *sorted(part, key=lambda p: (-level(p), p))]
    return table(("package", "contents", "may import"), *((f"`{p}`", WHAT[p], allowed(p)) for p in order))


def allowed(package: str) -> str:
    """Return the packages that a package may import, as text."""
    if package in ANYTHING:
        return "everything of the trainer"
    return ", ".join(f"`{other}`" for other in sorted(MAY_IMPORT[package])) or "none"


TOP = tuple(sorted(ANYTHING))
PAGES = {
    PAGE: {
        "trainer": f"{picture(TRAINER, TOP)}\n\n{imports(TRAINER, TOP)}",
        "recogniser": f"{picture(RECOGNISER)}\n\n{imports(RECOGNISER)}",
    }
}

if __name__ == "__main__":
    rewrite(PAGES)
