"""Writes RESULTS.md and docs/papers.md from records alone.

make results

results/speech.jsonl has one line per measured error rate, results/bench/*.json one file per benchmark,
results/papers.jsonl one line per run of the papers' experiments.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from murmur.engine.checkpoints.checkpoint import write_whole
from murmur.studies.comparison.rows import Rows
from murmur.studies.papers import page as papers
from murmur.studies.papers.plan import outcomes, whole
from murmur.studies.papers.run import Finder, newest_builds, of_builds

ROOT = Path(__file__).parents[1]
HEAD = """# Results

Made by `make results` from the records in `results/`; never edited by hand. Every row names its command, commit,
hardware and date. Machines are shared: ratios are medians over repeats with both sides in turn.
"""


def main() -> None:
    """Read the records, write the pages."""
    write_whole(ROOT / "RESULTS.md", page(ROOT / "results").encode())
    papers.write(Rows(ROOT / "results" / "papers.jsonl").read(), ROOT / "docs")


def page(results: Path) -> str:
    """RESULTS.md from a folder of records."""
    parts = [HEAD]
    kept = results / "speech.jsonl"
    speech = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    if speech:
        parts.append("## Word error rates\n\n" + rates(speech))
    benches = [json.loads(file.read_text()) for file in sorted((results / "bench").glob("*.json"))]
    if benches:
        parts.append("## Benchmarks\n\n" + "\n".join(map(bench, benches)))
    parts += conclusions(results / "papers.jsonl")
    return "\n".join(parts)


def conclusions(kept: Path) -> list[str]:
    """The papers' claims, as far as their runs are there."""
    rows = Rows(kept).read()
    rows = of_builds(rows, newest_builds(rows))
    if not rows:
        return []
    studies = list(papers.STUDIES.values())
    found = outcomes(studies, Finder(rows))
    plan = whole(studies, rows, found)
    command = "`murmur papers --an4 FOLDER --librispeech FOLDER --rows results/papers.jsonl --out docs`"
    return [
        "## Claims of papers\n",
        f"{command}; rules and runs: docs/papers.md.\n",
        papers.summary(found, plan, "docs/papers.md"),
        papers.where([rows[each.cell.digest] for each in plan if each.known]),
    ]


def rates(rows: list[dict[str, Any]]) -> str:
    """One table of error rates, in the order of the records."""
    heads = [
        "set",
        "system",
        "split",
        "WER %",
        "errors / words",
        "95 % interval",
        "seed",
        "command",
        "commit",
        "where and when",
    ]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for r in rows:
        low, high = r.get("interval") or (None, None)
        interval = "" if low is None else f"{low:.2f} to {high:.2f}"
        cells = [
            r["set"],
            r["system"],
            r["split"],
            f"{r['wer']:.2f}",
            f"{r['errors']} / {r['words']}",
            interval,
            str(r.get("seed", "")),
            f"`{r['command']}`",
            r["commit"],
            f"{r['hardware']}, {r['date']}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def bench(record: dict[str, Any]) -> str:
    """A benchmark's bars, or the file of its figures if it has none."""
    where = f"`{record['command']}`, commit {record['commit']}, {record['hardware']}, {record['date']}"
    if not record["bars"]:
        name = record["benchmark"]
        return f"### {name}\n\n{where}\n\nFigures: `results/bench/{name}.json`.\n"
    lines = [f"### {record['benchmark']}\n", where + "\n", "| what | value | bar | |", "|---|---|---|---|"]
    for b in record["bars"]:
        what = b["what"].replace("|", r"\|")  # a bar would end the cell
        lines.append(f"| {what} | {b['value']:.4g} | {b['bar']:g} | {'holds' if b['holds'] else '**missed**'} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
