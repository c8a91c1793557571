"""Words of runs that want to be HTML stay words."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="the drawing libraries are not installed (pip install murmur[viz])")
pytest.importorskip("jinja2", reason="the drawing libraries are not installed (pip install murmur[viz])")

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
    """Names of all tags, and of all attributes that run code."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.handlers += [
            f"{tag} {name}" for name, value in attrs if name.startswith("on") or "script:" in (value or "")
        ]


def run_of(folder: Path, word: str) -> Path:
    """A run in which everything that is a text is `word`."""
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
    (folder / "phases.json").write_text(json.dumps({word: 1.0}))
    return folder


@pytest.mark.parametrize("word", HOSTILE)
def test_nothing_in_a_report_becomes_markup(word: str, tmp_path: Path) -> None:
    name = word.replace("/", "_")[:60]
    plain = write_report([run_of(tmp_path / "plain" / "runs", "word")], tmp_path / "plain.html").read_text()
    page = write_report([run_of(tmp_path / name, word)], tmp_path / "hostile.html").read_text()
    expected, found = Tags(), Tags()
    expected.feed(plain)
    found.feed(page)
    assert found.tags <= expected.tags
    assert "script" not in found.tags
    assert found.handlers == []
