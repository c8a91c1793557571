"""Held-out loss at equal samples: natural gradient against SGD, one learner, the same small sweep of rates on dev.

    python benchmarks/natural_gradient_samples.py [--cache FOLDER] [--set budget.epochs=2] [RECIPE]

Both with momentum 0.9; the rate is the best of RATES at the first seed by held-out loss, then fixed for the others. If
the best rate lies at an end of the sweep, the sweep continues by STEP beyond that end.
Every run is a line of results/natural_gradient_samples.jsonl; the script continues from there and takes a row for done
if its experiment has the same digest. It also reports the share of SGD's samples after which natural gradient reaches
SGD's best loss, interpolated between evaluation points.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import MISSING, fields, is_dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from cells import Cell, rows_of
from measure import bar, close
from murmur.core.world import Seat
from murmur.engine.experiment import Experiment, describe
from murmur.engine.optim.optimizer import SGD, NaturalGradientSGD
from murmur.engine.record import Record
from murmur.engine.trainer import Trainer
from murmur.run.configuration import configure, resolved
from murmur.strategies import SyncSGD
from murmur.worlds.virtual.world import VirtualWorld

KIND = "study"
RATES, STEP, SEEDS, MARKS = (0.02, 0.06, 0.2, 0.6), 10**0.5, (0, 1, 2), 8
KEPT = Path(__file__).parents[1] / "results" / "natural_gradient_samples.jsonl"
RECORD = KEPT.parent / "bench" / "natural_gradient_samples.json"
SIDES = {"SGD": SGD(momentum=0.9), "natural gradient": NaturalGradientSGD(momentum=0.9)}

Curve = list[tuple[float, float]]  # (samples, held-out loss) at every evaluation point


def key(experiment: Experiment) -> str:
    """Sixteen hexadecimal digits of an experiment, independent of file locations and of fields at their defaults, so
    that a class with a new field keeps its rows.
    """
    task: Any = experiment.task
    corpus = None if task.corpus is None else Path(task.corpus.name)
    placed = replace(experiment, task=replace(task, cache=Path("cache"), corpus=corpus))
    return blake2b(json.dumps(changed(placed), sort_keys=True).encode(), digest_size=8).hexdigest()


def changed(value: Any) -> Any:
    """`describe` of a dataclass without its fields that have their default values."""
    if not is_dataclass(value) or isinstance(value, type):
        return describe(value)
    shown = {"type": type(value).__qualname__}
    for f in fields(value):
        default = f.default if f.default_factory is MISSING else f.default_factory()
        if f.repr and getattr(value, f.name) != default:
            shown[f.name] = changed(getattr(value, f.name))
    return shown


def run(experiment: Experiment, recipe: str, name: str) -> Curve:
    """Train, or find the row of an earlier run; a run that diverges has a curve without points."""
    lr = experiment.optimizer.lr  # type: ignore[attr-defined]
    about = {"recipe": recipe, "name": name, "lr": lr, "seed": experiment.seed}
    [row] = rows_of([Cell(experiment, key(experiment), about)], KEPT, train)
    return [(samples, loss) for samples, loss in row["curve"]]


def train(experiment: Experiment) -> dict[str, Any]:
    """Train an experiment; its curve has no points if it diverges."""
    torch.set_num_threads(1)
    curve: Curve = []

    def observers(_: Seat) -> tuple[Any, ...]:
        def see(record: Record) -> None:
            if record.kind == "evaluation":
                curve.append((record.samples, record.loss))

        return (see,)

    try:
        Trainer(experiment, VirtualWorld(1), observers=observers).fit()
    except FloatingPointError as error:
        print(error)
        curve = []
    return {"curve": curve}


def best(curve: Curve) -> float:
    """Lowest held-out loss of a run; infinite if it diverged."""
    return min((loss for _, loss in curve), default=float("inf"))


def share_to(target: float, curve: Curve) -> float | None:
    """Share of the run's samples at which `curve` first reaches `target`; None if it does not."""
    before: tuple[float, float] | None = None
    for samples, loss in curve:
        if loss <= target:
            part = 1.0 if before is None else (before[1] - target) / (before[1] - loss)
            begun = 0.0 if before is None else before[0]
            return (begun + (samples - begun) * part) / curve[-1][0]
        before = samples, loss
    return None


def compare(base: Experiment, recipe: str) -> dict[str, Any]:
    """Curves of both sides at their best rates, all seeds."""
    found: dict[str, Any] = {}
    for name, optimizer in SIDES.items():

        def of(rate: float, seed: int, name: str = name, optimizer: Any = optimizer) -> Curve:
            task = replace(base.task, seed=seed)  # type: ignore[type-var]
            curve = run(replace(base, task=task, optimizer=replace(optimizer, lr=rate), seed=seed), recipe, name)
            print(f"{name:17} rate {rate:<5} seed {seed}  held-out loss {best(curve):.4f}", flush=True)
            return curve

        sweep = {rate: best(of(rate, SEEDS[0])) for rate in RATES}
        while (rate := min(sweep, key=lambda r: sweep[r])) in (least := min(sweep), most := max(sweep)):
            further = float(f"{least / STEP if rate == least else most * STEP:.1g}")
            sweep[further] = best(of(further, SEEDS[0]))
        curves = [of(rate, seed) for seed in SEEDS]
        found[name] = {"rate": rate, "sweep": sweep, "losses": [best(c) for c in curves], "curves": curves}
    return found


def earlier(recipe: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Figures and bars of the other recipes, from the record of the previous run."""
    if not RECORD.exists():
        return {}, []
    record = json.loads(RECORD.read_text())
    figures = {name: value for name, value in record["figures"].items() if name != recipe}
    return figures, [b for b in record["bars"] if not b["what"].startswith(f"{recipe}:")]


def main(
    recipe: Annotated[str, typer.Argument(help="a recipe of hybrid training, or a file")] = "digits_demo",
    cache: Annotated[Path | None, typer.Option(help="folder of the recipe's stored data")] = None,
    setting: Annotated[list[str] | None, typer.Option("--set", help="name=value of the experiment")] = None,
) -> None:
    """Run the missing experiments, then print the comparison."""
    torch.set_num_threads(1)
    base = configure(resolved(recipe), [*(setting or []), *([f"task.cache={cache}"] if cache else [])])
    epochs = base.budget.total(base.task) / base.task.per_epoch
    base = replace(base, strategy=SyncSGD(), evaluate_every_epochs=epochs / MARKS, averaged_checkpoints=0)
    found = compare(base, recipe)
    sgd, natural = found["SGD"], found["natural gradient"]
    ratios = [n / s for n, s in zip(natural["losses"], sgd["losses"], strict=True)]
    pairs = zip(sgd["losses"], natural["curves"], strict=True)
    shares = [share_to(loss, curve) for loss, curve in pairs]
    told = [1.0 if share is None else share for share in shares]
    print(f"loss ratios {ratios}; shares of the samples to SGD's best loss {shares} (None: not reached)")
    figures, bars = earlier(recipe)
    figures[recipe] = {"found": found, "loss_ratios": ratios, "shares_of_samples": shares}
    bars += [
        bar(f"{recipe}: held-out loss, natural gradient / SGD, mean of seeds", statistics.mean(ratios), 1.0),
        bar(f"{recipe}: samples to SGD's best loss, share of SGD's, mean of seeds", statistics.mean(told), 0.7),
    ]
    close("natural_gradient_samples", figures, bars)


if __name__ == "__main__":
    typer.run(main)
