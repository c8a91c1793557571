"""Writes RESULTS.md and docs/papers.md from records alone.

make results

results/speech.jsonl has one line per measured error rate, results/bench/*.json one file per benchmark,
results/papers.jsonl one line per run of the papers' experiments, results/sixteen_devices.jsonl those of their first
lines.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from murmur.comparison.rows import Rows
from murmur.core.whole_files import write_whole
from murmur_papers.studies import page as papers
from murmur_papers.studies.plan import outcomes, whole
from murmur_papers.studies.run import Finder, on_newest_builds
from murmur_papers.studies.sixteen import RECORD

KIND = "page"
ROOT = Path(__file__).parents[1]
HEAD = """# Results

Made by `make results` from the records in `results/`; never edited by hand. A run is named by the field `run` of its
lines in `results/speech.jsonl`, a benchmark by its file `results/bench/NAME.json`. Records hold command, commit,
hardware, date, intervals and all figures. Ratios are medians over repeats with both sides in turn.
"""


def main() -> None:
    """Read the records, write the pages."""
    write_whole(ROOT / "RESULTS.md", page(ROOT / "results").encode())
    papers.write(Rows(ROOT / "results" / "papers.jsonl").read(), ROOT / "docs", ROOT / "results" / RECORD.name)


def page(results: Path) -> str:
    """RESULTS.md from a folder of records."""
    parts = [HEAD]
    kept = results / "speech.jsonl"
    speech = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    if speech:
        parts.append("## Word error rates\n\n" + rates(speech))
    benches = [json.loads(file.read_text()) for file in sorted((results / "bench").glob("*.json"))]
    if benches:
        lines = ["| benchmark | date | bars that hold | bars missed: value (bar) |", "|---|---|---|---|"]
        parts.append("## Benchmarks\n\n" + "\n".join([*lines, *map(bench, benches)]) + "\n")
    parts += conclusions(results / "papers.jsonl")
    return "\n".join(parts)


def conclusions(kept: Path) -> list[str]:
    """The papers' claims, as far as their runs are there."""
    rows = on_newest_builds(Rows(kept).read())
    if not rows:
        return []
    studies = list(papers.STUDIES.values())
    found = outcomes(studies, Finder(rows))
    plan = whole(studies, rows, found)
    command = "`murmur papers --an4 FOLDER --librispeech FOLDER --rows results/papers.jsonl --out docs`"
    return [
        "## Claims of papers\n",
        f"{command}; rules and runs: docs/papers.md.\n",
        papers.summary(found, "docs/papers.md", kept.parent / RECORD.name),
        papers.where([rows[each.cell.digest] for each in plan if each.known]),
    ]


def rates(rows: list[dict[str, Any]]) -> str:
    """One table of error rates: a line for each set and system, with the rates of its seeds side by side."""
    lines: dict[tuple[str, str, int], dict[int, dict[str, dict[str, Any]]]] = {}
    for row in rows:
        numbers = [key[2] for key in lines if key[:2] == (row["set"], row["system"])]
        latest = max(numbers, default=0)
        known = lines.get((row["set"], row["system"], latest), {}).get(row["seed"], {})
        further = row["split"] in known or any(each["run"] != row["run"] for each in known.values())
        seeds = lines.setdefault((row["set"], row["system"], latest + further), {})  # a seed once on a line
        seeds.setdefault(row["seed"], {})[row["split"]] = row
    heads = ["| set | system | dev, WER % | test, WER % (errors / words) | runs |", "|---|---|---|---|---|"]
    return "\n".join([*heads, *(line(*key[:2], list(seeds.values())) for key, seeds in lines.items())]) + "\n"


def line(name: str, system: str, seeds: list[dict[str, dict[str, Any]]]) -> str:
    """A line of the table of error rates."""
    tests = [splits["test"] for splits in seeds if "test" in splits]
    dev = ", ".join(f"{splits['dev']['wer']:.2f}" for splits in seeds if "dev" in splits)
    test = ", ".join(f"{row['wer']:.2f} ({row['errors']} / {row['words']})" for row in tests)
    runs = ", ".join(dict.fromkeys(row["run"] for splits in seeds for row in splits.values()))
    return f"| {name} | {system} | {dev} | {test} | {runs} |"


def bench(record: dict[str, Any]) -> str:
    """A benchmark's line: its bars that hold, and those that are missed."""
    held = sum(b["holds"] for b in record["bars"])
    missed = [b for b in record["bars"] if not b["holds"]]
    told = "; ".join(f"{b['what'].replace('|', chr(92) + '|')}: {b['value']:.4g} ({b['bar']:g})" for b in missed)
    return f"| {record['benchmark']} | {record['date']} | {held} of {len(record['bars'])} | {told} |"


if __name__ == "__main__":
    main()
