"""`murmur.join` against DDP, torch's PeriodicModelAverager, accelerate's LocalSGD, torchft's LocalSGD and DiLoCo.

    make peers && .venv/bin/python benchmarks/join_vs_peers.py

The same loop, model, data, two learners on this host, one thread each: samples per second of all learners, and held-out
loss at the end. DDP is compared with SyncSGD, the periodic averagers with KAVG, DiLoCo with BMUF, all with K = 8.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

from measure import bar, close, interleave, median_ratio
from murmur.worlds.process.transport.listener import listen

HERE = Path(__file__).parent
PEERS = HERE.parent / ".venv-peers" / "bin" / "python"
LEARNERS, REPEATS = 2, 3
AGAINST = {
    "ddp": "murmur.SyncSGD",
    "averager": "murmur.KAVG",
    "accelerate": "murmur.KAVG",
    "torchft.LocalSGD": "murmur.KAVG",
    "torchft.DiLoCo": "murmur.BMUF",
}
WITHOUT_EXTRAS = ("ddp", "averager")  # parts of torch


def run(system: str, losses: dict[str, float]) -> float:
    """Samples per second of all learners; stores the loss."""
    python = PEERS if system.startswith(("accelerate", "torchft")) else sys.executable
    with listen() as found:
        port = found.getsockname()[1]
    words = [str(python), str(HERE / "peers" / "run_loop.py"), system]
    # A pipe without a reader would block its writer.
    said = [TemporaryFile("w+") for _ in range(LEARNERS)]  # noqa: SIM115 - read if a learner has failed
    learners = [
        subprocess.Popen([*words, str(r), str(port)], stdout=subprocess.PIPE, stderr=said[r], text=True)
        for r in range(LEARNERS)
    ]
    speeds = []
    for process, file in zip(learners, said, strict=True):
        out, _ = process.communicate(timeout=300)
        found_lines = [line.split()[1:] for line in out.splitlines() if line.startswith("result")]
        if not found_lines:
            file.seek(0)
            raise SystemExit(f"{system} failed:\n{file.read()[-2000:]}")
        speeds.append(float(found_lines[0][0]))
        losses[system] = float(found_lines[0][1])
    return LEARNERS * min(speeds)  # the slower one's clock has seen the whole run


def main() -> None:
    peers = [name for name in AGAINST if name in WITHOUT_EXTRAS or PEERS.exists()]
    if len(peers) < len(AGAINST):
        print("no .venv-peers: run `make peers` to compare with accelerate and torchft")
    losses: dict[str, float] = {}
    systems = [*sorted(set(AGAINST.values())), "murmur.ADPSGD", *peers]
    speeds = interleave({name: partial(run, name, losses) for name in systems}, REPEATS)
    print(f"{'system':18} {'samples/s':>10}   held-out loss")
    for name in systems:
        print(f"{name:18} {sorted(speeds[name])[len(speeds[name]) // 2]:10.0f}   {losses[name]:.4f}")
    bars = [
        bar(f"speed of {AGAINST[name]} over {name}", median_ratio(speeds, AGAINST[name], name), 1.0, at_most=False)
        for name in peers
    ]
    close("join_vs_peers", {"samples_per_second": speeds, "heldout_loss": losses}, bars)


if __name__ == "__main__":
    main()
