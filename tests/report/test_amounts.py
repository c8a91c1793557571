"""Runs with different amounts of training: reported beside the verdict, in the table and in the legends."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.folders import random_rows, tables, write_run

pytest.importorskip("matplotlib", reason="the drawing libraries are not installed (pip install murmur-asr[viz])")
pytest.importorskip("jinja2", reason="the drawing libraries are not installed (pip install murmur-asr[viz])")

from murmur.report.about import COLUMN, percent, shares
from murmur.report.page import write_report
from murmur.report.read import read_run


def write_runs(folder: Path, **steps: int) -> list[Path]:
    return [write_run(folder / name, random_rows(7, 1, count), 1) for name, count in steps.items()]


def legends(page: str) -> list[str]:
    chips = re.search(r'<fieldset class="runs">(.*?)</fieldset>', page, re.DOTALL)
    assert chips is not None
    return re.findall(r"</svg>([^<]*)</label>", chips[1])


def test_unequal_runs_are_marked_everywhere(tmp_path: Path) -> None:
    runs = write_runs(tmp_path, short=60, long=200)
    page = write_report(runs, tmp_path / "report.html").read_text()
    assert legends(page) == ["short (30 % of the samples)", "long"]
    names, *lines = tables(page)["Runs side by side"]
    told = {line[0]: dict(zip(names, line, strict=True)) for line in lines}
    assert {name: line[COLUMN] for name, line in told.items()} == {"short": "30 %", "long": "100 %"}
    verdict = page[page.index("<h1>") : page.index("<h2>")]
    warning = re.search(r'</h1>\s*<p class="warning">(.*?)</p>', verdict)
    assert warning is not None
    assert warning[1].startswith("Not at equal samples: ")
    assert "short trained on 1,920 (30 % of the most)" in warning[1]
    assert re.search(r"long trained on 6,400[,.]", warning[1])
    curves = re.search(r"<figure[^>]*><h3>Training loss</h3>(.*?)</svg>", page, re.DOTALL)
    assert curves is not None
    drawn = re.findall(r"<text[^>]*>([^<]*)</text>", curves[1])
    assert {"short (30 % of the samples)", "long"} <= set(drawn)


def test_equal_runs_are_not(tmp_path: Path) -> None:
    page = write_report(write_runs(tmp_path, one=200, two=199), tmp_path / "report.html").read_text()
    assert legends(page) == ["one", "two"]
    assert COLUMN not in tables(page)["Runs side by side"][0]
    assert 'class="warning"' not in page


def test_runs_that_have_not_begun_are_left_out(tmp_path: Path) -> None:
    runs = [read_run(folder) for folder in write_runs(tmp_path, one=100, none=0)]
    assert shares(runs) == {}
    assert shares([]) == {}


@pytest.mark.parametrize(("share", "text"), [(1.0, "100 %"), (0.995, "100 %"), (0.98999, "99 %"), (0.004, "0.4 %")])
def test_shares_are_rounded(share: float, text: str) -> None:
    assert percent(share) == text
