"""MPI on two nodes of a Slurm: started by mpiexec, which starts its proxies with srun, and by srun itself."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_runs import ClusterRun, Figures
from paced_toy import MINIBATCHES

# UCX takes nodes that share a kernel for one host, and then for shared memory that is not there.
OVER_TCP = "export UCX_TLS=tcp"
HYDRA = Path(sys.executable).with_name("mpiexec")


@pytest.mark.parametrize(
    ("how", "launcher", "world"),
    [
        ("mpiexec", f"{HYDRA} -n 2 -ppn 1", "mpi"),
        ("mpiexec", f"{HYDRA} -n 2 -ppn 1", "torch"),
        ("srun --mpi=pmi2", "srun --mpi=pmi2", "mpi"),
        ("srun --mpi=pmi2", "srun --mpi=pmi2", "torch"),
    ],
)
def test_mpi_starts_learners_on_two_nodes(
    how: str, launcher: str, world: str, begin: Callable[..., ClusterRun], figures: Figures
) -> None:
    if not HYDRA.exists() and shutil.which("mpiexec") is None:
        pytest.skip("no mpiexec: pip install 'murmur[mpi]'")
    run = begin()
    script = run.folder / "mpi.sbatch"
    words = " ".join(f"'{word}'" for word in run.words("--world", world))
    script.write_text(f"#!/bin/bash\n{OVER_TCP}\nexec {launcher} {words}\n")
    run.submit(script=script)
    facts = run.await_end()
    assert facts["JobState"] == "COMPLETED", run.told()
    found = run.gradients()
    assert {g.host for g in found} == {"n1", "n2"}
    assert Counter(g.n for g in found) == Counter(range(MINIBATCHES))
    figures[f"{how}, world {world}"] = {
        "seconds": run.seconds(),
        "again": run.again(),
        "undone": len(run.undone(MINIBATCHES)),
    }
