"""Writes RESULTS.md from records alone: results/speech.jsonl (one line a measured error rate) and results/bench/*.json.

make results
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HEAD = """# Results

Made by `make results` from the records in `results/`; never edited by hand. Every row names its command, commit,
hardware and date. Machines are shared: ratios are medians over repeats with both sides in turn.
"""


def main() -> None:
    """Read the records, write the page."""
    parts = [HEAD]
    speech = [json.loads(line) for line in (ROOT / "results" / "speech.jsonl").read_text().splitlines()]
    if speech:
        parts.append("## Word error rates\n\n" + rates(speech))
    benches = [json.loads(file.read_text()) for file in sorted((ROOT / "results" / "bench").glob("*.json"))]
    if benches:
        parts.append("## Benchmarks\n\n" + "\n".join(map(bench, benches)))
    (ROOT / "RESULTS.md").write_text("\n".join(parts))


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
    """A benchmark's bars."""
    where = f"`{record['command']}`, commit {record['commit']}, {record['hardware']}, {record['date']}"
    lines = [f"### {record['benchmark']}\n", where + "\n", "| what | value | bar | |", "|---|---|---|---|"]
    for b in record["bars"]:
        what = b["what"].replace("|", r"\|")  # a bar would end the cell
        lines.append(f"| {what} | {b['value']:.4g} | {b['bar']:g} | {'holds' if b['holds'] else '**missed**'} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
