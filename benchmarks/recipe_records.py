"""One JSON line for every word error rate of a finished run of a recipe, from the files in its folder.

A hybrid recipe has rates of several systems; a CTC recipe has that of its network on test.

python benchmarks/recipe_records.py yesno runs/yesno >> results/speech.jsonl
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from murmur.comparison.rows import digest_of
from murmur.core.whole_files import FinishedLines
from murmur.run.folder.provenance import hardware

KIND = "page"
ENDING = " wer"


def rows(name: str, out: Path) -> list[dict[str, Any]]:
    """The error rates in `out`, in percent, each with its counts, interval, command, commit, seed, date and hardware.

    Raises:
        FileNotFoundError: the run is missing or not finished.
    """
    run = json.loads((out / "run.json").read_text(encoding="utf-8"))
    figures = json.loads((out / "score.json").read_text(encoding="utf-8"))["test"]
    about = {
        "command": " ".join(_without_place(word) for word in run["command"]),
        "commit": run["commit"],
        "seed": run["experiment"]["seed"],
        "date": run["started"],
        "hardware": hardware(),
    }
    about["run"] = digest_of([about[name] for name in ("command", "commit", "seed")])[:6]
    if "wer" in figures:
        return [{**_ctc_row(name, figures, out), **about}]
    systems = [key.removesuffix(ENDING) for key in figures if key.endswith(ENDING)]
    return [{**_hybrid_row(name, system, figures), **about} for system in systems]


def _hybrid_row(name: str, system: str, figures: dict[str, float]) -> dict[str, Any]:
    kind, _, split = system.rpartition(" ")
    return {
        "set": name,
        "system": kind,
        "split": split,
        "wer": round(figures[f"{system} wer"], 3),
        "errors": int(figures[f"{system} errors"]),
        "words": int(figures[f"{system} words"]),
        "interval": [round(figures[f"{system} {end}"], 3) for end in ("low", "high")],
        "acoustic_scale": figures[f"{system} acoustic scale"],
        "insertion_penalty": figures.get(f"{system} insertion penalty", 0.0),
        "real_time_factor": round(figures[f"{system} real-time factor"], 4),
    }


def _ctc_row(name: str, figures: dict[str, float], out: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in FinishedLines(out / "recognised.jsonl")]
    return {
        "set": name,
        "system": "network",
        "split": "test",
        "wer": round(figures["wer"], 3),
        "errors": sum(each["errors"] for each in lines),
        "words": sum(each["words"] for each in lines),
        "interval": [round(figures[end], 3) for end in ("low", "high")],
    }


def _without_place(word: str) -> str:
    """An argument with an absolute path cut to its last name, since the path means nothing elsewhere."""
    key, equals, value = word.rpartition("=")
    return f"{key}{equals}{Path(value).name}" if value.startswith("/") else word


def main(arguments: Sequence[str]) -> None:
    """Print the lines of the runs named as SET FOLDER SET FOLDER ..."""
    if not arguments or len(arguments) % 2:
        raise SystemExit("usage: python benchmarks/recipe_records.py SET FOLDER [SET FOLDER ...]")
    for name, out in zip(arguments[::2], arguments[1::2], strict=True):
        for row in rows(name, Path(out)):
            print(json.dumps(row, sort_keys=True))


if __name__ == "__main__":
    main(sys.argv[1:])
