"""Texts of the page in Chromium: unbroken words, no label over another or cut off, no repeated tick text."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from tests.support.browsing import browser, opened
from tests.support.folders import random_rows, write_run
from tests.support.grids import thinned

pytest.importorskip("matplotlib", reason="the drawing libraries are not installed (pip install murmur-asr[viz])")
pytest.importorskip("jinja2", reason="the drawing libraries are not installed (pip install murmur-asr[viz])")

from murmur.report.figures import curve_drawing
from murmur.report.page import page, write_report
from murmur.report.read import read_run

LEARNERS = (1, 2, 4, 8, 64, 128)
RANGES = (
    (0.0, 1.0), (-1.0002, -1.0001), (12_345_670.0, 12_345_690.0), (1e-7, 3.2e-7), (0.0, 3.1e9), (999.0, 1001.0),
    (99_995.0, 100_005.0), (-2.5e6, 2.5e6), (0.0, 1e-3), (0.99991, 0.99999), (7.0, 7.0), (-5e-4, 0.0), (0.0, 8e13),
)  # fmt: skip

# Texts that cover others or the edge of their picture; boxes are a pixel smaller than their content.
CROSSED = """
  const crossed = (texts, edge) => {
    const found = [];
    texts.forEach((one, i) => {
      if (one.l < edge.l - 1 || one.r > edge.r + 1 || one.t < edge.t - 1 || one.b > edge.b + 1)
        found.push('cut off: ' + one.text);
      texts.slice(i + 1).forEach(two => {
        if (one.l + 1 < two.r - 1 && two.l + 1 < one.r - 1 && one.t + 1 < two.b - 1 && two.t + 1 < one.b - 1)
          found.push(one.text + ' over ' + two.text);
      });
    });
    return found;
  };"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs with many numbers of learners, with long and short names."""
    folder = tmp_path_factory.mktemp("page")
    names = [f"{learners}-learners{'-of-a-run-with-a-long-name' * (learners % 4)}" for learners in LEARNERS]
    runs = [
        write_run(folder / name, random_rows(seed, min(learners, 6), 90), learners)
        for seed, (name, learners) in enumerate(zip(names, LEARNERS, strict=True))
    ]
    for place, run in enumerate(runs):
        test = f'{{"test wer": {20 + place}, "test low": {19 + place}, "test high": {21 + place}}}'
        (run / "score.json").write_text(f'{{"test": {test}, "test_seconds": 3.5}}')
    return write_report(runs, folder / "report.html")


@pytest.fixture(scope="module")
def ranges(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A figure for each of many ranges of numbers."""
    folder = tmp_path_factory.mktemp("ranges")
    run = read_run(write_run(folder / "run", random_rows(0, 1, 40), 1))
    draw = random.Random(0)
    made = list(RANGES)
    for _ in range(5):
        middle, width = 10 ** draw.uniform(-6, 9) * draw.choice((-1, 1)), 10 ** draw.uniform(-5, 1)
        made.append((middle, middle + width * abs(middle)))
    drawings = []
    for place, (low, high) in enumerate(made):
        first, last = made[(place * 7 + 3) % len(made)]
        points = [[(first + (last - first) * i / 9, low + (high - low) * i / 9) for i in range(10)]]
        drawing = curve_drawing(f"range {place}", ("samples", "nats per sample"), [run], points)
        assert drawing is not None
        drawings.append(drawing)
    (folder / "ranges.html").write_text(page([run], {"Learning": drawings}))
    return folder / "ranges.html"


def without_script(report: Path, tmp_path: Path) -> Path:
    """The page with its curves as pictures, as in print."""
    silent = tmp_path / "silent.html"
    silent.write_text(re.sub(r"<script>.*?</script>", "", report.read_text(), flags=re.DOTALL))
    return silent


@browser
@pytest.mark.parametrize(
    "widths", [(330, 390, 450), pytest.param((345, 360, 375, 400, 410, 420), marks=pytest.mark.slow)]
)
def test_words_stay_in_one_piece(widths: tuple[int, ...], report: Path, tmp_path: Path) -> None:
    """At widths of a telephone, with wider and narrower letters than this machine's fonts.

    Words end at spaces and at characters behind which a line may end; those nearly as wide as the screen do break.
    """
    script = """
      const frame = f, broken = new Set(), words = /[^\\s\\-\\/|]+/g;
      const look = (top, at) => {
        const walk = d.createTreeWalker(d.body, 4);
        for (let node = walk.nextNode(); node; node = walk.nextNode()) {
          if (node.parentElement.closest('script, svg, .uplot, .scroll, legend')) continue;
          for (const found of node.data.matchAll(words)) {
            const range = d.createRange();
            range.setStart(node, found.index); range.setEnd(node, found.index + found[0].length);
            const parts = [...range.getClientRects()].filter(p => p.width > 0);
            const wide = parts.reduce((sum, p) => sum + p.width, 0) > w.innerWidth - 80;
            if (!wide && new Set(parts.map(p => Math.round(p.top))).size > 1) broken.add(at + ': ' + found[0]);
          }
        }
      };
      for (const spacing of ['-0.06em', '0', '0.04em']) {
        d.body.style.letterSpacing = spacing;
        for (const width of WIDTHS) {
          frame.style.width = width + 'px';
          look(d.body, width + ' px, letters ' + spacing);
        }
      }
      document.title = JSON.stringify([...broken].slice(0, 20))"""
    script = script.replace("WIDTHS", str(list(widths)))
    assert opened(without_script(report, tmp_path), tmp_path, 390, script) == []


@browser
@pytest.mark.parametrize(("which", "width"), thinned(["report", "ranges"], [390, 1440]))
def test_no_text_of_a_picture_is_covered_or_cut_off(
    which: str, width: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    script = (
        CROSSED
        + """
      const box = e => { const r = e.getBoundingClientRect();
        return {text: e.textContent.trim(), l: r.left, r: r.right, t: r.top, b: r.bottom}; };
      const figures = [...d.querySelectorAll('figure:has(svg)')], wrong = [];
      let texts = 0;
      for (const figure of figures) {
        const svg = figure.querySelector('svg'), here = [...svg.querySelectorAll('text')].map(box);
        texts += here.length;
        crossed(here, box(svg)).forEach(found => wrong.push(figure.querySelector('h3').textContent + ': ' + found));
      }
      document.title = JSON.stringify([figures.length, texts, wrong.slice(0, 20)])"""
    )
    shown = without_script(request.getfixturevalue(which), tmp_path)
    figures, texts, wrong = opened(shown, tmp_path, width, script)
    assert figures >= 10
    assert texts > 4 * figures
    assert wrong == []


@browser
@pytest.mark.parametrize(("which", "width"), thinned(["report", "ranges"], [390, 1440]))
def test_no_text_of_a_live_curve_is_covered_cut_off_or_repeated(
    which: str, width: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Every text drawn on a curve's canvas, with its place."""
    script = (
        CROSSED
        + """
      const written = new Map(), pen = w.CanvasRenderingContext2D.prototype, {fillText, clearRect} = pen;
      pen.clearRect = function (...box) { written.set(this.canvas, []); return clearRect.apply(this, box); };
      pen.fillText = function (text, x, y, ...more) {
        const m = this.getTransform(), s = this.measureText(text);
        const at = [[-s.actualBoundingBoxLeft, -s.actualBoundingBoxAscent], [s.actualBoundingBoxRight,
          s.actualBoundingBoxDescent]].map(([a, b]) => new w.DOMPoint(x + a, y + b).matrixTransform(m));
        const [xs, ys] = [at.map(p => p.x), at.map(p => p.y)];
        if (!written.has(this.canvas)) written.set(this.canvas, []);
        written.get(this.canvas).push({text, axis: this.textAlign, l: Math.min(...xs), r: Math.max(...xs),
          t: Math.min(...ys), b: Math.max(...ys)});
        return fillText.call(this, text, x, y, ...more);
      };
      d.getElementById('theme-dark').click();
      setTimeout(() => {
        const wrong = [];
        let texts = 0;
        for (const [canvas, here] of written) {
          texts += here.length;
          wrong.push(...crossed(here, {l: 0, t: 0, r: canvas.width, b: canvas.height}));
          for (const axis of new Set(here.map(one => one.axis))) {
            const ticks = here.filter(one => one.axis === axis).map(one => one.text);
            if (new Set(ticks).size < ticks.length) wrong.push('twice: ' + ticks.join(' '));
          }
        }
        document.title = JSON.stringify([written.size, texts, wrong.slice(0, 20)]);
      }, 500)"""
    )
    canvases, texts, wrong = opened(request.getfixturevalue(which), tmp_path, width, script)
    assert canvases >= 5
    assert texts > 5 * canvases
    assert wrong == []
