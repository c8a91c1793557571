"""A run of the paced toy on the nodes of a cluster: its start, its gradients and their times."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.slurm_cluster import SlurmCluster

HERE = Path(__file__).parent
SCRIPT = HERE.parents[1] / "examples" / "slurm" / "train.sbatch"
EXPERIMENT = HERE / "paced_toy.py"
Figures = dict[str, dict[str, float]]  # by scenario
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "DEADLINE", "OUT_OF_MEMORY"}
LEARNER_SECONDS = 240.0  # for interpreters to start and a run to end, on a busy machine


@dataclass(frozen=True)
class Gradient:
    """One line of the paced toy."""

    n: int
    host: str
    process: int
    moment: float
    restarts: int


@dataclass
class ClusterRun:
    """A run and its job.

    Attributes:
        slurm: Cluster of the run.
        folder: Folder of the test; the run's output is in `folder / "run"`.
        strategy: Text for `murmur train --strategy`.
        job: Number of the latest job started by sbatch.
        began: Time of the start, in seconds of `time.time`.
    """

    slurm: SlurmCluster
    folder: Path
    strategy: str = "KAVG(K=4)"
    job: int = 0
    began: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        program = self.folder / "murmur"
        program.write_text(f"#!{sys.executable}\nfrom murmur.__main__ import main\nmain()\n")
        program.chmod(0o755)
        self.pace(0.01)

    def pace(self, seconds: float) -> None:
        """Set the seconds of each gradient from now on."""
        new = self.folder / "pace.new"
        new.write_text(str(seconds))
        new.rename(self.folder / "pace")

    @property
    def options(self) -> list[str]:
        """Options of `murmur train` for every start of this run."""
        return [
            *("--strategy", self.strategy, "--threads", "1", "--lease-seconds", "10"),
            *("--set", f"task.folder={self.folder}"),
        ]

    def words(self, *more: str) -> list[str]:
        """Return the command line of a learner."""
        return [str(self.folder / "murmur"), "train", str(EXPERIMENT), "--out", "run", *self.options, *more]

    def launch(self, launcher: Sequence[str], *more: str) -> subprocess.CompletedProcess[str]:
        """Run to the end under a launcher such as srun, from outside the nodes."""
        self.began = time.time()
        given = {"OMP_NUM_THREADS": "1"}
        return self.slurm.run([*launcher, *self.words(*more)], cwd=self.folder, more=given, seconds=LEARNER_SECONDS)

    def submit(self, nodes: int = 2, per_node: int = 1, *options: str, script: Path = SCRIPT) -> None:
        """Start the batch example with the run's program in place of `murmur`."""
        own = ["--nodes", str(nodes), "--ntasks-per-node", str(per_node), "--cpus-per-task", "1", "--time", "10"]
        words = ["sbatch", "--parsable", *own, "--output", "job.log", *options, str(script)]
        self.began = time.time()
        done = self.slurm.run(
            [*words, str(EXPERIMENT), "run", *self.options],
            cwd=self.folder,
            more={"MURMUR": str(self.folder / "murmur"), "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr
        self.job = int(done.stdout)

    def facts(self) -> dict[str, str]:
        """State of the job according to Slurm."""
        return dict(re.findall(r"(\S+?)=(\S*)", self.slurm.ask(f"scontrol -o show job {self.job}")))

    def await_gradients(self, number: int, restarts: int = 0) -> None:
        """Wait until the job has taken a number of gradients after a number of restarts."""

        def there() -> bool:
            facts = self.facts()
            assert facts["JobState"] not in ENDED, self.told()
            return sum(g.restarts == restarts for g in self.gradients()) >= number

        self.slurm.wait_for(there, f"{number} gradients after {restarts} restarts", LEARNER_SECONDS)

    def await_end(self) -> dict[str, str]:
        """Wait until the job is over; return its state according to Slurm."""
        self.slurm.wait_for(lambda: self.facts()["JobState"] in ENDED, f"the end of job {self.job}", LEARNER_SECONDS)
        return self.facts()

    def gradients(self) -> list[Gradient]:
        """All gradients so far."""
        path = self.folder / "gradients"
        rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [Gradient(int(n), host, int(process), float(at), int(k)) for n, host, process, at, k in rows]

    def again(self) -> int:
        """Number of gradients of minibatches that had been done before."""
        return sum(times - 1 for times in Counter(g.n for g in self.gradients()).values())

    def undone(self, minibatches: int) -> list[int]:
        """Minibatches without a gradient."""
        return sorted(set(range(minibatches)) - {g.n for g in self.gradients()})

    def figures(self, minibatches: int) -> dict[str, float]:
        """Seconds since the start, minibatches done again and left undone, and seconds of the latest restart."""
        whole = {
            "seconds": round(time.time() - self.began, 1),
            "again": self.again(),
            "undone": len(self.undone(minibatches)),
        }
        moments: dict[int, list[float]] = defaultdict(list)
        for g in self.gradients():
            moments[g.restarts].append(g.moment)
        if len(moments) == 1:
            return whole
        *_, before, after = (moments[k] for k in sorted(moments))
        return {**whole, "restart_seconds": round(min(after) - max(before), 1)}

    def told(self) -> str:
        """The job's output."""
        path = self.folder / "job.log"
        return path.read_text() if path.exists() else ""

    def learners_on(self, node: str) -> list[int]:
        """Processes of this run's learners on a node."""
        return [
            pid for pid, line in self.slurm.processes_on(node) if line.startswith(f"{sys.executable} {self.folder}")
        ]

    def kill_learner(self, node: str) -> None:
        """SIGKILL to a learner on a node."""
        os.kill(self.learners_on(node)[0], 9)
