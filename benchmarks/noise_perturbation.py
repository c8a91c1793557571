"""Averaging with neighbours as a perturbation by noise: synchronous SGD with the deviations of gossip as its noise.

    python benchmarks/noise_perturbation.py --corpus FOLDER_OF_AN4 [--cache FOLDER]

Zhang et al. 2021 (arXiv 2112.01433) explain why decentralised SGD bears larger minibatches than synchronous SGD: its
learners take gradients at perturbed points, with a noise that follows the landscape. The test, on the small network
of `perturbation_cells` (16 learners, 128 frames each, IBM's schedule, 120 updates), at rates around the largest
usable one:

    gossip          ADPSGD over the randomised ring
    synchronous     SyncSGD
    perturbed       SyncSGD whose learner i takes its gradient at w + s_i d_i; w moves by the mean gradient,
                    d_i <- sum_j T_ij (d_j - r (g_j - mean g)), and the sign s_i is drawn anew in every round

d has the recursion of gossip's deviations from the consensus, so s d has their second moments; the sign makes it noise
of mean zero, independent of what the learner has learnt from its own data.

Plan: 3 systems x 4 rates x 3 seeds, 10 s of processor time each: 6 minutes. A run has diverged if a loss is not finite
or above 0.9 of that of the class frequencies. Rule, fixed before the first run: look at the largest rate at which
gossip trains with all seeds. If synchronous SGD trains there with all seeds too, the test says nothing ("undecided");
else the claim "agrees" if the perturbed one trains with all seeds, and "differs" if it does not. Every run is a row of
results/noise_perturbation.jsonl; without --corpus only the record is made.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import count, product
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
import typer

from measure import bar, close
from murmur.core.learner import Learner, Strategy
from murmur.core.mixing import Mixing, randomized_ring
from murmur.run.training import commit
from murmur.strategies import ADPSGD, SyncSGD
from murmur.studies.comparison.rows import Row, Rows, digest_of
from murmur.studies.comparison.virtual import train
from murmur.worlds.virtual.cluster import ConstantSeconds
from perturbation_cells import FIXED, StudyCell, StudyMaterial

NAME, KEPT = "noise_perturbation", Path(__file__).parents[1] / "results" / "noise_perturbation.jsonl"
LEARNERS, FRAMES, BUDGET, SEEDS, DIVERGED = 16, 128, 245_760, (0, 1, 2), 0.9
RATES = (1.0, 2.0, 3.0, 4.0)  # of one learner; the peak is 16 times as high


@dataclass(frozen=True)
class Perturbed:
    """Synchronous SGD at points perturbed by gossip's deviations with random signs."""

    lock_step: ClassVar[bool] = True
    ends_equal: ClassVar[bool] = True
    mixing: Mixing = randomized_ring

    async def __call__(self, me: Learner) -> None:
        size, rank, rounds = me.group.size, me.group.rank, count()
        w = me.weights.snapshot()
        d = torch.zeros_like(w)
        async for g in me.turns():
            own = g.clone()
            mean = await me.group.plain.mean(own)
            me.weights.set_(w)
            me.descend(mean)
            w, k = me.weights.snapshot(), next(rounds)
            d = await me.group.mix(d - me.progress.rate * (own - mean), self.mixing(k, range(size), rank))
            me.weights.set_(w + random.Random(f"{k}/{rank}").choice((-1.0, 1.0)) * d)
        me.weights.set_(w)


SYSTEMS: Mapping[str, Strategy] = {
    "gossip": ADPSGD(randomized_ring),
    "synchronous": SyncSGD(),
    "perturbed": Perturbed(),
}


@dataclass(frozen=True)
class Runner:
    """Finds rows, or makes them if there is a corpus."""

    material: StudyMaterial | None

    def __call__(self, system: str, rate: float, seed: int) -> Row:
        """The row of a run.

        Raises:
            LookupError: there is none, and no corpus to make it.
        """
        cell = StudyCell("SyncSGD()", LEARNERS, rate, 1.0, seed, FRAMES, BUDGET, "ibm")
        digest = digest_of([system, asdict(cell), FIXED])
        known = Rows(KEPT).read().get(digest)
        if known is not None:
            return known
        if self.material is None:
            raise LookupError(f"{system}, rate {rate}, seed {seed} is not in {KEPT.name}: give --corpus to make it")
        began, task = time.process_time(), self.material.frame_task(cell)
        experiment = replace(cell.experiment(task, task.per_epoch), strategy=SYSTEMS[system])
        course = train(experiment, replace(cell.cluster(), compute=ConstantSeconds(1.0)))
        row: Row = {"digest": digest, "system": system, "rate": rate, "seed": seed, "prior": task.loss_of_priors()}
        row |= course.described()
        row |= {"cpu_seconds": round(time.process_time() - began, 1), "commit": commit() or "unknown"}
        row |= {"date": datetime.now(UTC).date().isoformat()}
        Rows(KEPT).append(row)
        print(f"{system}, rate {rate:g}, seed {seed}: {loss(row):.4f}, {row['cpu_seconds']} s", flush=True)
        return row


def loss(row: Row) -> float:
    """Held-out loss, at most that of the class frequencies."""
    found = row["heldout"].get("loss")
    return float(row["prior"]) if found is None or not found < row["prior"] else float(found)


def trained(rows: Sequence[Row]) -> int:
    """Number of runs that have not diverged."""
    return sum(row["ended"] is None and loss(row) <= DIVERGED * row["prior"] for row in rows)


def verdict(found: Mapping[tuple[str, float], Sequence[Row]]) -> tuple[str, float | None]:
    """The outcome of the rule, and the rate that it looks at."""
    usable = [rate for rate in RATES if trained(found["gossip", rate]) == len(SEEDS)]
    if not usable or trained(found["synchronous", max(usable)]) == len(SEEDS):
        return "undecided", max(usable, default=None)
    return ("agrees" if trained(found["perturbed", max(usable)]) == len(SEEDS) else "differs"), max(usable)


def main(
    corpus: Annotated[Path | None, typer.Option(help="Folder of AN4; without it nothing is trained.")] = None,
    cache: Annotated[Path, typer.Option(help="Folder for prepared data.")] = Path("runs/cache"),
) -> None:
    """Run missing cells, write the record."""
    torch.set_num_threads(1)
    material = None if corpus is None else StudyMaterial(corpus, cache)
    if material is not None:
        material.supervised.prepare()
    go = Runner(material)
    found = {(system, rate): [go(system, rate, seed) for seed in SEEDS] for rate, system in product(RATES, SYSTEMS)}
    outcome, rate = verdict(found)
    figures: dict[str, Any] = {
        f"{system}, rate {r:g}": {
            "losses": [loss(row) for row in rows],
            "mean": statistics.mean(map(loss, rows)),
            "trained": trained(rows),
        }
        for (system, r), rows in found.items()
    }
    ours = statistics.mean(map(loss, found["perturbed", rate or RATES[0]]))
    gossip = statistics.mean(map(loss, found["gossip", rate or RATES[0]]))
    bars = [bar(f"perturbed over gossip, held-out loss at rate {rate}, mean of three seeds", ours / gossip, 1.1)]
    print(f"verdict: {outcome}, at rate {rate}")
    close(NAME, {**figures, "verdict": outcome, "at rate": rate}, bars, f"python benchmarks/{NAME}.py --corpus FOLDER")


if __name__ == "__main__":
    typer.run(main)
