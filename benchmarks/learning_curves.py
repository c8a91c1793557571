"""Learning curves of an LSTM for several averaging frequencies, as drawn by Rosciszewski and Kaliski.

    python benchmarks/learning_curves.py --corpus FOLDER_OF_AN4 [--cache FOLDER]

The recipe `an4_ctc` (two bidirectional LSTM layers, CTC over characters) with Kaldi's way of training: parameter
averaging with four jobs, natural gradient, max-change, the rate falling to a tenth, the newest models combined. The
evaluation after every pass gives the log-probability a frame of the correct paths on ten speakers held out; test gives
word errors. The clock is virtual: 0.1 s a minibatch of about 2,100 frames, models of 82 MB (4 layers of 800 cells) over
links of 1 Gb/s, one learner a host.

Plan: at every frequency three rates, 8 passes each, seed 0; the rate with the highest log-probability then trains for
24 passes. 5 x (3 + 1) runs, about 1.2 minutes of processor time for 8 passes: 35 minutes. Every run is a row of
results/learning_curves.jsonl; runs that it holds are not repeated, and without --corpus only the picture is made.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import matplotlib
import torch
import typer
from matplotlib import pyplot as plt

from measure import bar, close
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import NaturalGradientSGD
from murmur.engine.schedule import Exponential
from murmur.recipes import an4_ctc
from murmur.run.training import commit
from murmur.strategies import ParameterAveraging
from murmur.strategies.averaging_rules import Jobs
from murmur.studies.comparison.rows import Row, Rows, digest_of
from murmur.studies.comparison.virtual import train
from murmur.tasks.ctc.task import CtcTask
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Link

NAME, ROOT = "learning_curves", Path(__file__).parents[1]
KEPT, PICTURE = ROOT / "results" / f"{NAME}.jsonl", ROOT / "docs" / f"{NAME}.png"
LEARNERS, FREQUENCIES, RATES = 4, (2_000, 8_000, 32_000, 128_000, 400_000), (10.0, 30.0, 100.0)
TRIAL_EPOCHS, EPOCHS = 8, 24
STEP_SECONDS, MODEL_BYTES, LINK = 0.1, 82e6, Link(1e-4, 1e9 / 8)
CLUSTER = Cluster(LEARNERS, ConstantSeconds(STEP_SECONDS), LINK, message_bytes=MODEL_BYTES)
FIXED = ["an4_ctc", "natural gradient", "exponential to a tenth", LEARNERS, STEP_SECONDS, MODEL_BYTES, repr(LINK)]


@dataclass(frozen=True)
class Cell:
    """One run.

    Attributes:
        frames: frames of each learner between two averages.
        rate: effective learning rate at the beginning.
        epochs: passes over the data.
        seed: seed of weights and order.
    """

    frames: int
    rate: float
    epochs: int = TRIAL_EPOCHS
    seed: int = 0

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits."""
        return digest_of([asdict(self), FIXED])

    def experiment(self, corpus: Path, cache: Path) -> Experiment:
        """The experiment."""
        recipe = an4_ctc.experiment()
        assert isinstance(recipe.task, CtcTask)
        return replace(
            recipe,
            task=replace(recipe.task, corpus=corpus, cache=cache, seed=self.seed),
            strategy=ParameterAveraging(self.frames, Jobs(LEARNERS), rate="by jobs"),
            budget=Budget(epochs=self.epochs),
            optimizer=NaturalGradientSGD(self.rate),
            schedule=Exponential(0.1),
            evaluate_every_epochs=1.0,
            max_gradient_norm=None,
            averaged_checkpoints=0,
            seed=self.seed,
        )


@dataclass(frozen=True)
class Runner:
    """Finds rows, or makes them if there is a corpus."""

    corpus: Path | None
    cache: Path

    def __call__(self, cell: Cell) -> Row:
        """The row of a cell.

        Raises:
            LookupError: there is none, and no corpus to make it.
        """
        known = Rows(KEPT).read().get(cell.digest)
        if known is not None:
            return known
        if self.corpus is None:
            raise LookupError(f"{cell} is not in {KEPT.name}: give --corpus to make it")
        began, experiment = time.process_time(), cell.experiment(self.corpus, self.cache)
        course = train(experiment, CLUSTER)
        row: Row = {"digest": cell.digest, "cell": asdict(cell), **course.described()}
        if cell.epochs == EPOCHS and course.model is not None:
            score = experiment.task.test(course.model)
            row["errors"] = {each.utterance: (each.errors, each.words) for each in score.recognised}
        spent = round(time.process_time() - began, 1)
        row |= {"cpu_seconds": spent, "commit": commit() or "unknown", "date": datetime.now(UTC).date().isoformat()}
        Rows(KEPT).append(row)
        print(f"{cell}: {final(row):.4f}, {spent} s", flush=True)
        return row


def final(row: Row) -> float:
    """Log-probability a frame at the end; -inf if the run ended early."""
    loss = row["heldout"].get("loss")
    return -float(loss) if loss is not None else float("-inf")


def rounds(row: Row) -> float:
    """Averages of a run."""
    return float(row["curve"][-1][0]) / LEARNERS / row["cell"]["frames"]


def word_error_rate(row: Row) -> float:
    """Word error rate on test, in percent."""
    errors, words = (sum(pair[k] for pair in row["errors"].values()) for k in (0, 1))
    return 100.0 * errors / words


def draw(found: Mapping[int, Row]) -> None:
    """Write the picture: log-probability over frames and over virtual time, a curve for each frequency."""
    matplotlib.use("agg")
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
    for place, (frames, row) in enumerate(found.items()):
        curve = row["curve"]
        label = f"{frames:,} frames: {word_error_rate(row):.1f} % WER"
        for ax, xs in zip(axes, ([p[0] / 1e6 for p in curve], [p[2] / 60 for p in curve]), strict=True):
            ax.plot(xs, [-p[1] for p in curve], color=f"C{place}", marker=".", ms=4, lw=1.2, label=label)
    axes[0].set(xlabel="million frames of all learners", ylabel="log-probability a frame")
    axes[1].set(xlabel="virtual minutes", xscale="log")
    for ax in axes:
        ax.grid(alpha=0.3)
        ax.set_ylim(bottom=max(-0.9, ax.get_ylim()[0]))
    axes[0].legend(fontsize=8, title="between averages", title_fontsize=8)
    figure.savefig(PICTURE, dpi=110)
    plt.close(figure)


def figures_of(found: Mapping[int, Row], trials: Mapping[int, Sequence[Row]]) -> dict[str, Any]:
    """Figures of every frequency."""
    return {
        f"{frames} frames": {
            "log-probability a frame": final(row),
            "WER, %": word_error_rate(row),
            "rate": row["cell"]["rate"],
            "averages": rounds(row),
            "virtual minutes": row["curve"][-1][2] / 60,
            "trials": {str(t["cell"]["rate"]): final(t) for t in trials[frames]},
        }
        for frames, row in found.items()
    }


def main(
    corpus: Annotated[Path | None, typer.Option(help="Folder of AN4; without it nothing is trained.")] = None,
    cache: Annotated[Path, typer.Option(help="Folder for prepared data.")] = Path("runs/cache"),
) -> None:
    """Run missing cells, draw the picture, write the record."""
    torch.set_num_threads(1)
    go = Runner(corpus, cache)
    trials = {frames: [go(Cell(frames, rate)) for rate in RATES] for frames in FREQUENCIES}
    best = {frames: max(rows, key=final)["cell"]["rate"] for frames, rows in trials.items()}
    found = {frames: go(Cell(frames, best[frames], EPOCHS)) for frames in FREQUENCIES}
    draw(found)
    minutes = [row["curve"][-1][2] for row in found.values()]
    bars = [
        bar("word error rate of the best frequency, %", min(map(word_error_rate, found.values())), 25.0),
        bar("time of averages after every minibatch over that of the rarest", minutes[0] / minutes[-1], 2.0, False),
    ]
    close(NAME, figures_of(found, trials), bars, command="python benchmarks/learning_curves.py --corpus FOLDER_OF_AN4")


if __name__ == "__main__":
    typer.run(main)
