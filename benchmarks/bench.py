"""Runs the benchmarks of some kinds again, each with the arguments of its record.

    python benchmarks/bench.py bar                                          (make bench)
    python benchmarks/bench.py --folder task.corpus=/data/an4               (make bench-all)

Each script names its kind in the constant KIND, which is read without importing: `bar` (minutes, no data), `study`
(needs data or a device), `long` (hours), `page` (measures nothing). A benchmark whose record is of the present commit
is not run again, so that the same command continues after an interruption. `--folder NAME=PATH` gives the folders that
records call FOLDER: NAME is the option or the setting, or `FOLDER` for an argument without one. `--list` only prints.
"""

from __future__ import annotations

import argparse
import ast
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BENCHMARKS, RECORDS = ROOT / "benchmarks", ROOT / "results" / "bench"
KINDS = ("bar", "study", "long", "page")
MEASURED = KINDS[:-1]
KIND = "page"


@dataclass(frozen=True)
class Run:
    """One call of a script: its arguments, and the commit of its record ("" without one)."""

    script: str
    arguments: tuple[str, ...] = ()
    commit: str = ""


def kind_of(script: Path) -> str | None:
    """The constant KIND of a script; None without one."""
    for node in ast.parse(script.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "KIND":
            return str(ast.literal_eval(node.value))
    return None


def scripts(kinds: Sequence[str] = KINDS, folder: Path = BENCHMARKS) -> list[str]:
    """Names of the scripts of some kinds."""
    return [path.stem for path in sorted(folder.glob("*.py")) if kind_of(path) in kinds]


def runs(names: Sequence[str], records: Path = RECORDS) -> list[Run]:
    """The runs of some scripts: one for each record, or one without arguments."""
    found: dict[str, list[Run]] = {name: [] for name in names}
    for file in sorted(records.glob("*.json")):
        record = json.loads(file.read_text(encoding="utf-8"))
        script = Path(shlex.split(record["command"])[1]).stem
        if script in found:
            found[script].append(Run(script, tuple(record["arguments"]), record["commit"]))
    return [run for name, those in found.items() for run in those or [Run(name)]]


def given(run: Run, folders: Mapping[str, str]) -> list[str]:
    """The arguments of a run, with the folders of this machine.

    Raises:
        LookupError: a folder is missing; the message names it.
    """
    words: list[str] = []
    for number, word in enumerate(run.arguments):
        name, equals, value = word.rpartition("=")
        before = run.arguments[number - 1] if number else ""
        key = name or (before.lstrip("-") if before.startswith("--") else "FOLDER")
        if value.startswith("FOLDER"):
            if key not in folders:
                raise LookupError(f"{run.script} needs --folder {key}=PATH")
            value = folders[key]
        words.append(f"{name}{equals}{value}")
    return words


def main() -> None:
    """Run what is marked, and print what was left out."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("kinds", nargs="*", metavar="KIND", help="bar, study or long; default: all")
    options.add_argument("--folder", action="append", default=[], metavar="NAME=PATH")
    options.add_argument("--list", action="store_true", help="print the commands and end")
    chosen = options.parse_args()
    folders = dict(word.split("=", 1) for word in chosen.folder)
    asked = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    failed = []
    for run in runs(scripts(chosen.kinds or MEASURED)):
        if run.commit == commit:
            continue
        try:
            command = [sys.executable, str(BENCHMARKS / f"{run.script}.py"), *given(run, folders)]
        except LookupError as error:
            print(f"left out: {error}", flush=True)
            continue
        print(shlex.join(command), flush=True)
        if not chosen.list and subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(run.script)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
