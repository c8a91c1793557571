"""Cost of frequent averaging: a job per iteration, as in stock Kaldi, against learners that stay alive.

Two learners average a network of the size of an LSTM 3x256 every 25,000 to 1,600,000 frames per learner. The step takes
the time of a device of 60,000 frames a second without using the processor; all else is real. Kaldi's side
(`peers/kaldi_job.py`) starts one process per learner and iteration, which reads the model, opens its archive, trains
and writes the model, then an averaging process. The same jobs also run in threads of one process, which favours Kaldi.
Our side: KAVG in two processes over a prepared corpus, minibatches prepared in the background, models averaged by
message. Then each source of gain is switched off in turn. The figure goes to results/.

    python benchmarks/averaging_frequency.py [--small] [--kept FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from measure import bar, close
from murmur.core.learner import Learner
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.engine.record import Record
from murmur.engine.scaling import Fixed
from murmur.engine.task import Loss, Score
from murmur.engine.trainer import Trainer
from murmur.speech.features.chunks import AlignedFrames, ChunkBatch, Chunks, ChunkTable
from murmur.speech.features.shards import FrameStore, make, open_store
from murmur.strategies import KAVG
from murmur.worlds.process.environment import place_of
from murmur.worlds.process.launcher import Launch
from murmur.worlds.process.world import ProcessWorld

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "peers"))
import kaldi_job  # noqa: E402

KIND = "bar"
NAME = "averaging_frequency"
LEARNERS, PARAMETERS, BINS = 2, 2_100_000, 40
FRAMES_PER_SECOND, FRAMES_PER_CHUNK, CONTEXT = 60_000.0, 100, 12
CHUNKS = Chunks(FRAMES_PER_CHUNK, CONTEXT, CONTEXT, kaldi_job.CHUNKS_PER_MINIBATCH)
SIZES = {25_000: 20, 50_000: 10, 100_000: 6, 200_000: 3, 600_000: 2, 1_600_000: 1}  # frames: iterations
SMALL = (25_000, 100_000, 600_000)
PAPER, PAPER_FRAMES = 0.549, 600_000


class Vector(nn.Module):
    """A network of parameters without a function."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((PARAMETERS,), 0.01))


@dataclass(frozen=True)
class Device:
    """Real minibatches from a prepared corpus, with a step that takes the time of a device."""

    corpus: Path = field(repr=False)

    @cached_property
    def store(self) -> FrameStore:
        return open_store(self.corpus)

    @cached_property
    def table(self) -> ChunkTable:
        return ChunkTable(self.store.lengths, **asdict(CHUNKS))

    @property
    def per_epoch(self) -> int:
        return 10**9  # no evaluation in between

    @property
    def samples_per_epoch(self) -> float:
        return 1e9

    def prepare(self) -> None:
        pass

    def model(self) -> nn.Module:
        return Vector()

    def minibatch(self, n: int) -> ChunkBatch:
        return self.table.batch(n, self.store)  # no masks: the job per iteration makes none either

    def loss(self, model: nn.Module, minibatch: ChunkBatch) -> Loss:
        assert isinstance(model, Vector)
        frames = float(CHUNKS.size * FRAMES_PER_CHUNK)
        time.sleep(frames / FRAMES_PER_SECOND)
        return Loss((model.w.square().mean() + minibatch.feats[0, 0, 0]) * frames, frames)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        return {}

    def test(self, model: nn.Module) -> Score:
        return Score()


@dataclass(frozen=True)
class FileAveraging:
    """KAVG whose mean goes through files: every learner writes, the first averages, every learner reads."""

    K: int
    folder: Path

    async def __call__(self, me: Learner) -> None:
        rank, turn = me.group.rank, 0
        while me.progress.fraction < 1:
            async for g in me.gradients(at_most=self.K):
                me.descend(g)
            turn += 1
            self.write(f"{turn}-{rank}", me.weights.snapshot())
            if rank == 0:
                self.write(f"{turn}-mean", sum(self.read(f"{turn}-{r}") for r in range(me.group.size)) / me.group.size)
            me.weights.set_(self.read(f"{turn}-mean"))
            if me.reached.fraction >= 1:
                return

    def write(self, name: str, w: Any) -> None:
        np.save(self.folder / f"{name}.part.npy", w.numpy())
        (self.folder / f"{name}.part.npy").rename(self.folder / f"{name}.npy")

    def read(self, name: str) -> Tensor:
        path = self.folder / f"{name}.npy"
        while not path.exists():
            time.sleep(0.002)
        return torch.from_numpy(np.load(path))


@dataclass(frozen=True)
class Side:
    """Settings of our learners.

    Attributes:
        ahead: number of minibatches prepared in the background.
        by_file: average models through files.
        alive: keep learners alive through all iterations; otherwise start them for each.
    """

    ahead: int = 2
    by_file: bool = False
    alive: bool = True


def learner(folder: Path, side: Side, K: int, iterations: int) -> None:
    """Run one of our learners; write the end of each step and the time spent waiting for data."""
    torch.set_num_threads(1)
    place = place_of()
    assert place is not None
    steps: list[tuple[float, float]] = []

    def note(record: Record) -> None:
        if record.kind == "step":
            steps.append((time.monotonic(), record.data_seconds))

    strategy = FileAveraging(K, folder) if side.by_file else KAVG(K)
    budget = Budget(minibatches=(iterations * K) * LEARNERS)
    experiment = Experiment(
        Device(folder / "corpus"), strategy, budget, SGD(0.01, momentum=0.5), prefetch=side.ahead, scaling=Fixed()
    )
    Trainer(experiment, ProcessWorld(place, timeout_seconds=120), observers=lambda _: (note,)).fit()
    (folder / f"steps-{place.rank}.json").write_text(json.dumps(steps))


def steps_per_iteration(frames: int) -> int:
    return max(1, round(frames / (CHUNKS.size * FRAMES_PER_CHUNK)))


def launch(folder: Path, side: Side, K: int, iterations: int) -> float:
    """Seconds of a whole run, including start and end."""
    words = [sys.executable, __file__, "--learner", json.dumps([str(folder), asdict(side), K, iterations])]
    began = time.monotonic()
    if Launch(lambda place, resume: words, LEARNERS, threads=1).run() != 0:
        raise SystemExit("our learners failed")
    for left in folder.glob("[0-9]*-*.npy"):
        left.unlink()
    return time.monotonic() - began


@dataclass(frozen=True)
class Took:
    """Seconds of an iteration: elapsed, of steps alone, and of starting and ending interpreters."""

    seconds: float
    compute: float
    starting: float = 0.0


def ours(folder: Path, side: Side, frames: int, iterations: int) -> Took:
    """Median over iterations and learners, without the first iteration, which opens everything."""
    K = steps_per_iteration(frames)
    if not side.alive:
        whole = [launch(folder, side, K, 1) for _ in range(min(2, iterations))]
        return Took(statistics.median(whole), K * step_seconds(folder, K))
    launch(folder, side, K, iterations + 1)
    walls = []
    for rank in range(LEARNERS):
        ends = [t for t, _ in json.loads((folder / f"steps-{rank}.json").read_text())][K - 1 :: K]
        walls += [b - a for a, b in pairwise(ends)]
    return Took(statistics.median(walls), K * step_seconds(folder, K))


def step_seconds(folder: Path, K: int) -> float:
    """Seconds of a step with its minibatch ready and no averaging before it: median of those inside iterations."""
    found = []
    for rank in range(LEARNERS):
        steps = json.loads((folder / f"steps-{rank}.json").read_text())
        pairs = list(pairwise(steps))
        found += [b[0] - a[0] - b[1] for i, (a, b) in enumerate(pairs) if (i + 1) % K]
    return statistics.median(found) if found else CHUNKS.size * FRAMES_PER_CHUNK / FRAMES_PER_SECOND


def kaldi_processes(folder: Path, frames: int, iterations: int) -> Took:
    """A process per learner and iteration, then one that averages."""
    job, found = [sys.executable, str(HERE / "peers" / "kaldi_job.py")], []
    archive = f"archive-{frames}"
    for iteration in range(iterations):
        began = time.time()
        training = [
            subprocess.Popen(
                [
                    *(*job, "train", "model.npy", f"{archive}-{r}", str(iteration), f"out-{r}.npy"),
                    str(FRAMES_PER_SECOND),
                ],
                cwd=folder,
                stdout=subprocess.PIPE,
                text=True,
            )
            for r in range(LEARNERS)
        ]
        said = [[float(word) for word in process.communicate()[0].split()] for process in training]
        if any(process.returncode for process in training):
            raise SystemExit("a job of the baseline failed")
        between = time.time()
        names = [f"out-{r}.npy" for r in range(LEARNERS)]
        mean = subprocess.run([*job, "average", "model.npy", *names], cwd=folder, capture_output=True, check=True)
        ready, done = map(float, mean.stdout.split())
        ended = time.time()
        # Interpreters that start, import and end: of the last job, and of the averaging one.
        first = max(s[0] for s in said) - began + between - max(s[1] for s in said)
        found.append((ended - began, first + ready - between + ended - done))
    return Took(statistics.median(s for s, _ in found), 0.0, statistics.median(s for _, s in found))


def kaldi_threads(folder: Path, frames: int, iterations: int) -> Took:
    """The same jobs as threads of one lasting process: no interpreter starts, all else is equal."""
    found = []
    outs = [folder / f"out-{r}.npy" for r in range(LEARNERS)]
    for iteration in range(iterations):
        began = time.monotonic()
        with ThreadPoolExecutor(LEARNERS) as pool:
            jobs = [
                pool.submit(
                    kaldi_job.train,
                    folder / "model.npy",
                    folder / f"archive-{frames}-{r}",
                    iteration,
                    outs[r],
                    FRAMES_PER_SECOND,
                )
                for r in range(LEARNERS)
            ]
            for job in jobs:
                job.result()
            pool.submit(kaldi_job.average, folder / "model.npy", outs).result()
        found.append(time.monotonic() - began)
    return Took(statistics.median(found), 0.0)


def write_archives(folder: Path, frames: int) -> None:
    """Write one archive of examples per learner unless it exists: chunks with their context, a byte per value."""
    if (folder / f"archive-{frames}-0.feats.npy").exists():
        return
    chunks = steps_per_iteration(frames) * kaldi_job.CHUNKS_PER_MINIBATCH
    for r in range(LEARNERS):
        rng = np.random.default_rng(r)
        stem = folder / f"archive-{frames}-{r}"
        width = FRAMES_PER_CHUNK + 2 * CONTEXT
        np.save(stem.with_suffix(".feats.npy"), rng.integers(0, 256, (chunks, width, BINS), np.uint8))
        np.save(stem.with_suffix(".scales.npy"), rng.standard_normal((chunks, 2, BINS)).astype(np.float32))
        np.save(stem.with_suffix(".targets.npy"), rng.integers(0, 500, (chunks, FRAMES_PER_CHUNK), np.uint16))


@dataclass(frozen=True)
class Synthetic:
    """Utterances of 1,000 frames."""

    seed: int

    def utterances(self) -> Any:
        rng = np.random.default_rng(self.seed)
        for n in range(200):
            feats = rng.standard_normal((1000, BINS), dtype=np.float32)
            yield AlignedFrames(f"u{self.seed}-{n:03}", feats, rng.integers(0, 500, 1000))


SIDES: dict[str, Callable[[Path, int, int], Took]] = {
    "ours": lambda *a: ours(a[0], Side(), *a[1:]),
    "job per iteration, processes": kaldi_processes,
    "job per iteration, threads": kaldi_threads,
    "ours, learners started anew": lambda *a: ours(a[0], Side(alive=False), *a[1:]),
    "ours, averaged through files": lambda *a: ours(a[0], Side(by_file=True), *a[1:]),
    "ours, nothing prepared ahead": lambda *a: ours(a[0], Side(ahead=0), *a[1:]),
}
EVERYWHERE = list(SIDES)[:3]


def measure(sizes: Mapping[int, int], kept: Path | None) -> dict[str, dict[int, Took]]:
    """Measure every side at every size, in turn at each size; figures in `kept` are not measured again."""
    known = json.loads(kept.read_text()) if kept is not None and kept.exists() else {}
    found: dict[str, dict[int, Took]] = {name: {} for name in SIDES}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make(folder / "corpus", [Synthetic(seed) for seed in range(5)], "uint8")
        np.save(folder / "model.npy", np.full(PARAMETERS, 0.01, np.float32))
        for frames, iterations in sizes.items():
            for name in EVERYWHERE if frames not in SMALL else SIDES:
                key = f"{name} at {frames}"
                if key not in known:
                    write_archives(folder, frames)
                    known[key] = asdict(SIDES[name](folder, frames, iterations))
                    if kept is not None:
                        kept.write_text(json.dumps(known))
                took = Took(**known[key])
                if name.startswith("job"):  # the same steps, so the same compute
                    took = replace(took, compute=found["ours"][frames].compute)
                found[name][frames] = took
                print(f"{frames:8d} frames  {name:30s} {asdict(took)}", flush=True)
            for left in folder.glob("archive-*"):
                left.unlink()
    return found


def reduction(base: float, our: float) -> float:
    return 1 - our / base


def arithmetic(found: Mapping[str, Mapping[int, Took]]) -> dict[str, Any]:
    """The reduction at 600,000 frames: as measured, and on slower and faster devices with the same overheads."""
    base, our = (found[name][PAPER_FRAMES] for name in ("job per iteration, processes", "ours"))
    kind = found["job per iteration, threads"][PAPER_FRAMES]
    over = {"with start-up": base.seconds - base.compute, "ours": our.seconds - our.compute}
    over["without start-up"] = over["with start-up"] - base.starting
    over["threads"] = kind.seconds - kind.compute
    table = {}
    for speed in (15_000, 30_000, 60_000, 240_000, 1_000_000):
        compute = PAPER_FRAMES / speed
        mine = compute + over["ours"]
        table[speed] = {k: reduction(compute + v, mine) for k, v in over.items() if k != "ours"}
    for speed, row in table.items():
        print(f"600,000 frames at {speed} frames/s = {PAPER_FRAMES / speed:.2f} s of compute: {row}")
    # 1 - C / (C + O) = 0.549 where the overhead O of an iteration is 1.217 times its compute C.
    needed = PAPER / (1 - PAPER)
    matched = (over["with start-up"] - over["ours"] * (1 + needed)) / needed
    print(f"overheads {over}; {PAPER:.1%} is reached where an iteration computes for {matched:.2f} s")
    return {"overhead_seconds": over, "reductions_by_speed": table, "compute_seconds_of_equal_reduction": matched}


def draw(found: Mapping[str, Mapping[int, Took]], path: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - an extra

    mpl.use("svg")
    from matplotlib import pyplot  # noqa: PLC0415

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for name, took in found.items():
        sizes = sorted(took)
        shares = [100 * (1 - took[s].compute / took[s].seconds) for s in sizes]
        left.plot(sizes, shares, marker="o", label=name)
        if name.startswith("job"):
            cut = [100 * reduction(took[s].seconds, found["ours"][s].seconds) for s in sizes]
            right.plot(sizes, cut, marker="o", label=f"against {name}")
    base = found["job per iteration, processes"]
    sizes = sorted(base)
    bare = [100 * reduction(base[s].seconds - base[s].starting, found["ours"][s].seconds) for s in sizes]
    right.plot(sizes, bare, marker="o", linestyle="--", label="against processes less their start-up")
    right.plot([PAPER_FRAMES], [100 * PAPER], marker="*", markersize=14, linestyle="", label="the paper's 54.9 %")
    left.set(xscale="log", xlabel="frames per iteration and learner", ylabel="overhead, % of an iteration")
    left.set_yscale("symlog", linthresh=5)  # noise may lie below 0
    left.axhline(0, color="black", linewidth=0.8)
    right.axhline(0, color="black", linewidth=0.8)
    right.set(xscale="log", xlabel="frames per iteration and learner", ylabel="time saved, %", ylim=(-15, 100))
    for axes in (left, right):
        axes.minorticks_off()
        axes.set_xticks(sizes, [f"{s // 1000}k" for s in sizes])
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--small", action="store_true", help="three sizes only: four minutes on two idle cores")
    parser.add_argument("--kept", type=Path, help="file of what was measured, so that a run may be cut in pieces")
    parser.add_argument("--learner", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.learner:
        folder, side, K, iterations = json.loads(arguments.learner)
        learner(Path(folder), Side(**side), K, iterations)
        return
    torch.set_num_threads(1)
    found = measure({size: n for size, n in SIZES.items() if size in SMALL or not arguments.small}, arguments.kept)
    figures: dict[str, Any] = {name: {s: asdict(t) for s, t in took.items()} for name, took in found.items()}
    figures["at 600k"] = arithmetic(found)
    draw(found, HERE.parent / "results" / f"{NAME}.svg")
    bars = [
        bar(f"our iteration / its compute, {size} frames", took.seconds / took.compute, 1.05)
        for size, took in found["ours"].items()
    ]
    close(NAME, figures, bars)


if __name__ == "__main__":
    main()
