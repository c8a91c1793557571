"""Held-out loss and word errors at equal samples: is the model of many learners as good as that of one?

    python benchmarks/equal_samples.py SET [--set task.corpus=FOLDER] [--cache FOLDER] [--jobs 2] [--part NAME]

SET is digits, an4 or librispeech. Real gradients on a virtual cluster of slightly jittering learners, a thread a cell.
Settings follow the number of learners by the rule of `murmur.engine.scaling` (Auto), in both regimes: the minibatch of
all learners stays that of one learner, or grows from a minibatch that is 8 times smaller. Sizes and rules, fixed before
the first row:

Budget: digits 13 epochs of 154 minibatches (8 chunks), AN4 8 of about 250 (8 chunks), LibriSpeech 3 of about 620 (24
chunks, 4.5 million frames): about 2,000 turns at 8 learners in both regimes.
Rates, all at seed 0, by held-out loss on dev, with `Auto(noise=0)`: one learner by ONE_LEARNER times the recipe's rate;
every strategy by TRIALS times the rate found for one learner. Seeds 1 and 2 at the best rate.
Parts, in this order:
    bars      one learner, and the strategies that bars name, at 8 learners; the minibatch stays
    sixteen   the best two asynchronous strategies of `bars` at 16 learners, at their rates; the minibatch stays
    others    all other strategies at 8 learners, seed 0; the minibatch stays
    natural   natural gradient in place of Adam: one learner; SyncSGD, ADPSGD and KAVG(8) at 8 learners, seed 0
    sgd       SGD with momentum in place of Adam: one learner; ADPSGD and quasi-global momentum at 8 learners, seed 0
    four      the strategies of `bars` at 4 learners, at their rates, seed 0
    grows     one learner with the small minibatch, and the strategies of `bars` at 8 learners, seed 0
A difference of word error rates is judged by paired bootstrap over utterances with all their seeds.

Every finished cell is a line of results/equal_samples.jsonl, with the word errors of each test utterance; the script
continues from there. `--jobs` cells run at the same time; figures do not depend on it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from cells import Cell, rows_of
from measure import bar, close
from murmur.comparison.rows import Row, Rows, digest_of
from murmur.comparison.virtual import train as follow
from murmur.core.facts import Facts
from murmur.core.learner import Strategy
from murmur.core.mixing import randomized_ring, ring
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD, NaturalGradientSGD
from murmur.engine.scaling import Auto
from murmur.report.error_rate import difference
from murmur.run.configuration import configure, resolved
from murmur.simulation.planner.table import shown
from murmur.strategies import (
    ADPSGD,
    BMUF,
    KAVG,
    A2CiD2,
    AdaptiveKAVG,
    DelayByOne,
    DiLoCo,
    GossipPGA,
    QuasiGlobal,
    SlowMo,
    StreamingDiLoCo,
    SuperLearners,
    SyncSGD,
)
from murmur.strategies.adaptive_kavg import Geometric, PostLocal, Quadratic
from murmur.worlds.virtual.cluster import Cluster, LognormalSeconds

KIND = "study"
KEPT = Path(__file__).parents[1] / "results" / "equal_samples.jsonl"
FORMAT = 1  # to be raised with a change of recipes or code that changes figures
SEEDS, ONE_LEARNER, TRIALS = (0, 1, 2), (0.5, 1.0, 2.0, 4.0), (1.0, 2.0)
OTHER_RATES = {"natural": (0.1, 0.2, 0.4, 0.8, 1.6), "sgd": (0.1, 0.3, 1.0)}  # of one learner
ALONE = "one learner"
ADPSGD_LOCAL, ADPSGD_AVERAGED = "ADPSGD(randomized_ring)", "ADPSGD(randomized_ring, moments='averaged')"
SUPER = "SuperLearners(ADPSGD(randomized_ring, moments='averaged'), 2)"
QSR = "AdaptiveKAVG(quadratic, moments='averaged')"  # as many averages as K = 8 over a cosine, whose mean square is 3/8
BARS: dict[str, Strategy] = {
    ADPSGD_AVERAGED: ADPSGD(randomized_ring, moments="averaged"),
    SUPER: SuperLearners(ADPSGD(randomized_ring, moments="averaged"), 2),
    "DelayByOne(moments='averaged')": DelayByOne(moments="averaged"),
    "KAVG(8, moments='averaged')": KAVG(8, moments="averaged"),
    "BMUF(8, eta=0.5, moments='averaged')": BMUF(8, eta=0.5, moments="averaged"),
}
OTHERS: dict[str, Strategy] = {
    ADPSGD_LOCAL: ADPSGD(randomized_ring),
    "SyncSGD": SyncSGD(),
    "KAVG(8)": KAVG(8),
    "DelayByOne": DelayByOne(),
    "SuperLearners(ADPSGD(randomized_ring), 2)": SuperLearners(ADPSGD(randomized_ring), 2),
    "GossipPGA(8)": GossipPGA(8),
    "GossipPGA(8, moments='averaged')": GossipPGA(8, moments="averaged"),
    "SlowMo(8)": SlowMo(8),
    "SlowMo(8, moments='averaged')": SlowMo(8, moments="averaged"),
    "DiLoCo(8)": DiLoCo(8),
    "BMUF(8, eta=0.5)": BMUF(8, eta=0.5),
    "BMUF(8, eta=0.5, moments='at_outer')": BMUF(8, eta=0.5, moments="at_outer"),
    "KAVG(2, moments='averaged')": KAVG(2, moments="averaged"),
    "AdaptiveKAVG(8 to 1)": AdaptiveKAVG(K=Geometric(8, 1)),
    "StreamingDiLoCo(8, 2, 2)": StreamingDiLoCo(8, 2, 2),
    "A2CiD2(ring)": A2CiD2(ring),
    "AdaptiveKAVG(PostLocal(8, 0.5), moments='averaged')": AdaptiveKAVG(K=PostLocal(8, 0.5), moments="averaged"),
    QSR: AdaptiveKAVG(K=Quadratic(3**0.5), moments="averaged"),
}
WITH_MOMENTUM: dict[str, Strategy] = {"QuasiGlobal(randomized_ring)": QuasiGlobal(randomized_ring)}
STRATEGIES = {ALONE: SyncSGD(), **BARS, **OTHERS, **WITH_MOMENTUM}
OF_OPTIMIZER = {
    "natural": ("SyncSGD", ADPSGD_LOCAL, ADPSGD_AVERAGED, "KAVG(8, moments='averaged')"),
    "sgd": (ADPSGD_LOCAL, ADPSGD_AVERAGED, *WITH_MOMENTUM),
}
LIMITED = {ADPSGD_LOCAL: 1.05, ADPSGD_AVERAGED: 1.05, SUPER: 1.05, "DelayByOne(moments='averaged')": 1.05}
BLOCKS = ("KAVG", "SlowMo", "BMUF", "DiLoCo")  # K-step averaging and its forms with outer momentum


class Corpus(StrEnum):
    """Sets of the study."""

    DIGITS = "digits"
    AN4 = "an4"
    LIBRISPEECH = "librispeech"


class Part(StrEnum):
    """Parts of the study, in the order in which bars need them."""

    BARS = "bars"
    SIXTEEN = "sixteen"
    OTHERS = "others"
    NATURAL = "natural"
    SGD = "sgd"
    FOUR = "four"
    GROWS = "grows"


SETTINGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "digits": ("digits_demo", ("budget.epochs=13",)),
    "an4": (
        "an4",
        ("task.network.hidden=128", "task.chunks.size=8", "budget.epochs=8", "task.decoding.scored=none"),
    ),
    "librispeech": (
        "librispeech",
        (
            "task.network.hidden=160",
            "task.front.speeds=(1.0,)",
            "budget.epochs=3",
            "task.decoding.scored=none",
            "task.decoding.tune_every=6",
        ),
    ),
}

STAGES_OF_STUDY = ("task.hmm.lda=none", "task.hmm.sat=none")
PINNED: dict[str, tuple[str, ...]] = {  # what recipes had when the study began; not part of a row's digest
    "digits": (),
    "an4": (*STAGES_OF_STUDY, "task.front.input=NetworkInput()"),
    "librispeech": (
        *STAGES_OF_STUDY,
        "task.front.input=NetworkInput()",
        "task.decoding.network.scales=(0.1, 0.12, 0.14, 0.165)",
    ),
}


@dataclass(frozen=True)
class Settings:
    """A run: strategy by name, learners, rate over that of the recipe, seed, regime, optimizer."""

    name: str
    learners: int = 1
    rate: float = 1.0
    seed: int = 0
    grows: bool = False
    optimizer: str = "adam"

    def experiment(self, base: Experiment) -> Experiment:
        """Return the experiment of the run."""
        task: Any = replace(base.task, seed=self.seed)  # type: ignore[type-var]
        if self.grows:
            task = replace(task, chunks=replace(task.chunks, size=max(1, task.chunks.size // 8)))
        factor = self.rate / 8**0.5 if self.grows else self.rate  # of a minibatch 8 times smaller
        optimizer: Any = base.optimizer
        momentum = 0.0 if self.name in WITH_MOMENTUM else 0.9
        if self.optimizer == "natural":
            optimizer = NaturalGradientSGD(lr=self.rate, momentum=momentum, keep_rate=True)
        elif self.optimizer == "sgd":
            optimizer = SGD(lr=self.rate * (1 - 0.9), momentum=momentum)
        else:
            optimizer = replace(optimizer, lr=optimizer.lr * factor)
        scaling = Auto("grows" if self.grows else "stays", noise=0.0)  # the trials find the rate
        strategy = STRATEGIES[self.name]
        if self.name == QSR:
            strategy = AdaptiveKAVG(K=Quadratic(3**0.5 * optimizer.lr), moments="averaged")
        return replace(base, task=task, strategy=strategy, seed=self.seed, scaling=scaling, optimizer=optimizer)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Study:
    """A set with its settings and rows; without jobs, rows that are missing are left out."""

    corpus: Corpus
    base: Experiment
    jobs: int
    done: dict[str, Row]

    def key(self, cell: Settings) -> str:
        """Return the digest of a run: of its settings here, and of FORMAT for those of recipes and code."""
        recipe, fixed = SETTINGS[self.corpus]
        return digest_of([FORMAT, self.corpus, recipe, fixed, vars(cell), shown(STRATEGIES[cell.name])])

    def rows(self, runs: Sequence[Settings]) -> list[Row]:
        """Return the rows of runs, after the missing ones have been made."""
        cells = [Cell(run, self.key(run), {"set": str(self.corpus), **vars(run)}) for run in runs]
        rows = rows_of(cells, KEPT, partial(train, self.base), max(1, self.jobs), known_only=self.jobs == 0)
        self.done.update((row["digest"], row) for row in rows)
        return rows

    def tuned(self, cells: Iterable[Settings], rates: Sequence[float]) -> list[Settings]:
        """Return the cells, each at the best of the rates times its own, by held-out loss."""
        grids = [[replace(cell, rate=rate * cell.rate) for rate in rates] for cell in cells]
        self.rows([cell for grid in grids for cell in grid])
        known = [[cell for cell in grid if self.key(cell) in self.done] or grid for grid in grids]
        return [min(grid, key=self.found_loss) for grid in known]

    def found_loss(self, cell: Settings) -> float:
        """Return the held-out loss of a run; infinity if it diverged, or is left out."""
        row = self.done.get(self.key(cell))
        return float("inf") if row is None else loss(row)

    def seeds(self, cells: Iterable[Settings]) -> list[Row]:
        """Return the rows of all seeds."""
        return self.rows([replace(cell, seed=seed) for seed in SEEDS for cell in cells])


def train(base: Experiment, cell: Settings) -> dict[str, Any]:
    """Return the figures of a run; a run that diverges has no loss."""
    torch.set_num_threads(1)
    began = time.process_time()
    experiment = cell.experiment(base)
    course = follow(experiment, Cluster(learners=cell.learners, compute=LognormalSeconds(0.1, 0.1)))
    if course.model is None:
        return {"ended": course.ended, "heldout": {"loss": None}, "processor_seconds": time.process_time() - began}
    trained = time.process_time()
    score: Any = experiment.task.test(course.model)
    return {
        "turns": course.minibatches // cell.learners,
        "heldout": course.figures,
        "test": {name: value for name, value in score.figures.items() if name.startswith("network")},
        "virtual_seconds": course.seconds,
        "processor_seconds": [trained - began, time.process_time() - trained],
        "utterances": digest_of([each.utterance for each in score.recognised]),
        "errors": [(each.errors, each.words) for each in score.recognised],
    }


def loss(row: Row) -> float:
    """Return the held-out loss; infinity if the run diverged."""
    found = row["heldout"]["loss"]
    return float("inf") if found is None else float(found)


def by_utterance(row: Row) -> dict[str, tuple[int, int]]:
    """(errors, words) of each test utterance; rows list them in order, with a digest in place of the names."""
    return {f"{row['utterances']} {n:06d}": (errors, words) for n, (errors, words) in enumerate(row["errors"])}


def compared(cell: Row, rows: Sequence[Row], alone: Sequence[Row]) -> dict[str, Any]:
    """Return loss and word errors of a strategy's runs over those of one learner with the same seeds."""
    seeds = {row["seed"]: row for row in alone}
    pairs = [(seeds[row["seed"]], row) for row in rows if row["seed"] in seeds]
    ratios = [loss(b) / loss(a) for a, b in pairs]
    found: dict[str, Any] = {
        "rate": cell["rate"],
        "turns": cell.get("turns"),
        "seeds": len(pairs),
        "loss": statistics.mean(loss(row) for _, row in pairs),
        "ratio": statistics.mean(ratios),
        "ratios": ratios,
    }
    if all("errors" in row for pair in pairs for row in pair):
        sides = [{row["seed"]: by_utterance(row) for row in side} for side in zip(*pairs, strict=True)]
        wer = difference(sides[0], sides[1])
        found |= {"wer": wer.second.percent}
        found["wer_difference"] = [wer.difference.value, wer.difference.low, wer.difference.high]
    return found


@dataclass
class Table:
    """Figures of the study by line; the lines begin with one learner's."""

    figures: dict[str, dict[str, Any]]

    def add(self, rows: Sequence[Row], alone: Sequence[Row]) -> None:
        """Add the runs of one or several strategies."""
        groups: dict[str, list[Row]] = {}
        for row in rows:
            regime = (", grows" if row["grows"] else "") + (
                "" if row["optimizer"] == "adam" else f", {row['optimizer']}"
            )
            groups.setdefault(f"{row['name']} at {row['learners']}{regime}", []).append(row)
        for name, group in groups.items():
            self.figures[name] = line = compared(group[0], group, alone)
            interval = "{:+.2f} ({:+.2f} to {:+.2f})".format(*line["wer_difference"]) if "wer" in line else ""
            print(
                f"{name:40} rate {line['rate']:<5g} loss {line['loss']:.4f} ({line['ratio'] - 1:+.1%},"
                f" {line['seeds']} seeds)  wer {line.get('wer', float('nan')):.2f} {interval}",
                flush=True,
            )

    def ratio(self, name: str, learners: int) -> float | None:
        """Return the mean ratio of losses, once there are three seeds."""
        line = self.figures.get(f"{name} at {learners}")
        return None if line is None or line["seeds"] < len(SEEDS) else float(line["ratio"])


def asynchronous(name: str) -> bool:
    """True if no gradient waits for an exchange: without lock-step, or with averaging behind the gradient."""
    facts = Facts.of(STRATEGIES[name])
    return not facts.lock_step or facts.staleness == 1


def bars_of(table: Table, corpus: str) -> list[dict[str, Any]]:
    """Return the bars whose rows are there."""
    bars = []
    for learners, limit in ((8, 1.02), (16, 1.05)):
        ratios = {name: table.ratio(name, learners) for name in STRATEGIES if asynchronous(name)}
        found = {name: ratio for name, ratio in ratios.items() if ratio is not None}
        if found:
            best = min(found, key=lambda name: found[name])
            bars.append(
                bar(f"{corpus}, {learners} learners, best asynchronous ({best}): loss ratio", found[best], limit)
            )
    for name, limit in LIMITED.items():
        if (ratio := table.ratio(name, 8)) is not None:
            bars.append(bar(f"{corpus}, 8 learners, {name}: loss ratio", ratio, limit))
    ratios = {name: table.ratio(name, 8) for name in STRATEGIES if name.startswith(BLOCKS) and "(8" in name}
    blocks = {name: ratio for name, ratio in ratios.items() if ratio is not None}
    if blocks:
        best = min(blocks, key=lambda name: blocks[name])
        bars.append(bar(f"{corpus}, 8 learners, averaging every 8 steps ({best}): loss ratio", blocks[best], 1.05))
    for name in (ADPSGD_AVERAGED, SUPER):
        if table.ratio(name, 8) is not None:
            low = table.figures[f"{name} at 8"]["wer_difference"][1]
            bars.append(bar(f"{corpus}, 8 learners, {name}: low end of the difference of WER, points", low, 0.0))
    return bars


def run(study: Study, parts: Sequence[Part]) -> Table:
    """Make the missing rows of some parts, and the table of these."""
    table = Table({})
    alone = study.tuned([Settings(ALONE)], ONE_LEARNER)[0]
    ours = study.seeds([alone])
    table.add(ours, ours)
    at_eight = [replace(alone, name=name, learners=8) for name in BARS]
    best = study.tuned(at_eight, TRIALS)
    later: dict[Part, Callable[[], list[Row]]] = {
        Part.BARS: lambda: study.seeds(best),
        Part.SIXTEEN: lambda: study.seeds(sixteen(study, best)),
        Part.OTHERS: lambda: study.rows(study.tuned([replace(alone, name=n, learners=8) for n in OTHERS], TRIALS)),
        Part.FOUR: lambda: study.rows([replace(cell, learners=4) for cell in best]),
    }
    for part in parts:
        if part in later:
            table.add(later[part](), ours)
        elif part in OF_OPTIMIZER:
            own = study.tuned([replace(alone, optimizer=str(part), rate=1.0)], OTHER_RATES[part])[0]
            many = study.tuned([replace(own, name=name, learners=8) for name in OF_OPTIMIZER[part]], TRIALS)
            table.add(study.rows([own, *many]), study.rows([own]))
        else:
            small = study.tuned([Settings(ALONE, grows=True)], ONE_LEARNER)[0]
            many = study.tuned([replace(small, name=name, learners=8) for name in BARS], TRIALS)
            table.add(study.rows([small, *many]), study.rows([small]))
    return table


def sixteen(study: Study, best: Sequence[Settings]) -> list[Settings]:
    """Return the best two asynchronous strategies at 8 learners, for 16."""
    rows = {cell: study.found_loss(cell) for cell in best if asynchronous(cell.name)}
    return [replace(cell, learners=16) for cell in sorted(rows, key=lambda cell: rows[cell])[:2]]


def main(
    corpus: Annotated[Corpus, typer.Argument(help="Set of the study.")],
    cache: Annotated[Path, typer.Option(help="Folder of features and alignments.")] = Path("runs/cache"),
    settings: Annotated[list[str] | None, typer.Option("--set", help="Change a field, such as task.corpus.")] = None,
    part: Annotated[list[Part] | None, typer.Option(help="Only this part; repeatable. Default: all.")] = None,
    jobs: Annotated[
        int,
        typer.Option(min=0, help="Number of cells at the same time; 0 makes the record of the rows that are there."),
    ] = 1,
) -> None:
    """Train the missing cells, then print the table and the bars."""
    recipe, fixed = SETTINGS[corpus]
    base = configure(resolved(recipe), [f"task.cache={cache}", *PINNED[corpus], *fixed, *(settings or ())])
    study = Study(corpus, base, jobs, Rows(KEPT).read())
    table = run(study, part or list(Part))
    close(f"equal_samples_{corpus}", table.figures, bars_of(table, corpus))


if __name__ == "__main__":
    typer.run(main)
