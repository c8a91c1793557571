"""Checks on a machine with a GPU, in ten minutes, and one report to send back.

    python benchmarks/gpu_check.py          (make gpu-check)
    python benchmarks/gpu_check.py --dry    (the same parts on the processor, at tiny size)

Parts:

- tests: the tests marked `gpu`.
- overlap: the share of the time of minibatches' copies during which kernels compute, from a timeline of torch.profiler.
- lstm: a step of IBM's BLSTM, the Trainer's against a plain loop with cuDNN's layers (`lstm_step.py`).
- adpsgd: two learners with ADPSGD that share the GPU, against one learner.
- snapshot: a snapshot of the weights on the device, and its copy to the host, beside a step.

A part that fails is reported with its error, and the others go on. The report is `gpu_check.json` and `gpu_check.md` in
the folder of `--out`. Exit status: 0 if every bar holds; 1 if a bar is missed or a part has failed; 77, with one line,
if there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from lstm_step import IBM, Frames, device_steps
from measure import bar, close
from murmur.accelerator.device import is_accelerator, name_of, own_device, synchronize
from murmur.core.flat import Layout
from murmur.core.learner import Strategy
from murmur.core.weights import Weights
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.engine.scaling import Fixed
from murmur.engine.task import Loss
from murmur.engine.trainer import Trainer
from murmur.speech.models import Lstm
from murmur.strategies import ADPSGD, SyncSGD
from murmur.worlds.process.environment import Place, place_of
from murmur.worlds.process.launcher import Launch
from murmur.worlds.process.world import ProcessWorld
from overhead import Chunks

KIND = "study"
ROOT = Path(__file__).parents[1]
NO_GPU_STATUS = 77  # of a test that is skipped, for GNU Automake and Meson
TEST_SECONDS = 300
TESTS = ("tests/accelerator", "tests/core", "tests/engine", "tests/papers")
Found = tuple[dict[str, Any], list[dict[str, Any]]]  # figures and bars of a part
Interval = tuple[float, float]


@dataclass(frozen=True)
class Size:
    """Sizes of all parts.

    Attributes:
        device: Device of all parts.
        tests: Files and folders with tests.
        lstm: Task of the part `lstm`.
        repeats: Repeats of timings.
        width: Width of the layers of the other parts.
        rows: Rows of a minibatch of the other parts.
        minibatches: Minibatches of a run.
    """

    device: str
    tests: tuple[str, ...]
    lstm: Frames
    repeats: int
    width: int
    rows: int
    minibatches: int


def full(device: str) -> Size:
    lstm = Frames(256, inputs=260, outputs=32_000, network=IBM, precision="bfloat16", device=device)
    return Size(device, TESTS, lstm, repeats=7, width=4096, rows=8192, minibatches=60)


def tiny() -> Size:
    lstm = Frames(4, 5, inputs=6, outputs=7, network=Lstm(hidden=8, layers=1))
    return Size("cpu", ("tests/core/test_weights.py",), lstm, repeats=1, width=16, rows=8, minibatches=6)


@dataclass(frozen=True)
class Wide(Chunks):
    """Layers of one width, whose minibatches lie on the host."""

    width: int = 16
    rows: int = 8

    def model(self) -> nn.Module:
        layers = [part for _ in range(4) for part in (nn.Linear(self.width, self.width), nn.Tanh())]
        return nn.Sequential(*layers)

    @cached_property
    def drawn(self) -> list[Tensor]:
        draw = torch.Generator().manual_seed(1)
        return [torch.randn(self.rows, self.width, generator=draw) for _ in range(4)]

    def minibatch(self, n: int) -> Tensor:  # type: ignore[override]
        return self.drawn[n % 4]

    def loss(self, model: nn.Module, minibatch: Tensor) -> Loss:  # type: ignore[override]
        return Loss((model(minibatch) - minibatch).square().mean(1).sum(), float(len(minibatch)))

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        x = self.drawn[0].to(next(model.parameters()).device)
        with torch.no_grad():
            return {"loss": float(self.loss(model, x).total) / len(x)}


def gpu_tests(size: Size) -> Found:
    """Numbers of tests marked `gpu` that passed, failed and were skipped."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tests.xml"
        words = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", f"--junitxml={file}", *size.tests]
        ran = subprocess.run(words, cwd=ROOT, timeout=TEST_SECONDS, capture_output=True, text=True, check=False)
        if not file.exists():
            raise RuntimeError(f"pytest wrote no report: {(ran.stdout + ran.stderr)[-500:]}")
        suite = ElementTree.parse(file).getroot().find("testsuite")
    assert suite is not None
    counted = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    failed = [case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None]
    bars = [bar("tests marked gpu that failed", counted["failures"] + counted["errors"], 0)]
    if is_accelerator(size.device):
        bars.append(bar("tests marked gpu that ran", counted["tests"] - counted["skipped"], 1, at_most=False))
    return {**counted, "failed": failed}, bars


def covered(parts: Sequence[Interval], by: Sequence[Interval]) -> float:
    """Share of the length of some intervals that lies in the union of others; 0 without length."""
    merged: list[list[float]] = []
    for start, end in sorted(by):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    inside = sum(max(0.0, min(end, last) - max(start, first)) for start, end in parts for first, last in merged)
    length = sum(end - start for start, end in parts)
    return inside / length if length else 0.0


def overlap(size: Size) -> Found:
    """Share of the time of copies of minibatches during which kernels compute."""
    on_gpu = is_accelerator(size.device)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as timeline:
        trained(size, SyncSGD(), size.minibatches)
    kind = DeviceType.CUDA if on_gpu else DeviceType.CPU
    done = [e for e in timeline.events() if e.device_type == kind and not e.is_user_annotation]
    copies = [(e.time_range.start, e.time_range.end) for e in done if "HtoD" in e.name]
    kernels = [(e.time_range.start, e.time_range.end) for e in done if not e.name.startswith("Mem")]
    share = covered(copies, kernels)
    figures = {"copies": len(copies), "kernels": len(kernels), "share_of_copies_under_kernels": share}
    return figures, [bar("share of copies under kernels", share, 0.8, at_most=False)] if on_gpu else []


def trained(size: Size, strategy: Strategy, minibatches: int, place: Place | None = None) -> dict[str, float]:
    """Train; return the seconds in all, and the held-out loss of the consensus where it is computed."""
    task = Wide(width=size.width, rows=size.rows)
    experiment = Experiment(task, strategy, Budget(minibatches=minibatches), SGD(0.1), scaling=Fixed())
    world = (
        ProcessWorld(Place(0, 1, 0, "127.0.0.1", 0), size.device, store=HashStore())
        if place is None
        else ProcessWorld(place, size.device, timeout_seconds=60)
    )
    began = time.perf_counter()
    outcome = Trainer(experiment, world).fit()
    return {"seconds": time.perf_counter() - began, **outcome.figures}


def adpsgd(size: Size) -> Found:
    """Two learners that share the device against one: minibatches a second, and the losses of the consensus."""
    alone = trained(size, ADPSGD(), size.minibatches)
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, "--learner", folder, *(["--dry"] if size.device == "cpu" else [])]
        status = Launch(lambda place, resume: words, learners=2).run()
        if status != 0:
            raise RuntimeError(f"two learners ended with status {status}")
        both = [json.loads(file.read_text()) for file in sorted(Path(folder).glob("*.json"))]
    loss = next(each["loss"] for each in both if "loss" in each)
    speed = alone["seconds"] / max(each["seconds"] for each in both)
    figures = {"alone": alone, "two_learners": both, "speed_of_two_over_one": speed}
    return figures, [bar("ADPSGD, 2 learners on one device: loss / loss of one", loss / alone["loss"], 1.1)]


def learner(size: Size, place: Place, folder: Path) -> None:
    found = trained(size, ADPSGD(), size.minibatches, place)
    (folder / f"{place.rank}.json").write_text(json.dumps(found))


def median_seconds(size: Size, run: Callable[[], object]) -> float:
    """Median seconds of a function, with the work that it leaves to the device."""
    times = []
    for _ in range(3 + size.repeats):
        synchronize(size.device)
        began = time.perf_counter()
        run()
        synchronize(size.device)
        times.append(time.perf_counter() - began)
    return statistics.median(times[3:])


def snapshot(size: Size) -> Found:
    """Seconds of a snapshot of the LSTM's weights, of one with its copy to the host, and of a gradient."""
    task = size.lstm
    model = task.model().to(size.device)
    weights = Weights(Layout.trainable(model))

    def gradient() -> None:
        task.loss(model, task.minibatch(0)).total.backward()
        model.zero_grad()

    step = median_seconds(size, gradient)
    kept = median_seconds(size, weights.snapshot)
    sent = median_seconds(size, lambda: weights.snapshot().cpu())
    million = weights.layout.numel / 1e6
    figures = {"million_weights": million, "gradient_seconds": step, "snapshot_seconds": kept, "to_host_seconds": sent}
    bars = [bar("snapshot / gradient", kept / step, 0.05)] if is_accelerator(size.device) else []
    return figures, bars


PARTS: dict[str, Callable[[Size], Found]] = {
    "tests": gpu_tests,
    "overlap": overlap,
    "lstm": lambda size: device_steps(size.lstm, size.repeats),
    "adpsgd": adpsgd,
    "snapshot": snapshot,
}


def checked(size: Size, names: Sequence[str]) -> Found:
    """Run parts one after the other; a part that raises has its error as a figure, and a bar that is missed."""
    figures: dict[str, Any] = {"device": name_of(size.device) if is_accelerator(size.device) else size.device}
    bars: list[dict[str, Any]] = []
    for name in names:
        began = time.perf_counter()
        try:
            found, held = PARTS[name](size)
        except Exception as error:
            traceback.print_exc()
            found, held = {"error": f"{type(error).__name__}: {error}"}, [bar(f"{name} failed", 1, 0)]
        figures[name] = {**found, "part_seconds": round(time.perf_counter() - began, 1)}
        bars += held
        print(f"{name}: {json.dumps(figures[name])}", flush=True)
    return figures, bars


def page(figures: Mapping[str, Any], bars: Sequence[Mapping[str, Any]]) -> str:
    """The report in Markdown."""
    lines = [f"# murmur on {figures['device']}, torch {torch.__version__}", "", "| bar | value | limit | holds |"]
    lines += ["|---|---|---|---|"]
    lines += [f"| {b['what']} | {b['value']:.4g} | {b['bar']:g} | {'yes' if b['holds'] else '**no**'} |" for b in bars]
    for name, found in figures.items():
        if isinstance(found, Mapping):
            lines += ["", f"## {name}", "", "```json", json.dumps(found, indent=1), "```"]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="run the parts on the processor, at tiny size")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "gpu_check", help="folder of the report")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--learner", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    device = "cpu" if args.dry else own_device(0)
    if not args.dry and device == "cpu":
        print("gpu_check: no GPU that PyTorch can use; nothing is checked")
        return NO_GPU_STATUS
    size = tiny() if args.dry else full(device)
    place = place_of()
    if args.learner is not None and place is not None:
        learner(size, place, args.learner)
        return 0
    figures, bars = checked(size, args.parts)
    args.out.mkdir(parents=True, exist_ok=True)
    result = {"benchmark": "gpu_check", "figures": figures, "bars": bars}
    (args.out / "gpu_check.json").write_text(json.dumps(result, indent=1) + "\n")
    (args.out / "gpu_check.md").write_text(page(figures, bars))
    print(f"report: {args.out}/gpu_check.json and gpu_check.md")
    if args.dry:
        print(json.dumps(result))
    else:
        close("gpu_check", figures, bars)
    return 0 if all(b["holds"] for b in bars) else 1


if __name__ == "__main__":
    raise SystemExit(main())
