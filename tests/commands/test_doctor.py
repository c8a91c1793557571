"""`murmur doctor`: a finding for each fault, and two learners that meet."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from murmur.cli import app
from murmur.core.world import Seat
from murmur.run import host_checks
from murmur.run.configuration import configure, resolved
from murmur.run.host_checks import (
    CORE,
    OPENFST,
    SPEECH,
    HostFinding,
    Learned,
    check_cores,
    check_disk,
    check_imports,
    check_memory,
    check_versions,
    compare_learners,
    examine,
    launched,
    parse_pins,
)
from murmur.worlds.threads import ThreadWorld

PINS = {name: "1.0" for name in (*CORE, *SPEECH)}


def levels(findings: list[HostFinding]) -> dict[str, str]:
    return {each.what: each.level for each in findings}


def test_versions_against_pins() -> None:
    assert levels(check_versions(PINS, PINS, "x")) == {"versions": "ok"}
    (found,) = check_versions(PINS, {**PINS, "kaldifst": "1.8.3"}, "constraints.txt")
    assert found.level == "bad"
    assert "deadlock on import: pip install kaldifst==1.0" in found.remedy
    (found,) = check_versions(PINS, {**PINS, "lhotse": "2.0"}, "constraints.txt")
    assert str(found) == "warn lhotse: 2.0, constraints.txt has 1.0; pip install lhotse==1.0"
    assert levels(check_versions(PINS, {k: v for k, v in PINS.items() if k != "torch"}, "x")) == {"torch": "bad"}
    (found,) = check_versions(PINS, {k: v for k, v in PINS.items() if k != "kaldilm"}, "x")
    assert (found.level, found.found) == ("warn", "without kaldilm")


def test_pins_are_read() -> None:
    lines = [
        "# a comment",
        "torch==2.13.0",
        "kaldifst==1.7.17; extra == 'speech'",
        "numpy>=1.26",
        "Rich == 15.0.0  # x",
    ]
    assert parse_pins(lines) == {"torch": "2.13.0", "kaldifst": "1.7.17", "rich": "15.0.0"}
    pins, where = host_checks.read_pins()
    assert set(OPENFST) <= set(pins), where


def test_imports_that_dead_lock_or_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_imports({}).level == "warn"
    monkeypatch.setattr(host_checks, "IMPORTS", ("no_such_library",))
    assert "No module named 'no_such_library'" in check_imports(PINS).found
    monkeypatch.setattr(host_checks, "IMPORTS", ("time; time.sleep(60)",))
    monkeypatch.setattr(host_checks, "IMPORT_SECONDS", 0.1)
    found = check_imports(PINS)
    assert (found.level, "deadlock" in found.found) == ("bad", True)


def test_cores_memory_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert check_cores(4, 2, 4).level == "ok"
    assert "start at most 4 learners here" in check_cores(4, 1, 5).remedy
    assert "GB free" in check_memory().found
    usage = namedtuple("usage", "total used free")
    for free, level in ((1e9, "warn"), (1e12, "ok")):
        monkeypatch.setattr(host_checks.shutil, "disk_usage", lambda _, free=free: usage(1e12, 0, free))
        assert check_disk(tmp_path / "not" / "there" / "yet").level == level
    monkeypatch.setattr(host_checks.os, "access", lambda *_: False)
    assert check_disk(tmp_path).level == "bad"


HOSTS = [
    Learned("a", "3.11.7", "2.13.0", "d1", (HostFinding("ok", "disk", "much"),)),
    Learned("b", "3.11.7", "2.13.0", "d1", (HostFinding("warn", "disk", "little", "buy one"),)),
]


def test_learners_that_differ_are_named() -> None:
    assert {f.level for f in compare_learners(HOSTS)} == {"ok"}
    differ = compare_learners([HOSTS[0], replace(HOSTS[1], digest="d2", torch="2.11.0")])
    assert levels(differ) == {"Python": "ok", "PyTorch": "bad", "experiment": "bad"}
    assert differ[2].found == "learner 0 (a): d1, learner 1 (b): d2"


def test_learners_of_two_hosts_examine_each_other() -> None:
    async def program(seat: Seat) -> list[HostFinding]:
        return await examine(seat, HOSTS[seat.group.rank])

    first, second = ThreadWorld(2, timeout_seconds=30).run(program)
    found = {f.what: f for f in first}
    assert [f.what for f in first] == [f.what for f in second]
    assert "2 learners on 2 hosts met" in found["store"].found
    assert (found["a, disk"].level, found["b, disk"].remedy) == ("ok", "buy one")
    assert "ms a round" in found["latency"].found
    assert "MB/s" in found["bandwidth"].found
    assert found["experiment"].found == "d1 everywhere"


@pytest.mark.processes
def test_two_processes_meet() -> None:
    found = {each.what: each for each in launched("toy", ["budget.epochs=3"], 2)}
    assert set(found) == {"store", "latency", "bandwidth", "Python", "PyTorch", "experiment"}
    assert "2 learners on 1 host met" in found["store"].found
    assert found["PyTorch"].found == f"{torch.__version__} everywhere"
    assert found["experiment"].found == f"{configure(resolved('toy'), ['budget.epochs=3']).digest()} everywhere"


def test_a_bad_finding_is_status_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for level, status in (("bad", 1), ("warn", 0)):
        monkeypatch.setattr("murmur.commands.doctor.launched", lambda *_: [HostFinding("ok", "store", "met")])
        monkeypatch.setattr(
            "murmur.commands.doctor.check_host", lambda *_, level=level: [HostFinding(level, "disk", "none", "buy one")]
        )
        done = CliRunner().invoke(app, ["doctor", "--out", str(tmp_path)])
        assert done.exit_code == status
        assert f"{level:<4} disk: none; buy one" in done.output
    done = CliRunner().invoke(app, ["doctor", "toyy"])
    assert (done.exit_code, "did you mean 'toy'?" in done.output) == (1, True)


def test_learners_that_never_meet_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("murmur.run.host_checks.Launch.run", lambda _: 7)
    monkeypatch.setattr("murmur.commands.doctor.check_host", lambda *_: [])
    done = CliRunner().invoke(app, ["doctor", "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert "bad  learners: ended with status 7 before they had met" in done.output
