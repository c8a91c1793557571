"""`murmur watch` on runs that go, end or are cut off, and on learners that are slow, lost and back."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from murmur.cli import app
from murmur.core.stop_signals import Stopped
from murmur.report import watch as watch_module
from murmur.report.records import Records
from murmur.report.watch import QUIET_SECONDS, Tail, Watched, duration, frame, sparkline

START = 1_700_000_000.0


class Run:
    """A run folder that a test fills, with files of a chosen age."""

    def __init__(self, folder: Path, epochs: float = 4.0) -> None:
        folder.mkdir()
        self.folder, self.wall = folder, START
        self.facts: dict[str, Any] = {
            "learners": 2,
            "experiment": {"budget": {"epochs": epochs}, "strategy": {"type": "x.KAVG", "K": 2}},
        }
        self.write("run.json", json.dumps(self.facts))
        self.watched = Watched(folder, lambda: self.wall)
        self.samples = 0.0

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        os.utime(self.folder / name, (self.wall, self.wall))

    def append(self, text: str) -> None:
        path = self.folder / "records.jsonl"
        with path.open("a") as file:
            file.write(text)
        os.utime(path, (self.wall, self.wall))

    def step(self, learner: int, seconds: float, **more: Any) -> None:
        self.samples += 10
        row = {
            "kind": "step",
            "learner": learner,
            "seconds": seconds,
            "samples": self.samples,
            "loss": 1.0,
            "rate": 0.5,
        }
        row |= {
            "epoch": self.samples / 100,
            "minibatches": self.samples / 10,
            "compute_seconds": 0.5,
            "waiting_seconds": 0.5,
        }
        self.append(json.dumps(row | more) + "\n")

    def both(self, start: int, end: int) -> None:
        for second in range(start, end):
            self.step(0, second)
            self.step(1, second)

    def text(self, width: int = 80) -> str:
        while self.watched.look():
            pass
        out = io.StringIO()
        Console(file=out, width=width, highlight=False).print(frame(self.watched))
        return out.getvalue()

    def state(self, learner: int) -> tuple[str, str]:
        self.watched.look()
        return self.watched.learner_state(learner, self.watched.state)


def test_the_folder_of_several_runs_is_refused_with_their_names(tmp_path: Path) -> None:
    for place in ("compared/runs/KAVG-8", "simulated/ADPSGD"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "run.json").write_text("{}")
        top = tmp_path / place.partition("/")[0]
        code, said = watch(top, "--once")
        assert code == 1
        assert "is the folder of several runs" in said.replace("\n", " ")
        assert place.rpartition("/")[2] in said
    empty = tmp_path / "begun"
    empty.mkdir()
    (empty / "compare.json").write_text("{}")
    assert watch(empty, "--once")[0] == 1


def test_a_frame_tells_the_numbers_of_the_records(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.both(1, 11)
    figures = {"loss": 0.75, "accuracy": 0.5}
    run.append(
        json.dumps({"kind": "evaluation", "samples": 200, "seconds": 10, "epoch": 2.0, "figures": figures}) + "\n"
    )
    said = run.text()
    for told in ("going", "2 learners", "KAVG(K=2)", "50.0 %", "epoch 2.00", "10 s of training", "200 samples",
                 "loss 0.75  accuracy 0.5", "50.0 % not computing", "learning rate 0.5", "loss 1.0000"):  # fmt: skip
        assert told in said
    speed = (200 - 10) / (10 - 1)
    assert f"{speed:.0f} samples/s" in said
    assert f"{duration(200 / speed)} to go" in said
    assert [line.split() for line in said.splitlines() if line.strip().startswith(("0 ", "1 "))] == [
        ["0", "10", "1", "50", "%", "0.0", "1.0000", "computing"],
        ["1", "10", "1", "50", "%", "0.0", "1.0000", "computing"],
    ]


def test_runs_start_go_are_cut_off_and_end(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    states = []

    def note() -> None:
        run.watched.look()
        states.append(run.watched.state)

    note()
    run.both(1, 3)
    note()
    run.wall += QUIET_SECONDS + 1
    note()
    assert "--resume" in run.text()
    run.both(3, 21)
    note()
    run.write("score.json", json.dumps({"lines": ["%WER 1.5"]}))
    note()
    assert "%WER 1.5" in run.text()
    run.wall += 10
    run.write("run.json", json.dumps(run.facts))  # launched again, so the score is that of the previous launch
    note()
    assert states == ["starting", "going", "cut off", "testing", "finished", "testing"]


def test_learners_are_slow_lost_and_back(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", epochs=1000)
    run.both(1, 31)
    assert run.state(1) == ("computing", "")
    slow = {
        "kind": "straggler",
        "learner": 1,
        "seconds": 30,
        "samples": 1,
        "cause": "compute",
        "factor": 3.25,
        "since_seconds": 9,
    }
    run.append(json.dumps(slow | {"since_samples": 0, "over": False}) + "\n")
    assert run.state(1) == ("slow", "3.2 x computing")
    run.append(json.dumps(slow | {"since_samples": 0, "over": True}) + "\n")
    assert run.state(1) == ("computing", "")
    for second in range(31, 52):
        run.step(0, second)
    assert run.state(1) == ("lost", "silent for 21 s")
    assert run.state(0) == ("computing", "")
    assert "lost silent for 21 s" in run.text()
    run.both(52, 58)
    assert run.state(1) == ("back", "for 5 s")
    run.both(58, 120)
    assert run.state(1) == ("computing", "")


def test_a_restarted_file_is_read_anew(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.both(1, 9)
    run.text()
    (run.folder / "records.jsonl").unlink()
    run.samples = 0.0
    run.both(1, 3)
    run.text()
    assert run.watched.records.steps_of == {0: 2, 1: 2}


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(st.binary(max_size=12).filter(lambda b: b"\n" not in b), max_size=12), data=st.data())
def test_a_growing_file_is_read_once(
    lines: list[bytes], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("grows") / "file"
    whole = b"".join(line + b"\n" for line in lines) + b"no end yet"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    tail, found = Tail(path), list[bytes]()
    assert tail.lines() == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch_module, "AT_ONCE", data.draw(st.integers(1, 20)))
        for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
            with path.open("ab") as file:
                file.write(whole[start:end])
            before = tail.read_bytes
            found += tail.lines()
            while tail.behind:
                found += tail.lines()
            assert tail.read_bytes - before == end - start
    assert found == lines
    assert tail.begun == 1


def test_damaged_lines_are_counted_and_passed_over(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.both(1, 3)
    run.append('{"kind": "step"}\n[]\nnot json\n{"kind": "step", "learner": 0, "seconds": NaN}\n\x00\n')
    run.both(3, 5)
    assert "5 damaged records passed over" in run.text()
    assert run.watched.records.steps_of == {0: 4, 1: 4}


def test_nothing_is_wider_than_the_terminal(tmp_path: Path) -> None:
    run = Run(tmp_path / ("run-with-a-long-name" * 4), epochs=3000)
    for second in range(1, 4):
        for learner in range(128):
            run.step(learner, second, staleness=1000, loss=1234.5678, rate=1.23456789)
    run.step(127, 60)
    said = run.text()
    assert max(map(len, said.splitlines())) <= 80
    assert said.count("\n") <= 24
    assert "and 112 computing" in said or "and 111 lost" in said


def test_sparkline_and_duration() -> None:
    assert sparkline([1.0]) == "▁"
    assert sparkline([0.0, 7.0, 3.5]) == "▁█▅"
    assert len(sparkline([float(n) for n in range(1000)])) <= 24
    assert [duration(s) for s in (4, 63, 7500)] == ["4 s", "1 min 03 s", "2 h 05 min"]


def watch(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["watch", *map(str, words)], env={"COLUMNS": "80"})
    return done.exit_code, done.output


def test_the_command_ends_with_the_run(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.both(1, 21)
    assert watch(run.folder, "--once")[0] == 0
    code, said = watch(run.folder)
    assert code == 1  # its last record is years old
    assert "cut off" in said
    run.write("score.json", "{}")
    code, said = watch(run.folder)
    assert code == 0
    assert "finished" in said
    code, said = watch(tmp_path / "none")
    assert code == 1
    assert "there is no folder" in said


def test_records_keep_what_frames_need() -> None:
    records = Records()
    records.add({"kind": "step", "learner": 3, "seconds": 1.0, "samples": 8.0, "loss": None})
    assert records.latest[3]["loss"] is None
    assert records.not_finite == 1


def test_an_interrupt_ends_quietly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path / "run")
    run.both(1, 3)
    os.utime(run.folder / "records.jsonl")  # just now, so the run is going

    def interrupt(_: float) -> None:
        raise Stopped(signal.SIGINT)

    monkeypatch.setattr("murmur.commands.watch.time.sleep", interrupt)
    code, said = watch(run.folder)
    assert code == 130
    assert "going" in said
    assert "Traceback" not in said


def test_a_folder_in_which_nothing_ever_happens_is_given_up(tmp_path: Path) -> None:
    wall = START
    watched = Watched(tmp_path, lambda: wall)
    watched.look()
    wall += QUIET_SECONDS - 1
    assert watched.state == "starting"
    wall += 2
    assert watched.state == "cut off"


def test_the_time_to_go_after_a_resume_is_that_of_this_start(tmp_path: Path) -> None:
    """The earlier start took 10 s a step; it was stopped at its checkpoint, and nothing is done twice."""
    run = Run(tmp_path / "run", epochs=10.0)
    for step in range(1, 51):
        run.step(0, 10.0 * step)
    run.facts["records_bytes"] = (run.folder / "records.jsonl").stat().st_size
    run.write("run.json", json.dumps(run.facts))
    for step in range(1, 6):
        run.step(0, 500.0 + step)
    said = run.text()
    assert "10 samples/s" in said
    assert "44 s to go" in said or "45 s to go" in said
    late = Watched(run.folder, lambda: run.wall)
    while late.look():
        pass
    assert late.seconds_to_go == run.watched.seconds_to_go == pytest.approx(45.0)


def test_a_start_that_repeats_steps_begins_a_new_speed(tmp_path: Path) -> None:
    """The earlier start was killed beyond its checkpoint at 300 s, so that its last steps are done twice."""
    run = Run(tmp_path / "run", epochs=10.0)
    for step in range(1, 51):
        run.step(0, 10.0 * step)
    run.samples = 300.0
    for step in range(1, 6):
        run.step(0, 300.0 + step)
    run.text()
    assert run.watched.samples_per_second == pytest.approx(10.0)
    assert run.watched.seconds_to_go == pytest.approx((1000 - 350) / 10)
