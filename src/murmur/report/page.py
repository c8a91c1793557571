"""One self-contained page about one or several runs: the best run, the course of training, the experiments.

The page needs no network. Its figures are SVG; a script, if allowed, draws the curves again with values under the
pointer. The page's policy blocks all other scripts and all loading, whatever names and transcripts contain.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from murmur.core.counted import counted
from murmur.core.printable import printable
from murmur.core.whole_files import in_place_of
from murmur.report.about import COLUMNS, about, legend_suffix, row, tiles, warnings, with_shares
from murmur.report.cells import COLUMNS as CELL_COLUMNS
from murmur.report.cells import ComparedCells, folders_of, is_grid, read_grid
from murmur.report.drawn import COLOURS, DARK, LIGHT, Figure, dash_of, stand_alone, themed
from murmur.report.figures import averaging, graphs, heldout, learning, speed
from murmur.report.read import ReportError, Run, names_of, read_run
from murmur.report.recognised import LARGEST_FILE, LARGEST_TOGETHER, find_audio, worst
from murmur.report.records import COLUMNS as SLOW_COLUMNS
from murmur.report.swim_lanes import RULES
from murmur.report.verdict import headline, notes, ranking

try:
    import jinja2
    import matplotlib as mpl
except ImportError:  # the extra is optional; write_report reports it
    mpl = jinja2 = None  # type: ignore[assignment]

log = logging.getLogger(__name__)
ASSETS = Path(__file__).parent / "assets"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:"
MOST_DRAWN = 14  # runs: more curves are indistinguishable
MOST_SPOKEN = 4
AUDIO_RULE = (
    f"Recordings are in the page where --audio found them, up to {LARGEST_FILE // 1000} kB each and"
    f" {LARGEST_TOGETHER / 1e6:.1f} MB together."
)


def write_report(runs: Sequence[Path], out: Path, audio: Sequence[Path] = ()) -> Path:
    """Write one page about the runs in these folders.

    Folders of runs that were cut off, or that lack some files, are reported as far as possible; the page names what is
    missing.

    Args:
        runs: run folders, as `murmur train --out` makes them, and folders of `murmur compare`.
        out: the HTML file to write.
        audio: folders and wav.scp files with recordings of the test utterances.

    Returns:
        `out`.

    Raises:
        ReportError: no folder was given, a folder is not a run's folder, or the extra `viz` is not installed.
        FileNotFoundError: a path in `audio` does not exist.
    """
    check_installed()
    if not runs:
        raise ReportError("a report needs at least one run folder")
    grids = [read_grid(folder) for folder in runs if is_grid(folder)]
    folders = folders_of(runs)
    read = [read_run(folder, name) for folder, name in zip(folders, names_of(folders), strict=True)]
    shown = ranking(read)[:MOST_DRAWN] if len(read) > MOST_DRAWN else read
    wanted = {u.name for run in shown for u in run.utterances}
    found = find_audio(audio, wanted)
    if audio and not any(path.is_file() for path in found.values()):
        log.warning("--audio: no recording of the %d test utterances is there", len(wanted))
    write_text(Path(out), printable(page(read, sections(shown), grids, found)))
    return Path(out)


def write_curve(runs: Sequence[Path], out: Path) -> Path:
    """Write the held-out curves of the runs against seconds of training as a stand-alone SVG picture; return `out`."""
    check_installed()
    drawing = heldout([read_run(folder, name) for folder, name in zip(runs, names_of(runs), strict=True)], "seconds")
    if drawing is None:
        raise ReportError(f"no evaluation yet in any of {', '.join(map(str, runs))}: let them train on")
    write_text(Path(out), stand_alone(printable(drawing.svg)))
    return Path(out)


def check_installed() -> None:
    """Check that matplotlib and jinja2 are installed; otherwise raise ReportError."""
    if jinja2 is None or mpl is None:
        raise ReportError("a report needs matplotlib and jinja2: pip install 'murmur-asr[viz]'")


def sections(runs: Sequence[Run]) -> dict[str, list[Figure]]:
    """All figures that the runs have data for, by the title of their part of the page."""
    return {"Learning": learning(runs), "Time": speed(runs), "Averaging": [*graphs(runs), *averaging(runs)]}


def page(
    runs: Sequence[Run],
    figures: Mapping[str, Sequence[Figure]],
    grids: Sequence[ComparedCells] = (),
    audio: Mapping[str, Path] | None = None,
) -> str:
    ranked = ranking(runs)
    charts = [d.curves for drawings in figures.values() for d in drawings if d.curves is not None]
    spoken = [found for run in ranked[:MOST_SPOKEN] if (found := spoken_in(run, audio or {}))["shown"]]
    slow = [slow.row(run.name) for run in ranked for slow in run.records.slow]
    drawn = runs if len(runs) <= MOST_DRAWN else ranked[:MOST_DRAWN]
    columns, rows = with_shares(COLUMNS, [row(run) for run in ranked], ranked)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters["unbroken"] = unbroken
    return environment.from_string(read_asset("page.html")).render(
        headline=headline(ranked),
        warnings=warnings(ranked),
        notes=[*notes(ranked), *left_out(runs)],
        problems=[*(p for run in runs for p in run.problems), *(p for g in grids for p in (*g.problems, *g.failed))],
        tiles=tiles(runs[0]) if len(runs) == 1 else [],
        columns=columns,
        rows=rows,
        grids=[table_of(grid) for grid in grids],
        winner=len(runs) > 1 and headline(ranked).startswith("Winner"),
        sections=placed(figures, bool(slow), bool(spoken)),
        chips=[chip(place, run.name + legend_suffix(run, runs)) for place, run in enumerate(drawn)],
        slow_columns=SLOW_COLUMNS,
        slow=slow,
        spoken=spoken,
        audio_rule=AUDIO_RULE,
        runs=[about(run) for run in runs],
        interactive=bool(charts),
        **source(charts),
    )


def unbroken(text: str) -> str:
    """Return text whose numbers stay on one line with their percent signs."""
    return text.replace(" %", "\u00a0%")


def source(charts: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Style, scripts, the curves' data, and the policy that allows these scripts alone."""
    licence = read_asset("uPlot.LICENSE").strip()
    library = f"/*\n{licence}\n*/\n{read_asset('uPlot.iife.min.js')}"
    script = read_asset("page.js")
    digests = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in (library, script)
    )
    data = json.dumps(charts, separators=(",", ":"), allow_nan=False)
    return {
        "light": LIGHT,
        "dark": DARK,
        "style": f"{read_asset('uPlot.min.css')}\n{read_asset('page.css')}\n{RULES}",
        "library": library,
        "script": script,
        "curves": data.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"),
        "policy": f"{POLICY}; script-src {digests}",
    }


def placed(figures: Mapping[str, Sequence[Figure]], slow: bool, spoken: bool) -> list[dict[str, Any]]:
    made, chart = [], 0
    for title, drawings in figures.items():
        shown = []
        for drawing in drawings:
            svg = themed(drawing.svg)
            place = None  # index of its curves in the page's script
            if drawing.curves is not None:
                place, chart = chart, chart + 1
                svg = svg.replace("<svg ", '<svg class="still" ', 1)
            shown.append({**vars(drawing), "svg": svg, "chart": place})
        if shown or (title == "Time" and slow):
            made.append({"key": title.lower(), "title": title, "drawings": shown})
    if slow and "Time" not in figures:
        made.append({"key": "time", "title": "Time", "drawings": []})
    return [*made, {"key": "words", "title": "Words", "drawings": []}] if spoken else made


def spoken_in(run: Run, audio: Mapping[str, Path]) -> dict[str, Any]:
    wrong = sum(u.errors > 0 for u in run.utterances)
    errors, words = sum(u.errors for u in run.utterances), sum(u.words for u in run.utterances)
    utterances = counted(len(run.utterances), "utterance")
    told = f"{counted(errors, 'error')} in {counted(words, 'word')}; errors in {wrong} of {utterances}."
    return {"name": run.name, "counted": told, "shown": worst(run.utterances, audio)}


def left_out(runs: Sequence[Run]) -> list[str]:
    if len(runs) <= MOST_DRAWN:
        return []
    return [f"Figures show the {MOST_DRAWN} best of {len(runs)} runs; the table has all."]


def table_of(grid: ComparedCells) -> Mapping[str, Any]:
    note = "From cells.jsonl; - marks missing values."
    return {"title": f"Comparison {grid.folder.name}", "columns": CELL_COLUMNS, "rows": grid.rows, "note": note}


def chip(place: int, name: str) -> dict[str, Any]:
    """A run's entry in the legend of the page."""
    dash = dash_of(place)[1]
    dashes = " ".join(f"{2 * length:g}" for length in dash)
    return {"place": place, "name": name, "colour": f"--c{place % len(COLOURS)}", "dashes": dashes}


def read_asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def write_text(path: Path, text: str) -> None:
    """Write a file so that after a crash either the old or the new one is complete; FIFOs, devices and links stay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with in_place_of(path) as beside:
        beside.write_text(text, encoding="utf-8")
