"""Two real learners against one on read English: word errors and time of `murmur compare librispeech`.

    python benchmarks/two_processes.py --corpus FOLDER [--cache FOLDER] [--out FOLDER]

One learner, then two with `ADPSGD()` on two cores, by the recipe from nothing: settings follow the number of learners
(`Auto`). About an hour on two cores. After an interruption the same command continues; cells that are done are not
trained again. The difference of word error rates is judged by paired bootstrap over the test utterances.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from measure import bar, close
from murmur.comparison.runs import recognised
from murmur.core.whole_files import FinishedLines
from murmur.report.error_rate import difference, errors_of

KIND = "study"
MEASURED = ("task.front.input=NetworkInput()", "task.decoding.network.scales=(0.1,0.12,0.14,0.165)")  # of that time
STRATEGY = "ADPSGD()"
MOST_TIME = 0.55  # of one learner's


def compared(corpus: Path, cache: Path, out: Path) -> dict[int, dict[str, Any]]:
    """Run the comparison, and return its cells by number of learners."""
    settings = [f"task.corpus={corpus}", f"task.cache={cache}", *MEASURED]
    asked = ["librispeech", "--strategies", STRATEGY, "--learners", "1,2", "--threads", "1", "--out", str(out)]
    command = [sys.executable, "-m", "murmur", "compare", *asked, *(x for s in settings for x in ("--set", s))]
    subprocess.run(command, check=True)
    cells = map(json.loads, FinishedLines(out / "cells.jsonl"))
    return {cell["learners"]: cell for cell in cells if cell["status"] == "finished"}


def word_errors(out: Path, cell: dict[str, Any]) -> dict[int, Any]:
    """Return the errors by utterance of a cell's run, by seed."""
    return {cell["seed"]: errors_of(recognised(out / "runs" / cell["name"]))[0]}


def main(
    corpus: Annotated[Path, typer.Option(help="Folder of the LibriSpeech part.")],
    cache: Annotated[Path, typer.Option(help="Folder of features and alignments.")] = Path("runs/cache"),
    out: Annotated[Path, typer.Option(help="Folder of the comparison.")] = Path("runs/two-processes"),
) -> None:
    """Compare, then print the bars."""
    cells = compared(corpus.resolve(), cache.resolve(), out)
    one, two = cells[1], cells[2]
    wer = difference(word_errors(out, one), word_errors(out, two)).difference
    figures = {
        name: {
            "wer": cell["wer"]["percent"],
            "loss": cell["heldout"]["loss"],
            "seconds": cell["seconds"],
            "waiting_share": cell["waiting_share"],
        }
        for name, cell in (("one learner", one), (f"two, {STRATEGY}", two))
    }
    figures["wer_difference"] = {"value": wer.value, "low": wer.low, "high": wer.high}
    bars = [
        bar("low end of the difference of WER, points", wer.low, 0.0),
        bar("time of two learners over that of one", two["seconds"] / one["seconds"], MOST_TIME),
    ]
    close("two_processes", figures, bars)


if __name__ == "__main__":
    typer.run(main)
