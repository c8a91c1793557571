"""The page in use: contrast, width, keyboard, switches, without script. The last four need Chromium."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.browsing import browser, opened
from tests.support.folders import charts, random_rows, write_run

pytest.importorskip("matplotlib", reason="the drawing libraries are not installed (pip install murmur-asr[viz])")
pytest.importorskip("jinja2", reason="the drawing libraries are not installed (pip install murmur-asr[viz])")

from murmur.report.drawn import THEME
from murmur.report.page import write_report

TEXT, GROUNDS = ("ink", "muted", "link", "sub", "ins", "del", "alert"), ("ground", "panel")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    slow = {"kind": "straggler", "learner": 1, "host": "a-host-with-a-long-name.example", "cause": "compute",
            "factor": 9.5, "since_seconds": 1.0, "since_samples": 32.0, "seconds": 2.0, "samples": 64.0,
            "over": False}  # fmt: skip
    runs = []
    for seed, (name, learners) in enumerate({"one": 1, "a-run-with-a-very-long-name-of-its-own": 4}.items()):
        run = write_run(folder / name, [*random_rows(seed, learners, 120), slow], learners)
        row = {
            "utterance": "u" * 60,
            "speaker": "s" * 40,
            "reference": "word " * 40,
            "hypothesis": "w" * 200,
            "errors": 40,
            "words": 40,
        }
        (run / "recognised.jsonl").write_text(json.dumps(row) + "\n")
        runs.append(run)
    return write_report(runs, folder / "report.html")


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb (WCAG 2.2)."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def themes(page: str) -> dict[str, dict[str, str]]:
    """Colours declared by the page's style, by theme."""
    found = re.findall(r"color-scheme: (light|dark); (--[^}]*?);? }", page)
    return {name: dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", declared)) for name, declared in found}


def test_text_has_contrast_in_both_themes(report: Path) -> None:
    page = report.read_text()
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)
    found = themes(page)
    assert set(found) == {"light", "dark"}
    for name, colours in found.items():
        for ground in GROUNDS:
            for text in TEXT:
                assert contrast(colours[text], colours[ground]) >= 4.5, f"{text} on {ground}, {name}"
            for line in (colour for colour in colours if re.fullmatch(r"c\d", colour)):
                assert contrast(colours[line], colours[ground]) >= 2.7, f"{line} on {ground}, {name}"
    style = page[page.index("<style>") : page.index("</style>")]
    used = set(re.findall(r"(?<!-)\bcolor: ([^;}]+)", style))
    assert used <= {f"var(--{text})" for text in TEXT}  # no other colour of text, and none but those measured


def test_drawings_take_the_colours_of_the_theme(report: Path) -> None:
    drawings = re.findall(r"<svg.*?</svg>", report.read_text(), re.DOTALL)
    assert len(drawings) > 8
    styles = " ".join(style for drawing in drawings for style in re.findall(r'style="([^"]*)"', drawing))
    assert "var(--ink)" in styles
    assert not {colour for colour in THEME if colour in styles}
    assert not re.findall(r"(?:fill|stroke): #", styles)


def test_the_page_is_small(report: Path) -> None:
    assert report.stat().st_size < 3_000_000


@browser
@pytest.mark.parametrize("width", [360, 1440])
def test_nothing_overflows(width: int, report: Path, tmp_path: Path) -> None:
    script = """
      d.querySelectorAll('details').forEach(x => x.open = true);
      const inside = e => e.closest('.scroll, svg, .u-wrap, legend') === null;
      const right = e => e.getBoundingClientRect().right;
      const wide = [...d.querySelectorAll('body *')].filter(e => inside(e) && right(e) > w.innerWidth + 1);
      document.title = JSON.stringify([w.innerWidth, d.documentElement.scrollWidth, d.body.scrollWidth,
        wide.map(e => e.tagName + '.' + e.className).slice(0, 5)])"""
    inner, *scrolled, wide = opened(report, tmp_path, width, script)
    assert inner == width
    assert max(scrolled) <= width
    assert wide == []


@browser
def test_a_table_that_is_cut_shows_that_it_scrolls(report: Path, tmp_path: Path) -> None:
    script = """
      const cut = [...d.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth);
      document.title = JSON.stringify(cut.map(e => w.getComputedStyle(e).backgroundAttachment))"""
    found = opened(report, tmp_path, 390, script)
    assert found
    assert set(found) == {"local, local, scroll, scroll"}  # grounds that move with the table over shadows that stay


@browser
def test_keys_tell_values_and_switches_hide_runs(report: Path, tmp_path: Path) -> None:
    script = """
      const figure = d.querySelector('figure[data-curves]'), plot = figure.querySelector('.plot'), said = [];
      const event = name => new w.KeyboardEvent('keydown', {key: name, bubbles: true, cancelable: true});
      const key = name => plot.dispatchEvent(event(name));
      const read = () => figure.querySelector('.readout').textContent;
      const shown = () => w.getComputedStyle(d.querySelector('svg .run1')).display;
      key('ArrowRight'); const first = read(); key('ArrowRight'); const second = read();
      key('ArrowLeft'); const again = read();
      const before = shown(); d.getElementById('show1').click(); const after = shown();
      key('ArrowRight'); const one = read();
      const light = w.getComputedStyle(d.body).backgroundColor; d.getElementById('theme-dark').click();
      const dark = w.getComputedStyle(d.body).backgroundColor;
      document.title = JSON.stringify({first, second, again, before, after, one, light, dark,
        focusable: plot.tabIndex, drawn: d.querySelectorAll('.uplot canvas').length,
        still: w.getComputedStyle(figure.querySelector('svg.still')).display})"""
    found = opened(report, tmp_path, 1440, script)
    series = charts(report.read_text())[0]["series"]
    for each in series:
        assert f"{each['name']} {each['y'][0]:.5g}".rstrip("0") in found["first"]
        assert f"{each['name']} {each['y'][1]:.5g}".rstrip("0") in found["second"]
    assert found["again"] == found["first"] != found["second"]
    assert (found["before"], found["after"]) == ("inline", "none")
    assert series[0]["name"] in found["one"]
    assert series[1]["name"] not in found["one"]
    assert found["light"] != found["dark"]
    assert (found["focusable"], found["still"]) == (0, "none")
    assert found["drawn"] == len(charts(report.read_text()))


@browser
def test_without_script_the_curves_are_pictures(report: Path, tmp_path: Path) -> None:
    quiet = tmp_path / "quiet.html"
    quiet.write_text(re.sub(r"script-src [^\"]*", "script-src &#39;none&#39;", report.read_text()))
    script = """
      const seen = [...d.querySelectorAll('svg.still')].filter(e => e.getBoundingClientRect().height > 100).length;
      const shown = () => w.getComputedStyle(d.querySelector('svg .run0')).display;
      const before = shown(); d.getElementById('show0').click();
      document.title = JSON.stringify([d.querySelectorAll('.plot').length, seen, before, shown()])"""
    with pytest.raises(AssertionError, match="Content Security Policy"):  # the browser says what it did not run
        opened(quiet, tmp_path, 800, script)
    silent = tmp_path / "silent.html"
    silent.write_text(re.sub(r"<script>.*?</script>", "", report.read_text(), flags=re.DOTALL))
    plots, seen, before, after = opened(silent, tmp_path, 800, script)
    assert plots == 0
    assert seen == len(charts(report.read_text()))
    assert (before, after) == ("inline", "none")
