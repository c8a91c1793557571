"""`murmur timeline`: strategies, a strategy of one's own, traces of runs, refusals in one line."""

from __future__ import annotations

import json
import re
from contextlib import chdir
from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app
from murmur.simulation.timeline import strategy_timeline
from murmur.strategies import KAVG
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Link

OWN = """
from dataclasses import dataclass
from typing import ClassVar
from murmur import Budget, Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.tasks.toy import ToyTask

@dataclass(frozen=True)
class Halves:
    lock_step: ClassVar[bool] = True

    async def __call__(self, me):
        while me.training:
            async for g in me.gradients(at_most=2):
                me.descend(g)
            me.weights.set_(await me.group.mean(me.weights.snapshot(), weight=me.fresh_samples))

def experiment():
    return Experiment(ToyTask(samples=16, per_epoch=100), Halves(), Budget(epochs=1), SGD(0.1))
"""


def timeline(folder: Path, *words: str) -> tuple[int, str]:
    with chdir(folder):
        done = CliRunner().invoke(app, ["timeline", *words])
    return done.exit_code, done.output


def drawn(svg: str, kind: str) -> list[tuple[float, int, float]]:
    """Return the boxes of a kind: x, y, width; lane after lane."""
    found = re.search(rf'^<path class="{kind}" d="([^"]*)"/>$', svg, re.MULTILINE)
    boxes = re.findall(r"M([\d.]+) (\d+)h([\d.]+)v", found[1] if found else "")
    return sorted([(float(x), int(y), float(width)) for x, y, width in boxes], key=lambda box: (box[1], box[0]))


def test_a_fast_learner_waits_exactly_for_the_slow_one() -> None:
    """Gradients of 1 and 2 s; a ring of two takes 2 hops of half a vector: 2 (0.5 + 0.5) s. 50 units a second."""
    cluster = Cluster(2, ConstantSeconds(1.0, {1: 2.0}), Link(0.5, 1e6), message_bytes=1e6)
    svg = strategy_timeline({"KAVG(K=1)": KAVG(1)}, cluster, 1, seconds=7.2)
    assert drawn(svg, "compute") == [(66, 24, 50), (266, 24, 50), (66, 49, 100), (266, 49, 100)]
    assert drawn(svg, "waiting") == [(116, 28, 50), (316, 28, 50)]
    assert drawn(svg, "communicating") == [(166, 24, 100), (366, 24, 60), (166, 49, 100), (366, 49, 60)]
    assert "one of learner 1 takes 2 times as long" in svg


def test_strategies_stand_below_each_other(tmp_path: Path) -> None:
    words = ("--strategy", "SyncSGD()", "--strategy", "ADPSGD()", "--learners", "2", "--gradients", "4")
    assert timeline(tmp_path, *words, "--out", "both.svg") == (0, "both.svg\n")
    svg = (tmp_path / "both.svg").read_text()
    assert "Timeline of SyncSGD(), ADPSGD()" in svg
    assert svg.count(">learner 1<") == 2
    assert 'class="message"' in svg
    assert timeline(tmp_path, *words, "--out", "again.svg")[0] == 0
    assert (tmp_path / "again.svg").read_text() == svg


def test_a_strategy_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "halves.py").write_text(OWN)
    assert timeline(tmp_path, "halves.py", "--learners", "2", "--straggler", "1=2x")[0] == 0
    svg = (tmp_path / "timeline.svg").read_text()
    assert "Halves()" in svg
    assert drawn(svg, "waiting")[0][2] == 60  # two gradients of 0.1 s, of 1.2 s that have 360 units


def test_a_run_of_its_own_folder(tmp_path: Path) -> None:
    run = tmp_path / "<run>"
    run.mkdir()
    spans = [{"cat": "compute", "pid": i, "ts": 1e6 * s, "dur": 9e5} for i in (0, 1) for s in range(9)]
    (run / "trace.json").write_text("[\n" + "".join(f"{json.dumps(span)},\n" for span in spans))
    told = "From 2 to 5.6 s of 8.9 s.\npart.svg\n"
    for source in ("<run>", "<run>/trace.json"):
        words = (source, "--from", "2", "--seconds", "3.6", "--out", "part.svg")
        assert timeline(tmp_path, *words) == (0, told)
        svg = (tmp_path / "part.svg").read_text()
        assert "&lt;run&gt;" in svg
        assert drawn(svg, "compute")[:4] == [(66, 24, 90), (166, 24, 90), (266, 24, 90), (366, 24, 60)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "nothing to draw"),
        (("nowhere.py",), "there is no file nowhere.py"),
        (("nowhere.json",), "there is no trace nowhere.json"),
        (("empty",), "there is no trace empty/trace.json"),
        (("empty", "--learners", "3"), "empty is a run: it takes --from, --seconds and --out alone"),
        (("empty", "--strategy", "KAVG"), "empty is a run"),
        (("spanless",), "spanless/trace.json holds no spans"),
        (("spanless", "--out", "spanless/trace.json"), "spanless/trace.json"),
        (("--strategy", "KAVG()", "--seconds", "21"), "at most 200 gradients of the fastest learner"),
        (("--strategy", "KAVG()", "--straggler", "9=2x"), "there are learners 0..3"),
        (("--strategy", "KAVG()", "--cluster", "etherned-1g"), "did you mean 'ethernet-1g'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_refusals_take_one_line(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "spanless").mkdir()
    (tmp_path / "spanless" / "trace.json").write_text("[\n")
    code, output = timeline(tmp_path, *words)
    assert code == 1
    assert output.startswith("murmur: ")
    assert said in output
    assert output.count("\n") == 1
    assert not list(tmp_path.glob("*.svg"))
