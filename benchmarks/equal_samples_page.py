"""Tables and the picture of docs/scaling.md and docs/strategies.md from the records of equal_samples.py.

python benchmarks/equal_samples_page.py

A set without a record is left out. Lines between the markers of a page are replaced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot as plt

from murmur.core.whole_files import write_whole

KIND = "page"
ROOT = Path(__file__).parents[1]
SETS = {"digits": "digits", "an4": "AN4", "librispeech": "LibriSpeech, 4.1 h"}
ORDER = (
    "8 learners, minibatch stays, three seeds",
    "8 learners, minibatch stays, one seed",
    "16 learners, minibatch stays, three seeds",
    "4 learners, minibatch stays, one seed",
    "8 learners, minibatch grows",
    "Other optimizers, 8 learners, minibatch stays",
)
PAGES = {"docs/scaling.md": ORDER, "docs/strategies.md": ORDER[:3]}
BEGIN, END = "<!-- begin equal samples -->", "<!-- end equal samples -->"
Record = Mapping[str, Any]


def records() -> dict[str, Record]:
    """Return the records by set."""
    files = {name: ROOT / "results" / "bench" / f"equal_samples_{name}.json" for name in SETS}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


def cell(line: Record | None) -> str:
    """Return a table's cell: loss over that of one learner, and the difference of word error rates."""
    if line is None:
        return ""
    seeds = {1: " (one seed)", 2: " (two seeds)"}.get(line["seeds"], "")
    if "wer_difference" not in line:
        return f"{line['ratio']:.3f}{seeds}"
    value, low, high = line["wer_difference"]
    return f"{line['ratio']:.3f}; {value:+.1f} ({low:+.1f} to {high:+.1f}){seeds}"


def kind(name: str, lines: Sequence[Record | None]) -> str:
    """Return the heading under which a line stands."""
    if name.endswith(("natural", "sgd")):
        return "Other optimizers, 8 learners, minibatch stays"
    if name.endswith("grows"):
        return "8 learners, minibatch grows"
    learners = name.rsplit(" at ", 1)[1]
    judged = any(line is not None and line["seeds"] > 1 for line in lines)
    return f"{learners} learners, minibatch stays, {'three seeds' if judged else 'one seed'}"


def tables(found: Mapping[str, Record]) -> dict[str, str]:
    """Return a table for each kind of run, the best strategies first."""
    names = dict.fromkeys(name for record in found.values() for name in record["figures"])
    lines = {name: [record["figures"].get(name) for record in found.values()] for name in names}
    ratios = {name: [each["ratio"] for each in of if each is not None] for name, of in lines.items()}
    order = sorted(names, key=lambda name: (-len(ratios[name]), sum(ratios[name]) / len(ratios[name])))
    alone = [record["figures"]["one learner at 1"] for record in found.values()]
    heads = [f"{SETS[name]}: one learner {each['wer']:.1f} % WER" for name, each in zip(found, alone, strict=True)]
    head = f"| strategy | {' | '.join(heads)} |\n|---{'|---' * len(heads)}|"
    rows: dict[str, list[str]] = {}
    for name in order:
        if not name.startswith("one learner"):
            shown = re.sub(r" at \d+(, grows)?", "", name)
            rows.setdefault(kind(name, lines[name]), []).append(f"| {shown} | {' | '.join(map(cell, lines[name]))} |")
    found_tables = {about: "\n".join([head, *rows[about]]) for about in sorted(rows, key=ORDER.index)}
    return {k: v.replace(" (one seed)", "") if "one seed" in k else v for k, v in found_tables.items()}


def text(found: Mapping[str, Record], kinds: Sequence[str]) -> str:
    """Return the lines between the markers: the tables of these kinds, and the commands."""
    said = [
        "Held-out loss over that of one learner at equal samples, and the difference of word error rates in points with"
        " its 95 % interval. Rates by trials on dev; mean of three seeds unless said.",
    ]
    for about, table in tables(found).items():
        if about in kinds:
            said += [f"**{about}**", table]
    for name, record in found.items():
        where = f"commit {record['commit']}, {record['hardware']}, {record['date']}"
        command = re.sub(r" --jobs \d+", "", record["command"])  # figures do not depend on it; 0 makes no rows
        said.append(f"{SETS[name]}: `{command}`, {where}.")
    return "\n\n".join(said)


def draw(found: Mapping[str, Record], path: Path) -> None:
    """Draw the ratios of all seeds at 8 learners, by strategy."""
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "equal samples"
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    names = [name for name in dict.fromkeys(n for r in found.values() for n in r["figures"]) if name.endswith(" at 8")]
    worst = {name: max(r["figures"][name]["ratio"] for r in found.values() if name in r["figures"]) for name in names}
    names.sort(key=lambda name: worst[name])
    for place, (key, record) in enumerate(found.items()):
        points = [
            (ratio, row + 0.2 * (place - (len(found) - 1) / 2))
            for row, name in enumerate(names)
            for ratio in record["figures"].get(name, {"ratios": []})["ratios"]
        ]
        axes.plot([x for x, _ in points], [y for _, y in points], "o", ms=4, label=SETS[key])
    axes.axvline(1.0, color="grey", linestyle=":")
    axes.set_yticks(range(len(names)), [name.removesuffix(" at 8") for name in names], fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel("held-out loss over that of one learner, a point a seed")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Write the pages and the picture."""
    found = records()
    for name, kinds in PAGES.items():
        page = (ROOT / name).read_text()
        before, begin, rest = page.partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise SystemExit(f"{name} has no markers: {BEGIN} ... {END}")
        write_whole(ROOT / name, f"{before}{begin}\n\n{text(found, kinds)}\n\n{end}{after}".encode())
    draw(found, ROOT / "results" / "equal_samples.svg")


if __name__ == "__main__":
    main()
