"""Processes: a learner is added to a run that is under way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from murmur.core.errors import SettingError
from murmur.run.add_learner import one_more
from murmur.run.request import RunRequest
from watched_run import BORNE, Run

pytestmark = pytest.mark.processes
SECRET = "0123456789abcdef0123456789abcdef"


def secret_in(folder: Path) -> Path:
    file = folder / "secret"
    file.write_text(SECRET)
    file.chmod(0o600)
    return file


@pytest.mark.timeout(300)
@pytest.mark.parametrize("strategy", [pytest.param("KAVG(K=4)", marks=pytest.mark.slow), "ADPSGD()"])
def test_it_takes_part_to_the_end(strategy: str, tmp_path: Path) -> None:
    secret = secret_in(tmp_path)
    run = Run(tmp_path, "--secret-file", str(secret), "--strategy", strategy, "--set", "budget.epochs=1.5", *BORNE)
    run.until(40)
    words = [sys.executable, "-m", "murmur", "add", str(run.out), "--secret-file", str(secret), "--threads", "1"]
    added = subprocess.Popen(words)
    run.await_learner(3)
    assert run.end() == 0
    assert added.wait(60) == 0
    steps = [r for r in run.records() if r["kind"] == "step"]
    assert max(i for i, r in enumerate(steps) if r["learner"] == 3) > 500
    assert sum(r["learner"] == 3 for r in steps) > 25
    assert 600 <= len(steps) <= 604


def test_it_needs_a_run_that_has_begun_and_can_take_it(tmp_path: Path) -> None:
    secret = secret_in(tmp_path)
    with pytest.raises(SettingError, match=r"run\.json"):
        one_more(tmp_path, secret, None)
    launch = {"host": "127.0.0.1", "port": 9, "generation": 0, "learners": 2, "store": "murmur"}
    (tmp_path / "run.json").write_text(json.dumps({"source": "toy"}))
    RunRequest(source="toy", strategy="SyncSGD()", learners=2, out=tmp_path).write()
    (tmp_path / "launch.json").write_text(json.dumps(launch))
    with pytest.raises(SettingError, match=r"SyncSGD\(\) accepts no new learners"):
        one_more(tmp_path, secret, None)
    (tmp_path / "launch.json").write_text(json.dumps({**launch, "store": "torchrun"}))
    with pytest.raises(SettingError, match="torchrun"):
        one_more(tmp_path, secret, None)
