"""MPI on two nodes of a Slurm: started by mpiexec, which starts its proxies with srun, and by srun itself."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.cluster_runs import ClusterRun, Figures
from tests.cluster.paced_toy import MINIBATCHES, PER_EPOCH

MPIEXEC = Path(sys.executable).with_name("mpiexec")
LAUNCHERS = {"mpiexec": f"{MPIEXEC} -n 2 -ppn 1", "srun --mpi=pmi2": "srun --mpi=pmi2"}

# mpiexec ends with the signal's number, or with 255 if its proxies have failed first; srun with 128 + 9.
# UCX takes nodes that share a kernel for one host, and tries shared memory that does not exist.
JOB = """#!/bin/bash
export UCX_TLS=tcp
status=0
{learners} || status=$?
case "$status" in
    75 | 79 | 9 | 137 | 255) exec scontrol requeue "$SLURM_JOB_ID" ;;
    *) exit "$status" ;;
esac
"""

pytestmark = pytest.mark.skipif(not MPIEXEC.exists(), reason="no mpiexec beside python: pip install 'murmur-asr[mpi]'")


def submit(run: ClusterRun, launcher: str, world: str) -> None:
    script = run.folder / "mpi.sbatch"
    words = " ".join(f"'{word}'" for word in run.words("--resume", "--world", world))
    script.write_text(JOB.format(learners=f"{LAUNCHERS[launcher]} {words}"))
    run.submit(script=script)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_gloo_learners_of_an_mpi_launcher_find_each_other(
    launcher: str, begin: Callable[[], ClusterRun], figures: Figures
) -> None:
    run = begin()
    submit(run, launcher, "torch")
    assert run.await_end()["JobState"] == "COMPLETED", run.told()
    assert {g.host for g in run.gradients()} == {"n1", "n2"}
    assert Counter(g.n for g in run.gradients()) == Counter(range(MINIBATCHES))
    figures[f"{launcher}, gloo"] = run.figures(MINIBATCHES)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_mpi_learners_save_when_asked_and_start_again_after_a_loss(
    launcher: str, begin: Callable[[], ClusterRun], figures: Figures
) -> None:
    """MPI does not tolerate a lost learner, with any strategy; at most one epoch is repeated."""
    run = begin()
    run.pace(0.2)
    submit(run, launcher, "mpi")
    run.await_gradients(PER_EPOCH + 10)
    run.slurm.ask(f"scancel --signal USR1 {run.job}")
    run.await_gradients(PER_EPOCH + 10, restarts=1)
    assert run.again() == 0
    run.kill_learner(max(g.host for g in run.gradients() if g.restarts == 1))
    run.await_gradients(1, restarts=2)
    run.pace(0.01)
    facts = run.await_end()
    assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "2"), run.told()
    assert run.again() <= PER_EPOCH
    figures[f"{launcher}, world mpi, USR1, learner killed"] = run.figures(MINIBATCHES)
