"""Runs under a real Slurm: started, interrupted, killed, cancelled, on nodes that fail."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.cluster.cluster_runs import EXPERIMENT, LEARNER_SECONDS, ClusterRun, Figures
from tests.cluster.paced_toy import MINIBATCHES, PER_EPOCH

Begin = Callable[..., ClusterRun]
SLOW = 0.5  # seconds per gradient while a test waits for an event


def is_whole(run: ClusterRun) -> dict[str, float]:
    """Check that the run has ended and done every minibatch; return its figures."""
    assert json.loads((run.folder / "run" / "score.json").read_text())["test"]["accuracy"] > 0.3
    assert run.undone(MINIBATCHES) == []
    return run.figures(MINIBATCHES)


def weights(folder: Path) -> dict[str, object]:
    return {name: x.numpy().tobytes() for name, x in load_file(folder / "model.safetensors").items()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Weights of two KAVG learners started by murmur's own launcher on this host."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "pace").write_text("0")
    words = [sys.executable, "-m", "murmur", "train", str(EXPERIMENT), "--learners", "2", "--threads", "1"]
    settings = ["--set", f"task.folder={folder}", "--lease-seconds", "10", "--out", str(folder / "run")]
    done = subprocess.run([*words, *settings], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return weights(folder / "run")


@pytest.mark.parametrize(
    ("strategy", "per_node"),
    [("KAVG(K=4)", 1), ("KAVG(K=4)", 2), ("ADPSGD()", 2), ("SuperLearners(ADPSGD(), 2)", 2)],
)
def test_srun_starts_learners_on_two_nodes(
    strategy: str, per_node: int, begin: Begin, figures: Figures, undisturbed: dict[str, object]
) -> None:
    run = begin(strategy)
    done = run.launch(["srun", "--nodes", "2", "--ntasks-per-node", str(per_node)])
    assert done.returncode == 0, done.stderr
    found = run.gradients()
    assert Counter(host for host, _ in {(g.host, g.process) for g in found}) == {"n1": per_node, "n2": per_node}
    assert Counter(g.n for g in found) == Counter(range(MINIBATCHES))
    if strategy.startswith("SuperLearners"):  # a claim is two minibatches, of the two members of a node
        claims = {(g.n // 2, g.host) for g in found}
        assert len(claims) == MINIBATCHES // 2
    if (strategy, per_node) == ("KAVG(K=4)", 1):
        assert weights(run.folder / "run") == undisturbed
    figures[f"srun, {per_node} a node, {strategy}"] = is_whole(run)


def test_a_job_saves_before_its_time_limit_and_is_requeued(
    begin: Begin, figures: Figures, undisturbed: dict[str, object]
) -> None:
    """Slurm checks for jobs near their end every 30 s, so the limit is set when the learners have begun."""
    run = begin()
    run.pace(SLOW)
    run.submit(2, 1, "--signal", "USR1@40")
    run.await_gradients(20)
    run.slurm.ask(f"scontrol update JobId={run.job} EndTime={time.strftime('%Y-%m-%dT%H:%M:%S', in_seconds(60))}")
    run.slurm.wait_for(lambda: run.facts()["Restarts"] == "1", "the job is requeued", LEARNER_SECONDS)
    run.slurm.ask(f"scontrol update JobId={run.job} TimeLimit=10")  # else the shorter limit would apply again
    run.pace(0.01)
    facts = run.await_end()
    assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "1"), run.told()
    assert "going on from" in run.told()
    assert run.again() == 0
    assert weights(run.folder / "run") == undisturbed
    figures["time limit, requeued"] = is_whole(run)


def in_seconds(seconds: float) -> time.struct_time:
    return time.localtime(time.time() + seconds)


def test_a_job_whose_learner_is_killed_is_requeued(begin: Begin, figures: Figures) -> None:
    """Synchronous strategies cannot go on without the learner; at most one epoch is repeated."""
    run = begin("SyncSGD()")
    run.pace(0.1)
    run.submit()
    run.await_gradients(PER_EPOCH + 10)
    run.kill_learner("n2")
    run.await_gradients(1, restarts=1)
    run.pace(0.01)
    facts = run.await_end()
    assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "1"), run.told()
    assert run.again() <= PER_EPOCH
    figures["learner killed, SyncSGD, requeued"] = is_whole(run)


@pytest.mark.parametrize("strategy", ["KAVG(K=4)", "ADPSGD()"])
def test_learners_go_on_without_one_that_is_killed(strategy: str, begin: Begin, figures: Figures) -> None:
    run = begin(strategy)
    run.pace(0.1)
    run.submit()
    run.await_gradients(PER_EPOCH + 10)
    run.kill_learner("n2")
    facts = run.await_end()
    assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "0"), run.told()
    assert {g.host for g in run.gradients()[-10:]} == {"n1"}
    figures[f"learner killed, {strategy}, goes on"] = is_whole(run)


def test_a_cancelled_job_has_saved_and_goes_on_when_submitted_again(
    begin: Begin, figures: Figures, undisturbed: dict[str, object]
) -> None:
    run = begin()
    run.pace(0.1)
    run.submit()
    run.await_gradients(30)
    run.slurm.ask(f"scancel {run.job}")
    facts = run.await_end()
    assert facts["JobState"] == "CANCELLED"
    run.slurm.await_idle()
    assert run.facts()["JobState"] == "CANCELLED"  # and not requeued
    assert "go on with --resume" in run.told(), run.told()
    run.pace(0.01)
    run.submit()
    facts = run.await_end()
    assert facts["JobState"] == "COMPLETED", run.told()
    assert run.again() == 0
    assert weights(run.folder / "run") == undisturbed
    figures["scancel, submitted again"] = is_whole(run)


@pytest.mark.parametrize("lost", ["n1", "n2"])
def test_a_job_goes_on_after_one_of_its_nodes_has_failed(lost: str, begin: Begin, figures: Figures) -> None:
    """The node ends with slurmd, step and learner; the batch script, srun and learner 0 run on n1."""
    run = begin("SyncSGD()")
    run.pace(0.1)
    run.submit()
    run.await_gradients(PER_EPOCH + 10)
    run.slurm.kill_node(lost)
    run.await_gradients(1, restarts=1)
    run.pace(0.01)
    facts = run.await_end()
    assert facts["JobState"] == "COMPLETED", run.told()
    assert lost not in {g.host for g in run.gradients() if g.restarts > 0}
    assert run.again() <= PER_EPOCH
    which = "the batch script" if lost == "n1" else "learner 1"
    figures[f"node of {which} failed, SyncSGD, requeued"] = is_whole(run)
