"""Text of runs that looks like HTML stays text."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="the drawing libraries are not installed (pip install murmur-asr[viz])")
pytest.importorskip("jinja2", reason="the drawing libraries are not installed (pip install murmur-asr[viz])")

from murmur.report.page import write_report

HOSTILE = [
    "</script><script>alert(1)</script>",
    "</text></svg><img src=x onerror=alert(1)>",
    "\"><b onclick='alert(1)'>",
    "]]><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% for x in y %}",
    "&lt;script&gt;alert(1)",
]


class Tags(HTMLParser):
    """Counts of each tag and attribute, and all attributes that run code."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.handlers: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.handlers += [
            f"{tag} {name}" for name, value in attrs if name.startswith("on") or "script:" in (value or "")
        ]


def run_of(folder: Path, word: str) -> Path:
    """A run with `word` as every text."""
    folder.mkdir(parents=True)
    step = {"kind": "step", "learner": 0, "samples": 1.0, "seconds": 1.0, "rate": 0.1, "loss": 1.0, "staleness": 0}
    mark = {"kind": "evaluation", "samples": 2.0, "seconds": 2.0, "epoch": 0.5, "figures": {"loss": 1.0, word: 2.0}}
    rows = [step, mark, {**mark, "samples": 3.0}, {"kind": word, "learner": word}]
    (folder / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    facts = {
        "source": word, "settings": [word], "strategy": word, "learners": 1, "started": word, "commit": word,
        "command": ["murmur", word], "experiment": {word: {"type": word}, "strategy": {"type": word}},
        "digest": word, "versions": {word: word}, "python": word,
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(facts))
    score = {"test": {f"{word} test wer": 5.0, "wer": 4.0}, "lines": [word], "model": {"name": word}}
    (folder / "score.json").write_text(json.dumps(score))
    said = {"utterance": word, "speaker": word, "reference": word, "hypothesis": f"x {word}", "errors": 1, "words": 3}
    (folder / "recognised.jsonl").write_text(json.dumps(said) + "\n")
    (folder / "phases.json").write_text(json.dumps({word: 1.0}))
    return folder


@pytest.mark.parametrize("word", ["".join(HOSTILE), *(pytest.param(w, marks=pytest.mark.slow) for w in HOSTILE)])
def test_nothing_in_a_report_becomes_markup(word: str, tmp_path: Path) -> None:
    name = word.replace("/", "_")[:60]
    plain = write_report([run_of(tmp_path / "plain" / "runs", "a b c")], tmp_path / "plain.html").read_text()
    page = write_report([run_of(tmp_path / name, word)], tmp_path / "hostile.html").read_text()
    expected, found = Tags(plain).tags, Tags(page).tags
    for tags in (expected, found):  # the number of words and drawing steps differs by name
        for tag in ("li", "span", "small", "text", "use", "path", "g"):
            del tags[tag]
    assert found == expected
    assert found["script"] == 3
    assert Tags(page).handlers == []
    data = re.search(r'<script type="application/json" id="curves">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert {series["name"] for chart in json.loads(data[1]) for series in chart["series"]} == {name}


def test_only_the_scripts_of_the_page_may_run(tmp_path: Path) -> None:
    page = write_report([run_of(tmp_path / "run", "word")], tmp_path / "page.html").read_text()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    allowed = set(re.findall(r"'sha256-([^']+)'", html.unescape(policy[1])))
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts} == allowed
    assert len(allowed) == 2
    assert "default-src 'none'" in html.unescape(policy[1])
    assert "unsafe-inline" not in html.unescape(policy[1]).partition("script-src")[2]


def test_names_made_of_two_folders_end_no_script(tmp_path: Path) -> None:
    """A slash cannot occur in a folder's name, but in names of runs that include their parents' names."""
    end = "script><img src=x onerror=alert(1)>"
    runs = [run_of(tmp_path / f"{parent}<" / end, "word") for parent in "ab"]
    page = write_report(runs, tmp_path / "page.html").read_text()
    assert "img" not in Tags(page).tags
    assert Tags(page).tags["script"] == 3
    data = re.search(r'<script type="application/json" id="curves">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert {series["name"] for chart in json.loads(data[1]) for series in chart["series"]} == {f"a</{end}", f"b</{end}"}
