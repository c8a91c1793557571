"""Writes the picture of the layers and the table of imports in docs/architecture.md from `MAY_IMPORT`.

python tests/project/architecture_page.py
"""

from __future__ import annotations

import runpy
from functools import cache
from typing import Any

from generated_block import ROOT, rewrite, table

PAGE = ROOT / "docs" / "architecture.md"
RULES: dict[str, Any] = runpy.run_path(str(ROOT / "tests" / "test_architecture.py"))
MAY_IMPORT: dict[str, set[str]] = RULES["MAY_IMPORT"]
ANYTHING: set[str] = RULES["ANYTHING"]
WIDTH = 72

WHAT = {  # package -> one sentence on it
    "__init__": "The public names of the package.",
    "__main__": "`python -m murmur`.",
    "cli": "The program `murmur`: the list of commands, user errors, stop signals.",
    "commands": "One short module per command: options in, a call, messages out; no logic of its own.",
    "studies": "Comparisons of runs, and the experiments of five papers.",
    "recipes": "Short experiment files, one per corpus, and the demo.",
    "recognition": "Trained models in use: decoding, transcription, export.",
    "simulation": "Simulated runs, the planner and the theory of the strategies.",
    "tasks": "Trainable tasks: hybrid systems, CTC, chain models, prepared frames, pre-training, language models.",
    "run": "One run: configuration, launch, saved models, added learners.",
    "run.folder": "The folder of a run: contents, lock, state.",
    "report": "Records in, one HTML page or a terminal view out.",
    "user_loop": "The implementation of `murmur.join`: a strategy in a user's training loop.",
    "testing": "Conformance checks for a user's worlds and strategies.",
    "engine": "Trains a task with a strategy in a world: trainer, gradient source, schedules, records, checkpoints, "
    "optimizers.",
    "worlds": "The meaning of `await`: a virtual clock, threads, processes, MPI.",
    "strategies": "One algorithm and one equation per file, with the facts of the strategy as class attributes.",
    "elastic": "Training without a lost learner: elastic groups, rendezvous, state transfer.",
    "speech": "Adapters over speech libraries: corpora, features, lexicons, language models, HMMs, CTC, decoding, "
    "acoustic models.",
    "execution": "Worker processes for preparation and decoding.",
    "core": "The view of a strategy, and the values that worlds exchange: learner, weights, group, mixing, membership, "
    "trace, errors.",
}


@cache
def level(package: str) -> int:
    """Return the length of the longest chain of allowed imports below a package."""
    below = {other if other in MAY_IMPORT else other.split(".")[0] for other in MAY_IMPORT[package]}
    return 1 + max((level(other) for other in below - {package}), default=-1)


def picture() -> str:
    """Return the layers from top to bottom; a package imports only from rows below its own."""
    levels = [[p for p in MAY_IMPORT if level(p) == n] for n in range(1 + max(map(level, MAY_IMPORT)))]
    rows = [sorted(ANYTHING - {"studies"}), ["studies"], *(sorted(row) for row in reversed(levels))]
    rule = f"+{'-' * WIDTH}+"
    lines = [rule]
    for row in rows:
        lines += [f"|  {'   '.join(row):<{WIDTH - 2}}|", rule]
    return "\n".join(["```text", *lines, "```"])


def imports() -> str:
    """Return the table of packages: sentence, and allowed imports."""
    order = [*sorted(ANYTHING - {"studies"}), "studies", *sorted(MAY_IMPORT, key=lambda p: (-level(p), p))]
    rows = [(f"`{p}`", WHAT[p], allowed(p)) for p in order]
    return table(("package", "contents", "may import"), *rows)


def allowed(package: str) -> str:
    """Return the packages that a package may import, as text."""
    if package in ANYTHING:
        return "everything but `commands`" if package == "studies" else "everything"
    return ", ".join(f"`{other}`" for other in sorted(MAY_IMPORT[package])) or "none"


PAGES = {PAGE: {"layers": f"{picture()}\n\n{imports()}"}}

if __name__ == "__main__":
    rewrite(PAGES)
