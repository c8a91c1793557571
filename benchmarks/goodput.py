"""Goodput of all strategies on sixteen uneven learners, one of which is killed every minute.

    python benchmarks/goodput.py --plan
    python benchmarks/goodput.py --librispeech FOLDER [--cache FOLDER] [--jobs 2] [--seeds 1]
    python benchmarks/goodput.py --page

The learners, four of each compute time (1, 4/3, 2 and 4 times), are hosts of the virtual world behind links of 100
Mb/s. Gradients are real: those of the BLSTM of `murmur papers rings`, a sixteenth of each of one learner's minibatches,
with rate, schedule and optimizer of that study's one learner, for every strategy. Test is decoded at the end. A
strategy with servers has one more host for each, which is not killed.

Scale: a stated network of 10 million weights takes the place of the trained one in time. With s times the weights of
the trained network, a gradient takes s times the processor seconds of the trained one (`frame_seconds` of
`murmur_papers.studies.networks`), and a vector takes 4 bytes a weight on the wire. At this ratio a link needs as long
for one vector as a fast learner for about ten gradients, whatever the stated size.

Faults: in every minute of the virtual clock a learner is killed at a random moment, and is started again 20 s later.
Learners and moments are drawn by the seed of the run, the same for all strategies. The members of a super-learner end
and start together. A strategy that does not tolerate losses starts again as a whole from its latest checkpoint 20 s
after a kill, as `murmur train --restarts` does; kills during these seconds are left out. Checkpoints are about 30 s
apart there, and 300 s for other strategies, which use them if a loss ends the run nevertheless. A run that is not done
after 200 times the ideal seconds is given up, with the minibatches of its latest checkpoint.

    goodput = samples whose gradients are in the final model / samples of 16 learners in that time that only compute

Seconds are those of the virtual clock until the last step, with the messages of evaluations on the way. A gradient
is in the model if murmur counts its minibatch as done. Undone: gradients that were begun and are not in the model.
The best strategy has the highest goodput among those within 5 % of the held-out loss of one learner, which is as fast
as the fastest one, takes the same samples, and has no faults; if there is none, it has the lowest loss.

Rows are appended to results/goodput.jsonl as they come, and the same command continues. `--dry` runs tiny cells on
generated frames, with rows in runs/goodput.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from cells import Cell, rows_of
from goodput_faults import Launcher, Scale, endure, kills_of
from measure import bar, close
from murmur.comparison.rows import Row, digest_of
from murmur.core.facts import Facts, learners_for
from murmur.core.flat import Layout
from murmur.core.learner import Strategy
from murmur.engine.budget import Budget
from murmur.engine.checkpoints.checkpoint import Checkpoints
from murmur.engine.experiment import Experiment
from murmur.engine.task import test_in
from murmur.engine.trainer import Outcome
from murmur.report.error_rate import difference, spread
from murmur.run.folder.provenance import hardware
from murmur.simulation.planner.timing import time_strategy
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Link
from murmur_papers.studies.cell import COMMIT, StudyCell, StudyMaterial
from murmur_papers.studies.run import build_of
from sixteen_study import FULL as SIXTEEN
from sixteen_study import RATE, generated_task

KIND = "study"
KEPT, DRY_ROWS = (Path(__file__).parents[1] / part for part in ("results/goodput.jsonl", "runs/goodput/dry.jsonl"))
FORMAT = 1  # to be raised with a change of code that changes figures
SGD_RATE = 1.0  # of strategies whose equation needs plain SGD
LEAST_GOODPUT, MOST_POINTS, NEAR, MOST = 0.90, 0.3, 1.05, 200
TIMED = 64  # turns from which the seconds of a run without faults follow
# For the plan alone: seconds of a new launch, of an evaluation on dev and of decoding.
LAUNCH_SECONDS, EVALUATION_SECONDS, DECODING_SECONDS = 3.0, 4.0, 100.0
ALONE = "one learner"
MOMENTS = "moments='averaged'"
ADPSGD = f"ADPSGD(randomized_ring, {MOMENTS})"
STRATEGIES = (
    "SyncSGD()",
    f"KAVG(8, {MOMENTS})",
    f"BMUF(8, eta=0.5, {MOMENTS})",
    f"SlowMo(8, {MOMENTS})",
    f"DiLoCo(16, {MOMENTS})",
    "StreamingDiLoCo(16, 4, 4)",
    f"AdaptiveKAVG(PostLocal(8, 0.5), {MOMENTS})",
    "ParameterAveraging(20000, Jobs(16), optimizer='keep')",
    f"DelayByOne({MOMENTS})",
    f"GossipPGA(8, {MOMENTS})",
    "NoLoCo(16)",
    ADPSGD,
    "A2CiD2(ring)",
    "QuasiGlobal(randomized_ring)",
    "ASGD()",
    "Downpour(8, 8, servers=1)",
    "EASGD(8, servers=1)",
    "DecoupledDiLoCo(16, servers=1)",
    f"SuperLearners({ADPSGD}, 4)",
    f"Compressed({ADPSGD})",
    f"OwnShares({ADPSGD})",
)


FULL = Scale()
DRY = Scale(turns=12, hidden=8, kill_seconds=30.0, restart_seconds=2.0, lease_seconds=1.0, checkpoint_seconds=10.0)


@dataclass(frozen=True)
class Run:
    """A strategy, or one learner alone, with a seed of the data and of the kills."""

    strategy: str
    seed: int = 0

    @property
    def study_cell(self) -> StudyCell:
        text = "SyncSGD()" if self.strategy == ALONE else self.strategy
        cell = StudyCell(strategy=text, rate=RATE, seed=self.seed)
        plain = Facts.of(cell.made).needs_plain_sgd
        return replace(cell, optimizer="SGD", rate=SGD_RATE) if plain else cell

    @property
    def made(self) -> Strategy:
        return self.study_cell.made

    def learners(self, scale: Scale) -> int:
        """Number of learners, servers included."""
        return 1 if self.strategy == ALONE else learners_for(self.made, scale.learners)

    def cluster(self, scale: Scale, trained_weights: int) -> Cluster:
        """The cluster without faults; the first ranks serve. Links are slower, in place of larger vectors."""
        learners, size = self.learners(scale), scale.weights / trained_weights
        link = Link(scale.latency_seconds, scale.bytes_per_second / size)
        factors = {learners - scale.learners + place: scale.slowness(place) for place in range(scale.learners)}
        if self.strategy == ALONE:
            factors = {0: float(scale.learners)}  # its minibatches are whole
        compute = ConstantSeconds(scale.gradient_seconds(trained_weights), factors)
        return Cluster(learners, compute, link, lease_seconds=scale.lease_seconds)


@dataclass(frozen=True)
class Study:
    """The task of the study: speech, or generated frames without a corpus."""

    scale: Scale
    corpus: Path | None = None
    cache: Path = Path("runs/cache")

    def task(self, run: Run) -> Any:
        if self.corpus is None:
            return generated_task(replace(SIXTEEN, hidden=self.scale.hidden), run.seed)
        return StudyMaterial({"librispeech": self.corpus}, self.cache).task(run.study_cell)

    def cells(self, seeds: int, only: Sequence[str] = ()) -> list[Cell[Run]]:
        """The reference and all strategies, seed by seed."""
        runs = [Run(name, seed) for seed in range(seeds) for name in (ALONE, *STRATEGIES)]
        return [
            Cell(run, digest_of([FORMAT, asdict(run), asdict(self.scale), self.corpus is None]), asdict(run))
            for run in runs
            if not only or any(text in run.strategy for text in only)
        ]

    def rows(self, cells: Sequence[Cell[Run]], path: Path, jobs: int = 1, known_only: bool = False) -> list[Row]:
        return rows_of(cells, path, partial(made, self), jobs, known_only)


@dataclass(frozen=True)
class Prepared:
    """A run with its cluster, and its experiment with the interval of its checkpoints.

    Attributes:
        quiet_seconds: seconds of the run without faults, about.
        ideal_seconds: seconds of learners that only compute.
    """

    experiment: Experiment
    cluster: Cluster
    total: int
    quiet_seconds: float
    ideal_seconds: float


def prepared(study: Study, run: Run, task: Any) -> Prepared:
    """Make the experiment of a run; its task must be prepared."""
    scale, plain = study.scale, run.study_cell.experiment(task)
    if scale.turns is not None:
        plain = replace(plain, budget=Budget(minibatches=scale.turns))
    weights = Layout.trainable(task.model()).numel
    cluster = run.cluster(scale, weights)
    scaled = plain.scaled(cluster.learners)
    timed = min(scaled.total, TIMED * scale.learners)
    samples = task.samples_per_epoch / scaled.per_epoch
    sized = replace(cluster, message_bytes=4.0 * weights)
    quiet = time_strategy(run.made, sized, timed, samples).seconds_per_minibatch * scaled.total
    tolerant = Facts.of(run.made).tolerates_loss
    part = (scale.seldom_seconds if tolerant else scale.checkpoint_seconds) / quiet
    passes = plain.budget.total(task) / task.per_epoch
    every = 2 * passes if run.strategy == ALONE else max(1 / task.per_epoch, passes * part)
    ideal = scale.gradient_seconds(weights) * scaled.total / scale.power
    return Prepared(replace(plain, evaluate_every_epochs=every), cluster, scaled.total, quiet, ideal)


@contextmanager
def errors_only() -> Iterator[None]:
    """Log no warnings of the package inside the block: each launch would tell of its checkpoint."""
    log = logging.getLogger("murmur")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


@errors_only()
def made(study: Study, run: Run) -> dict[str, Any]:
    """Train a run through its faults, decode test, and return the figures of its row."""
    torch.set_num_threads(1)
    began, task, scale = time.process_time(), study.task(run), study.scale
    task.prepare()
    it = prepared(study, run, task)
    until = MOST * it.ideal_seconds
    kills = () if run.strategy == ALONE else kills_of(scale, run.seed, until)
    build = "" if study.corpus is None else build_of(task)
    about = {"build": build, "commit": COMMIT, "hardware": hardware(), "torch": torch.__version__}
    about |= {"date": datetime.now(UTC).date().isoformat(), "how": how(it, task)}
    with TemporaryDirectory() as folder:
        launcher = Launcher(it.experiment, it.cluster, kills, scale, Path(folder))
        try:
            course = endure(launcher, scale.restart_seconds, until)
        except FloatingPointError as error:
            return {"ended": str(error), **about}
        done = it.total if course.outcome else minibatches_saved(Path(folder))
    ideal = it.ideal_seconds * done / it.total
    found = {
        "goodput": None if run.strategy == ALONE else ideal / course.seconds,
        "seconds": course.seconds,
        "kills": sum(kill.at_seconds < course.seconds for kill in kills),
        "launches": course.launches,
        "minibatches": done,
        "undone": course.gradients - done,
        "ended": None if course.outcome else f"not done after {MOST} times the ideal seconds",
        "quiet_seconds": it.quiet_seconds,
    }
    words = {} if course.outcome is None else decoded(task, course.outcome)
    return {**found, **words, **about, "cpu_seconds": round(time.process_time() - began, 1)}


def how(it: Prepared, task: Any) -> str:
    """How a run goes on after a kill, with the interval of its checkpoints."""
    passes = it.experiment.budget.total(task) / task.per_epoch
    every = it.quiet_seconds * it.experiment.evaluate_every_epochs / passes
    if it.cluster.learners == 1:
        return "no kills"
    kept = f"checkpoints {every:.0f} s apart"
    return f"without the learner; {kept}" if Facts.of(it.experiment.strategy).tolerates_loss else f"restart; {kept}"


def minibatches_saved(out: Path) -> int:
    part, _ = Checkpoints(out / "checkpoints").newest(0)
    return 0 if part is None else int(part.facts["minibatches"])


def decoded(task: Any, outcome: Outcome) -> dict[str, Any]:
    """Held-out figures of the final model, and the errors of each test utterance with a digest of their names."""
    score = test_in(task, outcome.model, None)
    errors = [(each.errors, each.words) for each in score.recognised]
    names = digest_of([each.utterance for each in score.recognised])
    return {"heldout": outcome.figures, "test": dict(score.figures), "errors": errors, "utterances": names}


def loss_of(rows: Sequence[Row]) -> float:
    """Mean held-out loss; infinity if a run did not end."""
    return statistics.fmean(row["heldout"]["loss"] if "heldout" in row else math.inf for row in rows)


def words_of(rows: Sequence[Row]) -> dict[int, dict[str, tuple[int, int]]]:
    """Errors and words of the utterances, by seed; rows without words are left out."""
    kept = [row for row in rows if row.get("errors")]
    return {r["seed"]: {f"{r['utterances']} {n:06d}": (e, w) for n, (e, w) in enumerate(r["errors"])} for r in kept}


def figures_of(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Figures of each strategy, means of its seeds; words against one learner with the same seeds."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["strategy"], []).append(row)
    alone, found = words_of(groups.get(ALONE, [])), dict[str, dict[str, Any]]()
    for name, those in groups.items():
        figures: dict[str, Any] = {"seeds": len(those), "loss": loss_of(those), "how": those[0]["how"]}
        figures["ended"] = next((row["ended"] for row in those if row["ended"]), None)
        for key in ("goodput", "seconds", "kills", "undone"):
            values = [row[key] for row in those if row.get(key) is not None]
            figures[key] = statistics.fmean(values) if values else None
        words = words_of(those)
        if words:
            rate = spread(words)
            figures["wer"] = [rate.value, rate.low, rate.high]
        if words and words.keys() <= alone.keys():
            apart = difference(alone, words).difference
            figures["apart"] = [apart.value, apart.low, apart.high]
        found[name] = figures
    return found


def best(found: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The strategy with the highest goodput among those with about one learner's loss, or that of the lowest loss."""
    many = {name: row for name, row in found.items() if name != ALONE and row["goodput"] is not None}
    if ALONE not in found or not many:
        return None
    near = [name for name, row in many.items() if row["loss"] <= NEAR * found[ALONE]["loss"]]
    return max(near, key=lambda name: many[name]["goodput"]) if near else min(many, key=lambda name: many[name]["loss"])


def bars_of(found: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The bars whose rows are there."""
    name = best(found)
    if name is None:
        return []
    bars = [bar("goodput of the best strategy", found[name]["goodput"], LEAST_GOODPUT, at_most=False)]
    if "apart" in found[name]:
        bars.append(bar("WER of the best strategy over one learner", found[name]["apart"][0], MOST_POINTS))
    return bars


def page(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The table in Markdown, the highest goodput first."""
    heads = ("strategy", "goodput", "held-out loss", "WER, %", "over one learner, points", "seconds", "kills")
    lines = ["| " + " | ".join((*heads, "undone", "after a kill")) + " |", "|---" * (len(heads) + 2) + "|"]
    for name in sorted(found, key=lambda name: -(found[name]["goodput"] or math.inf)):
        row = found[name]
        words = [f"{w[0]:.2f} ({w[1]:.2f} to {w[2]:.2f})" if (w := row.get(key)) else "" for key in ("wer", "apart")]
        numbers = [f"{row[key]:.0f}" if row[key] is not None else "" for key in ("seconds", "kills", "undone")]
        goodput = "" if row["goodput"] is None else f"{row['goodput']:.3f}"
        loss = f"{row['loss']:.4f}" if math.isfinite(row["loss"]) else row["ended"] or ""
        lines.append("| " + " | ".join((name, goodput, loss, *words, *numbers, row["how"])) + " |")
    return "\n".join(lines)


def show_plan(study: Study, cells: Sequence[Cell[Run]], known: set[str]) -> None:
    """Print cells with their seconds without and with faults, and hours on this machine, by its seconds of a gradient.

    With restarts, a part (interval of kills - restart - half an interval of checkpoints) of the time is of use.
    """
    scale, left, task = study.scale, 0.0, study.task(Run(ALONE))
    task.prepare()
    each = real_seconds(task, scale.learners)
    for cell in cells:
        it = prepared(study, cell.settings, task)
        restarts = cell.settings.strategy != ALONE and not Facts.of(cell.settings.made).tolerates_loss
        lost = scale.restart_seconds + scale.checkpoint_seconds / 2 if restarts else 0.0
        useful = max(0.1, 1 - lost / scale.kill_seconds)
        seconds, points = it.quiet_seconds / useful, 2 + it.quiet_seconds / scale.checkpoint_seconds
        gradients = it.total * (scale.learners if cell.settings.strategy == ALONE else 1) / math.sqrt(useful)
        spent = each * gradients + DECODING_SECONDS + EVALUATION_SECONDS * (points if restarts else 4)
        spent += LAUNCH_SECONDS * (seconds / scale.kill_seconds if restarts else 1)
        left += 0.0 if cell.digest in known else spent
        state = "there" if cell.digest in known else f"about {spent / 60:.0f} min"
        name = f"{cell.settings.strategy}, seed {cell.settings.seed}"
        print(f"{name}: {it.quiet_seconds:.0f} s without faults, about {seconds:.0f} s with them; {state}", flush=True)
    print(f"{len(cells)} cells; about {left / 3600:.1f} hours left")


def real_seconds(task: Any, pieces: int, count: int = 20) -> float:
    """Processor seconds of the gradient of a piece."""
    model, began = task.model(), 0.0
    for number in range(count + 1):
        began = began if number != 1 else time.process_time()  # the first one fills caches
        found = task.loss(model, task.piece(0, number % pieces, pieces))
        found.total.backward()
    return (time.process_time() - began) / count


def options() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--librispeech", type=Path, help="folder of the part of LibriSpeech")
    asked.add_argument("--cache", type=Path, default=Path("runs/cache"), help="folder of features and alignments")
    asked.add_argument("--only", nargs="*", default=[], help="parts of the names of strategies; all by default")
    asked.add_argument("--seeds", type=int, default=1, help="number of seeds")
    asked.add_argument("--jobs", type=int, default=1, help="cells at the same time")
    asked.add_argument("--plan", action="store_true", help="print cells and estimated hours, and end")
    asked.add_argument("--page", action="store_true", help="print the table of the rows that are there, and end")
    asked.add_argument("--dry", action="store_true", help="tiny cells on generated frames")
    return asked.parse_args()


def main() -> None:
    given = options()
    torch.set_num_threads(1)
    study = Study(DRY if given.dry else FULL, None if given.dry else given.librispeech, given.cache)
    kept, known_only = DRY_ROWS if given.dry else KEPT, given.plan or given.page
    if study.corpus is None and not (given.dry or known_only):
        sys.exit("give --librispeech FOLDER, or --dry for generated frames")
    cells = study.cells(given.seeds, given.only)
    if study.corpus is not None and not known_only:
        study.task(Run(ALONE)).prepare()  # before several processes would
    rows = study.rows(cells, kept, given.jobs, known_only)
    if given.plan:
        show_plan(study, cells, {row["digest"] for row in rows})
        return
    found = figures_of(rows)
    print(page(found))
    if given.dry:
        print(json.dumps({"benchmark": "goodput", "figures": found, "bars": bars_of(found)}))
    elif not given.page:
        close("goodput", found, bars_of(found))


if __name__ == "__main__":
    main()
