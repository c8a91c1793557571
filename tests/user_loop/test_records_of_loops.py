"""Records of joined loops, as `murmur watch` and `murmur report` read them."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import murmur
from murmur.core.errors import SettingError
from murmur.core.facts import Facts
from murmur.core.learner import Strategy
from murmur.core.stop_signals import STOPPED_STATUS, Stopped
from murmur.core.world import Seat
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.engine.record import steps_in
from murmur.engine.run_files import ChromeTrace, JsonLines
from murmur.engine.trainer import Trainer
from murmur.report.page import write_report
from murmur.report.read import read_run
from murmur.report.watch import Watched, frame
from murmur.run.folder.lock import read_ending
from murmur.strategies import ADPSGD, KAVG, SuperLearners, SyncSGD
from murmur.user_loop.consensus import Answers
from murmur.user_loop.joined import Joined, Plan
from murmur.user_loop.run_folder import RunFolder
from murmur.worlds.threads import ThreadWorld
from tests.support.named import named
from tests.support.tasks import Quadratic
from tests.support.user_loops import Words, evaluate, loss_of, net, optimizer_of

STEPS = 6
PLAN = Plan(total_steps=2 * STEPS, samples_per_step=4, timeout_seconds=20.0)
PROGRAM = """
import sys
sys.path[:0] = {path!r}
from test_records_of_loops import loop
loop({strategy})
"""


def take_steps(me: Joined, model: Any, steps: int, sleep_seconds: float = 0.0) -> None:
    for n in range(steps):
        loss = loss_of(model, 2 * n + me.rank)
        loss.backward()
        time.sleep(sleep_seconds)
        me.step(samples=4, loss=loss)


def loop(strategy: Strategy, seat: Seat | None = None, out: Path | None = None, plan: Plan = PLAN) -> None:
    model = net()
    with murmur.join(strategy, model, optimizer_of(model), plan, seat, out=out) as me:
        take_steps(me, model, STEPS)
        with me.consensus() as mean:
            if me.rank == 0:
                me.record(evaluate(mean))


def records(folder: Path, kind: str = "step") -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    return [record for record in found if record["kind"] == kind]


def check_folder(folder: Path, strategy: Strategy, tmp_path: Path) -> None:
    facts = json.loads((folder / "run.json").read_text())
    assert facts["learners"] == 2
    assert facts["experiment"]["strategy"]["type"].endswith(type(strategy).__name__)
    assert facts["experiment"]["budget"] == {"minibatches": 2 * STEPS}
    assert facts["records_bytes"] == 0
    steps = records(folder)
    assert {record["learner"] for record in steps} == {0, 1}
    own = [record for record in steps if record["learner"] == 0]
    assert [record["step"] for record in own] == list(range(own[0]["step"], own[0]["step"] + len(own)))
    assert all(record["loss"] > 0 and record["rate"] == 0.05 for record in steps)
    assert all(record["compute_seconds"] > 0 for record in own)
    (evaluation,) = records(folder, "evaluation")
    assert evaluation["figures"]["loss"] == evaluation["loss"] > 0
    spans = [span for span in json.loads((folder / "trace.json").read_text()) if span["ph"] == "X"]
    assert {span["pid"] for span in spans} == {0, 1}
    assert {"compute", "evaluation"} <= {span["cat"] for span in spans}
    watched = Watched(folder, time.time)
    watched.look()
    assert watched.state == "finished"
    assert watched.progress is not None
    assert watched.progress == 1.0 or not Facts.of(strategy).lock_step  # else the other learner may still be at work
    console = Console(record=True, width=100, file=(tmp_path / "screen").open("w"))
    console.print(frame(watched))
    assert "finished" in console.export_text()
    run = read_run(folder)
    assert (run.learners, run.problems, len(run.records.evaluations)) == (2, (), 1)
    assert run.records.not_finite == 0
    page = tmp_path / "page.html"
    write_report([folder], page)
    assert type(strategy).__name__ in page.read_text()


@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(2), ADPSGD(), SuperLearners(SyncSGD(), 2)], ids=named)
def test_threads_write_the_folder_of_a_run(strategy: Strategy, tmp_path: Path) -> None:
    ThreadWorld(2, 20.0).run(Words(lambda seat: loop(strategy, seat, tmp_path / "run")))
    check_folder(tmp_path / "run", strategy, tmp_path)


def test_spans_that_a_member_writes_late_are_inside_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flush = ChromeTrace.flush

    def late(trace: ChromeTrace) -> None:
        if any('"pid":1' in line for line in trace._lines):
            time.sleep(0.3)
        flush(trace)

    monkeypatch.setattr(ChromeTrace, "flush", late)
    strategy = SuperLearners(SyncSGD(), 2)
    ThreadWorld(2, 20.0).run(Words(lambda seat: loop(strategy, seat, tmp_path / "loop")))
    check_folder(tmp_path / "loop", strategy, tmp_path)
    Trainer(
        Experiment(Quadratic(), strategy, Budget(samples=24), SGD(0.1)), ThreadWorld(2, 20.0), tmp_path / "run"
    ).fit()
    spans = json.loads((tmp_path / "run" / "trace.json").read_text())
    assert {span["pid"] for span in spans} == {0, 1}


def test_a_loop_of_unknown_length_is_watched_and_reported(tmp_path: Path) -> None:
    out = tmp_path / "run"
    ThreadWorld(2, 20.0).run(Words(lambda seat: loop(SyncSGD(), seat, out, Plan())))
    watched = Watched(out, time.time)
    watched.look()
    assert (watched.damaged, watched.progress, len(watched.records.evaluations)) == (0, None, 1)
    console = Console(record=True, width=100, file=(tmp_path / "screen").open("w"))
    console.print(frame(watched))
    assert f"held-out after {2 * STEPS} samples" in console.export_text()
    assert (read_run(out).problems, len(read_run(out).records.evaluations)) == ((), 1)


@pytest.mark.processes
@pytest.mark.parametrize("strategy", [SyncSGD(), ADPSGD()], ids=named)
def test_launched_processes_write_the_folder_of_a_run(strategy: Strategy, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    path = [str(Path(__file__).parent), *sys.path]
    program.write_text(
        "from murmur.strategies import *\n" + PROGRAM.format(path=path, strategy=f"{type(strategy).__name__}()")
    )
    words = [sys.executable, "-m", "murmur", "launch", "--learners", "2", "--threads", "1"]
    out = tmp_path / "run"
    done = subprocess.run(
        [*words, "--out", str(out), str(program)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    check_folder(out, strategy, tmp_path)
    assert json.loads((out / "run.json").read_text())["command"] == [str(program)]


def test_a_slow_learner_of_a_loop_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("murmur.user_loop.recorded.EVERY_SECONDS", 0.1)

    def body(seat: Seat) -> None:
        model = net()
        with murmur.join(SyncSGD(), model, optimizer_of(model), seat=seat, out=tmp_path) as me:
            take_steps(me, model, 40, 0.05 if me.rank == 2 else 0.01)

    ThreadWorld(4, 20.0).run(Words(body))
    assert [(record["learner"], record["cause"]) for record in records(tmp_path, "straggler")] == [(2, "compute")]


def test_a_resumed_loop_appends_and_another_one_is_refused(tmp_path: Path) -> None:
    def part(saved: dict[str, Any] | None) -> dict[str, Any]:
        model = net()
        with murmur.join(SyncSGD(), model, optimizer_of(model), PLAN, out=tmp_path) as me:
            if saved is not None:
                me.load_state_dict(saved)
            take_steps(me, model, STEPS)
            return me.state_dict()

    saved = part(None)
    before = (tmp_path / "records.jsonl").read_bytes()
    with pytest.raises(SettingError, match=r"holds the records of a run: give another folder"):
        part(None)
    assert (tmp_path / "records.jsonl").read_bytes() == before
    part(saved)
    assert json.loads((tmp_path / "run.json").read_text())["records_bytes"] == len(before)
    steps = records(tmp_path)
    assert [record["step"] for record in steps] == list(range(2 * STEPS))
    assert [record["seconds"] for record in steps] == sorted(record["seconds"] for record in steps)
    assert [record["minibatches"] for record in steps] == list(range(2 * STEPS))
    assert (tmp_path / f"trace-until-{STEPS - 1}.json").is_file()


def test_a_resumed_loop_has_each_step_once_when_late_steps_share_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JsonLines.__init__, "__defaults__", (2,))

    def part(saved: dict[str, Any] | None, steps: int, more: int) -> dict[str, Any]:
        model = net()
        with murmur.join(SyncSGD(), model, optimizer_of(model), PLAN, out=tmp_path) as me:
            if saved is not None:
                me.load_state_dict(saved)
            take_steps(me, model, steps)
            found = me.state_dict()
            take_steps(me, model, more)
            return found

    part(part(None, 11, 4), 9, 0)
    assert sum(map(steps_in, records(tmp_path))) == 20
    assert any(record.get("steps", 1) > 1 for record in records(tmp_path))


def leave_by(error: BaseException, folder: Path, strategy: Strategy, seat: Seat | None = None) -> None:
    """Leave a block by an exception after a step."""
    model = net()
    with murmur.join(strategy, model, optimizer_of(model), PLAN, seat, out=folder) as me:
        take_steps(me, model, 1)
        raise error


def test_a_loop_that_fails_says_so(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        leave_by(ZeroDivisionError("of the loop"), tmp_path, SyncSGD())
    ending = read_ending(tmp_path)
    assert ending is not None
    assert (ending.state, ending.why) == ("failed", "ZeroDivisionError: of the loop")
    watched = Watched(tmp_path, time.time)
    watched.look()
    console = Console(record=True, width=200, file=io.StringIO())
    console.print(frame(watched))
    assert "me.load_state_dict() in the loop" in console.export_text()  # a loop knows no --resume


def test_seconds_of_evaluation_are_not_those_of_training(tmp_path: Path) -> None:
    model = net()
    with murmur.join(SyncSGD(), model, optimizer_of(model), out=tmp_path) as me:
        take_steps(me, model, 1)
        with me.consensus():
            time.sleep(0.3)
        take_steps(me, model, 1)
    first, second = records(tmp_path)
    assert second["seconds"] - first["seconds"] < 0.3
    assert second["compute_seconds"] < 0.3


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("learners", [1, 2])
def test_a_refused_loop_leaves_the_folder_as_it_was(learners: int, tmp_path: Path) -> None:
    ThreadWorld(2, 20.0).run(Words(lambda seat: loop(SyncSGD(), seat, tmp_path)))
    before = contents(tmp_path)

    def again(seat: Seat) -> None:
        with pytest.raises(SettingError, match="holds the records of a run"):
            loop(SyncSGD(), seat, tmp_path)

    ThreadWorld(learners, 20.0).run(Words(again))
    assert contents(tmp_path) == before


def test_a_loop_without_a_step_leaves_no_new_folder(tmp_path: Path) -> None:
    model, out = net(), tmp_path / "run"
    with pytest.raises(ZeroDivisionError), murmur.join(SyncSGD(), model, optimizer_of(model), out=out):
        raise ZeroDivisionError
    assert not out.exists()


def test_an_evaluation_before_the_first_step_is_recorded(tmp_path: Path) -> None:
    model = net()
    with murmur.join(SyncSGD(), model, optimizer_of(model), PLAN, out=tmp_path) as me:
        with me.consensus() as mean:
            me.record(evaluate(mean))
        take_steps(me, model, 1)
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert kinds == ["evaluation", "step"]
    assert [span.get("cat") for span in json.loads((tmp_path / "trace.json").read_text())].count("evaluation") == 1


@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(2), KAVG(3), ADPSGD()], ids=named)
def test_a_resumed_loop_forgets_the_records_beyond_its_state(strategy: Strategy, tmp_path: Path) -> None:
    saved: dict[int, dict[str, Any]] = {}

    def part(seat: Seat) -> None:
        model, rank = net(), seat.group.rank
        with murmur.join(strategy, model, optimizer_of(model), PLAN, seat, out=tmp_path) as me:
            if rank in saved:
                me.load_state_dict(saved[rank])
                take_steps(me, model, STEPS - 2)
                return
            take_steps(me, model, 2)
            if rank == 0:
                me.record({"loss": 1.0})
            saved[rank] = me.state_dict()
            take_steps(me, model, 1)
            if rank == 0:
                me.record({"loss": 2.0})
            take_steps(me, model, 1)

    for _ in range(2):
        ThreadWorld(2, 20.0).run(Words(part))
    lock_step = Facts.of(strategy).lock_step
    for rank in range(2 if lock_step else 1):  # the others' states may be of other moments
        steps = [record["step"] for record in records(tmp_path) if record["learner"] == rank]
        assert steps == list(range(steps[0], steps[0] + STEPS))
    assert [record["loss"] for record in records(tmp_path, "evaluation")] == [1.0]


def launch(program: str, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "program.py"
    path = [str(Path(__file__).parent), *sys.path]
    head = f"import sys, os\nsys.path[:0] = {path!r}\nfrom test_records_of_loops import *\n"
    file.write_text(head + program)
    command = [sys.executable, "-m", "murmur", "launch", "--threads", "1", *words, str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)


FAILING_AT_FIRST = """
model = net()
with murmur.join(SyncSGD(), model, optimizer_of(model), PLAN) as me:
    take_steps(me, model, 2)
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        sys.exit(1)
    take_steps(me, model, 1)
"""


@pytest.mark.processes
def test_a_restart_from_the_beginning_replaces_the_records_of_its_launch(tmp_path: Path) -> None:
    words = ("--learners", "2", "--restarts", "1", "--on-failure", "all", "--out", "run")
    done = launch(FAILING_AT_FIRST, tmp_path, *words)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert [record["step"] for record in records(tmp_path / "run") if record["learner"] == rank] == [0, 1, 2]
    before = contents(tmp_path / "run")
    done = launch(FAILING_AT_FIRST, tmp_path, *words)
    assert done.returncode != 0
    assert done.stderr.count("holds the records of a run") >= 2
    assert contents(tmp_path / "run") == before


@pytest.mark.processes
def test_blocks_of_a_single_launched_learner_have_folders_of_their_own(tmp_path: Path) -> None:
    done = launch("for _ in range(3):\n    loop(SyncSGD())\n", tmp_path, "--learners", "1", "--out", "run")
    assert done.returncode == 0, done.stderr
    for folder in ("run", "run/block-2", "run/block-3"):
        assert len(records(tmp_path / folder)) == STEPS


@pytest.mark.parametrize(
    ("error", "state", "why"),
    [
        (SystemExit(0), "finished", "the run is complete"),
        (SystemExit(None), "finished", "the run is complete"),
        (SystemExit(3), "failed", "ended with status 3"),
        (SystemExit("no data"), "failed", "no data"),
        (SystemExit(STOPPED_STATUS), "stopped", "stopped on request, and saved"),
        (Stopped(signal.SIGTERM), "stopped", "stopped by SIGTERM"),
        (KeyboardInterrupt(), "stopped", "stopped by SIGINT"),
        (ValueError(), "failed", "ValueError"),
    ],
)
def test_the_end_of_a_loop_is_that_of_its_program(error: BaseException, state: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(type(error)):
        leave_by(error, tmp_path, SyncSGD())
    ending = read_ending(tmp_path)
    assert ending is not None
    assert (ending.state, ending.why) == (state, why)


def test_a_full_disk_does_not_keep_the_others_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(folder: Path, ending: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    monkeypatch.setattr("murmur.user_loop.run_folder.write_ending", refuse)
    told: list[str] = []
    monkeypatch.setattr(Answers, "give_up", lambda answers: told.append(f"learner {answers.group.rank}"))

    def body(seat: Seat) -> None:
        with pytest.raises(ZeroDivisionError):
            leave_by(ZeroDivisionError(), tmp_path, ADPSGD(), seat)

    ThreadWorld(2, 20.0).run(Words(body))
    assert sorted(told) == ["learner 0", "learner 1"]
    assert "the end of the run is not recorded: [Errno 28]" in caplog.text


def test_seconds_of_a_nested_evaluation_are_left_out_once(tmp_path: Path) -> None:
    model = net()
    with murmur.join(SyncSGD(), model, optimizer_of(model), out=tmp_path) as me:
        take_steps(me, model, 1)
        began = time.monotonic()
        with me.consensus():
            with me.consensus():
                time.sleep(0.3)
            time.sleep(0.1)
        spent = time.monotonic() - began
        take_steps(me, model, 1)
    first, second = records(tmp_path)
    assert second["seconds"] > first["seconds"]
    spans = [span for span in json.loads((tmp_path / "trace.json").read_text()) if span.get("cat") == "evaluation"]
    assert 0.4 <= sum(span["dur"] for span in spans) / 1e6 <= spent


@pytest.mark.parametrize("failing", [0, 1])
def test_a_learner_that_fails_leaves_the_folder_of_a_finished_run_alone(
    failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was started again too late does: the others have finished the run, and have closed its trace."""
    fail, close = RunFolder.fail, RunFolder.close
    failed = threading.local()

    def wait_for_the_end() -> None:
        deadline = time.monotonic() + 20
        while hasattr(failed, "here") and ((end := read_ending(tmp_path)) is None or end.state != "finished"):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def fail_late(folder: RunFolder, error: BaseException) -> None:
        wait_for_the_end()
        fail(folder, error)

    def close_late(folder: RunFolder) -> None:
        wait_for_the_end()
        close(folder)

    monkeypatch.setattr(RunFolder, "fail", fail_late)
    monkeypatch.setattr(RunFolder, "close", close_late)

    def body(seat: Seat) -> None:
        model = net()
        try:
            with murmur.join(ADPSGD(), model, optimizer_of(model), PLAN, seat, out=tmp_path) as me:
                take_steps(me, model, STEPS)
                if me.rank == failing:
                    failed.here = True
                    raise ZeroDivisionError
        except ZeroDivisionError:
            assert seat.group.rank == failing

    ThreadWorld(2, 20.0).run(Words(body))
    ending = read_ending(tmp_path)
    assert ending is not None
    assert ending.state == "finished"
    json.loads((tmp_path / "trace.json").read_text())
