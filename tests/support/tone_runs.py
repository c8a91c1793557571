"""Runs that the command line trains in seconds on a set of tones, each in a folder beside its set."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from murmur.cli import app
from tests.support.tones import CTC, HYBRID


def ctc_settings(corpus: Path, cache: Path) -> list[str]:
    """Return the options that make `murmur train ctc` a small run on a set."""
    return [word for s in (*CTC, f"task.corpus={corpus}", f"task.cache={cache}") for word in ("--set", s)]


def train_ctc(corpus: Path, name: str = "ctc", *settings: str) -> Path:
    """Train a CTC network, with some settings changed, in a folder of this name, and return the folder."""
    more = [word for setting in settings for word in ("--set", setting)]
    return _trained(corpus.parent / name, "ctc", *ctc_settings(corpus, corpus.parent / "cache"), *more)


def train_hybrid(corpus: Path) -> Path:
    """Train a hybrid system, and return its folder."""
    file = corpus.parent / "tones_experiment.py"
    file.write_text(HYBRID.format(corpus=str(corpus), cache=str(corpus.parent / "cache")))
    return _trained(corpus.parent / "hybrid", str(file))


def _trained(out: Path, *words: str) -> Path:
    done = CliRunner().invoke(app, ["train", *words, "--out", str(out), "--threads", "1"], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.stderr
    return out
