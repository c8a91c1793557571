"""Readers of the core: checkpoints, models, records, settings, clusters, traces, frames of the store and the mail."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import nn

from murmur.core.errors import DamagedCheckpoint
from murmur.core.flat import Layout
from murmur.core.printable import OBEYED
from murmur.engine.budget import Budget
from murmur.engine.checkpoints.checkpoint import Checkpoints, read_pair, shapes_of, write_pair
from murmur.engine.checkpoints.position import Position, cut_of, read_start, write_start
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.engine.resume import check_resumable
from murmur.engine.scaling import Fixed
from murmur.engine.trainer import Trainer
from murmur.recipes import toy
from murmur.report.page import page
from murmur.report.read import read_run
from murmur.report.watch import Watched, frame
from murmur.run.configuration import configure, typed
from murmur.run.folder.contents import opened, told
from murmur.run.folder.lock import LOCK, holder_of, state_of, take_reason, write_reason
from murmur.run.request import RunRequest
from murmur.run.saved_model import choose, find_model, read_into
from murmur.simulation.run import behind
from murmur.simulation.scenario import compute_times, faults_of, kind_of
from murmur.strategies import ADPSGD
from murmur.worlds.process.membership_server import Instant
from murmur.worlds.process.messages import from_block, receive
from murmur.worlds.process.store_state import StoreState
from murmur.worlds.process.wire_format import (
    PREFIX,
    REQUEST,
    Loan,
    MemoryOffer,
    MessageHead,
    encode_head,
    receive_frame,
)
from murmur.worlds.virtual.cluster import RecordedSeconds
from murmur.worlds.virtual.world import VirtualWorld
from tests.fuzz.harness import Files, Target
from tests.support.frames import sealed

DIGEST = "0" * 16


def model() -> nn.Module:
    """A small checkpoint with weights and buffers."""
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def _write_checkpoints(folder: Path) -> None:
    for done in (10, 20):
        for learner in range(2):
            facts = {"learners": [0, 1], "world": 2, "counters": {"epoch": 1, "loss": 0.5}}
            Checkpoints(folder).save(done, learner, {"weights": torch.arange(5.0), "m": torch.ones(2)}, facts)


def _read_checkpoints(folder: Path) -> None:
    found = Checkpoints(folder)
    for learner in range(3):
        found.newest(learner)
    for stem in sorted(folder.rglob("*.json")):
        read_pair(stem.with_suffix(""))


def _sign(files: Files) -> None:
    """Update the digests of every pair to its present content."""
    for name in sorted(files):
        tensors = f"{name.removesuffix('.json')}.safetensors"
        if name.endswith(".json") and tensors in files:
            try:
                facts = json.loads(files[name])
                facts["digest"], facts["bytes"] = _digest(files[tensors]), len(files[tensors])
                facts.pop("facts_digest", None)
                files[name] = json.dumps(facts).encode()
            except (ValueError, TypeError, AttributeError, RecursionError):
                continue  # no longer an object, so there is nothing to sign


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def _write_models(folder: Path) -> None:
    made = model()
    vectors = {"weights": Layout.trainable(made).gather(), "buffers": Layout.buffers(made).gather()}
    facts = {"experiment": DIGEST, "figures": {"loss": 0.5}, "minibatches": 7, "tensors": shapes_of(made)}
    for name in ("model", "best"):
        write_pair(folder / name, vectors, facts)
    (folder / "score.json").write_text(json.dumps({"model": {"name": "best"}, "test": {"wer": 3.0}}))


def _read_models(folder: Path) -> None:
    read_into(model(), find_model(folder))
    _, stem = choose(folder, "lowest", DIGEST)
    read_into(model(), stem)


def _write_records(folder: Path) -> None:
    step = {"kind": "step", "learner": 0, "samples": 1.0, "seconds": 1.0, "rate": 0.1, "loss": 1.0, "staleness": 2,
            "compute_seconds": 0.5, "data_seconds": 0.0, "waiting_seconds": 0.1,
            "communicating_seconds": 0.1}  # fmt: skip
    mark = {
        "kind": "evaluation",
        "samples": 2.0,
        "seconds": 2.0,
        "epoch": 0.5,
        "figures": {"loss": 1.0, "logprob": -1.0},
    }
    rows = [step, {**step, "learner": 1}, mark, {**mark, "samples": 4.0, "consensus_distance": 0.1}]
    (folder / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    facts = {
        "source": "toy", "settings": ["a=1"], "strategy": "KAVG(K=8)", "learners": 2, "started": "2026-01-01T00:00:00",
        "commit": "abc", "command": ["murmur", "train"], "digest": "d", "versions": {"torch": "2"}, "python": "3.11",
        "experiment": {"type": "Experiment", "strategy": {"type": "KAVG", "K": 8}, "budget": {"epochs": 1.0}},
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(facts))
    score = {"test": {"test wer": 5.0, "test low": 4.0, "test high": 6.0}, "lines": ["l"], "test_seconds": 2.0}
    (folder / "score.json").write_text(json.dumps(score))
    (folder / "phases.json").write_text(json.dumps({"features": 1.0}))
    event = {"name": "e", "cat": "evaluation", "ph": "X", "ts": 0.0, "dur": 100.0, "pid": 0, "tid": 0}
    (folder / "trace.json").write_text("[\n" + json.dumps(event) + "\n]")


def _read_records(folder: Path) -> None:
    run = read_run(folder)
    _ = run.learners, run.simulated, run.headline, run.heldout
    page([run], {})


def _experiment(minibatches: int) -> Experiment:
    task = toy.ToyTask(samples=2, hidden=2, per_epoch=4)
    return Experiment(task, ADPSGD(), Budget(minibatches=minibatches), SGD(0.1), scaling=Fixed())


def _write_run(folder: Path) -> None:
    Trainer(_experiment(8), VirtualWorld(2), folder, resume=False).fit()
    for name in ("learner-0", "learner-1"):
        stem = folder / "checkpoints" / "0000000008" / name
        assert stem.with_suffix(".json").is_file()
    with opened(folder, "toy", resume=True, force=False) as run:
        run.begin()
        run.end(0)
    write_reason(folder, "because")
    write_start(folder, 1, "", Position(4, {4: 5}))
    facts = {"source": "toy", "learners": 2, "started": "2026", "digest": "d", "experiment": {"strategy": "ADPSGD"}}
    (folder / "run.json").write_text(json.dumps(facts))
    (folder / "score.json").write_text(json.dumps({"model": {"name": "best"}, "lines": ["wer 3"], "test": {"wer": 3}}))


def _read_run(folder: Path) -> None:
    _ = state_of(folder), told(folder), holder_of(folder / LOCK), take_reason(folder)
    watched = Watched(folder, lambda: 0.0)
    watched.look()
    with Console(file=io.StringIO()).capture() as shown:
        frame(watched)
    assert not OBEYED.search(shown.get())
    read_start(folder)
    behind(folder)
    scaled = _experiment(12).scaled(2, cut_of(folder))
    with opened(folder, "toy", resume=True, force=False) as run:
        check_resumable(folder, scaled, scaled.task.model())
        run.begin()
        Trainer(_experiment(12), VirtualWorld(2), folder, resume=True).fit()
        run.end(0)


def _write_request(folder: Path) -> None:
    RunRequest(source="toy", settings=("a=1",), init=folder / "a", out=folder, lease_seconds=2.0).write()


def _read_request(folder: Path) -> None:
    assert RunRequest.read(folder / "request.json").to_json()


TRACE = [
    {"name": "gradient", "cat": "compute", "ph": "X", "ts": 10.0 * n, "dur": 5.0 + n, "pid": n % 2, "tid": 0}
    for n in range(6)
]


def _write_trace(folder: Path) -> None:
    (folder / "trace.json").write_text(json.dumps(TRACE))
    (folder / "named.json").write_text(json.dumps({"traceEvents": TRACE}))


def _read_traces(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        times = RecordedSeconds.read(path)
        assert all(times(learner, step) > 0 for learner in range(3) for step in range(5))


SETTINGS = (
    "budget.epochs=2", "strategy.K=4", "task.hidden=32", "optimizer.lr=0.1", "evaluate_every_epochs=0.5",
    "optimizer=SGD(lr=0.1, momentum=0.9)", "schedule=Constant(0.1)", "task.ragged=True", "seed=3",
    "budget.minibatches=9",
)  # fmt: skip
STRATEGIES = (
    "KAVG(K=8)", "ADPSGD(mixing=randomized_ring)", "SuperLearners(ADPSGD(), node_size=2)", "SyncSGD",
    "BMUF(K=4, eta=0.5)",
)  # fmt: skip


def _write_settings(folder: Path) -> None:
    (folder / "settings").write_text("\n".join(SETTINGS))
    (folder / "strategy").write_text("\n".join(STRATEGIES))


def _lines(path: Path) -> list[str]:
    """Text that a shell could have passed, without zero bytes."""
    raw = path.read_bytes() if path.is_file() else b""
    return [line.replace("\0", "") for line in raw.decode("utf-8", "surrogateescape").split("\n")]


def _each(attempts: list[Callable[[], object]]) -> None:
    """Make all attempts; each may be refused by a ValueError with a message."""
    for attempt in attempts:
        try:
            attempt()
        except ValueError as error:
            if not str(error).strip():
                raise AssertionError("an error that says nothing") from error


def _read_settings(folder: Path) -> None:
    settings, texts = _lines(folder / "settings"), _lines(folder / "strategy")
    attempts: list[Callable[[], object]] = [partial(configure, toy.experiment(), [one]) for one in settings]
    attempts += [partial(configure, toy.experiment(), (), text) for text in texts]
    attempts += [partial(typed, text, wanted, "x") for text in settings + texts for wanted in (int, float | None, bool)]
    _each(attempts)


def _write_cluster(folder: Path) -> None:
    for name, words in {
        "kind": "v100-ethernet", "straggler": "0=10x\n3=2.5", "kill": "5@30s\n1@2min", "stop": "3@10s+20s",
        "rejoin": "5@60s", "seconds": "0.1 0.2",
    }.items():  # fmt: skip
        (folder / name).write_text(words)


def _read_cluster(folder: Path) -> None:
    def times() -> None:
        seconds, jitter = (float(word) for word in " ".join(_lines(folder / "seconds")).split()[:2])
        found = compute_times(seconds, jitter, _lines(folder / "straggler"), 8)
        cluster = kind_of(_lines(folder / "kind")[0]).cluster(8, found, 1e6)
        assert cluster.compute(0, 1) > 0

    kills, stops, rejoins = (_lines(folder / name) for name in ("kill", "stop", "rejoin"))
    _each([times, lambda: faults_of(kills, stops, rejoins, 8), lambda: kind_of(_lines(folder / "kind")[0])])


REQUESTS = (
    {"do": "set", "key": "a"},
    {"do": "add", "key": "n", "amount": 3},
    {"do": "wait", "keys": ["a", "n"], "seconds": 0},
    {"do": "check", "keys": ["a"]},
    {"do": "swap", "key": "a", "expected": "616263"},
    {"do": "delete", "key": "a"},
    {"do": "size"},
    {"do": "membership", "act": "enter", "group": "r", "rank": 0, "size": 3, "lease": 5.0},
    {"do": "membership", "act": "beat", "group": "r", "rank": 0, "lease": 5.0, "known": -1, "seconds": 0.0},
    {
        "do": "membership",
        "act": "claim",
        "group": "r",
        "rank": 0,
        "first": 0,
        "total": 9,
        "size": 2,
        "doing": [],
        "done": [],
        "count": 2,
    },
    {"do": "membership", "act": "arrive", "group": "r", "rank": 0, "barrier": "ended"},
    {"do": "membership", "act": "spent", "group": "r", "rank": 0},
    {"do": "membership", "act": "complete", "group": "r", "rank": 0},
    {"do": "membership", "act": "unfinished", "group": "r", "rank": 0},
    {"do": "membership", "act": "waits", "group": "r", "rank": 0},
    {"do": "membership", "act": "fail", "group": "r", "rank": 1, "why": "no reason"},
    {"do": "membership", "act": "leave", "group": "r", "rank": 0},
)


def _write_frames(folder: Path) -> None:
    for number, head in enumerate(REQUESTS):
        (folder / f"{number:02}.frame").write_bytes(encode_head(head, 3, REQUEST) + b"abc")
        (folder / f"{number:02}.json").write_text(json.dumps(head))


def _sent(data: bytes, receive: Callable[[socket.socket], object]) -> object:
    """The result of bytes on a connection that then closes."""
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(5)
        try:
            there.sendall(data[: 1 << 17])
            there.shutdown(socket.SHUT_WR)
            return receive(here)
        except EOFError:
            return None  # cut off before its end


def _read_frames(folder: Path) -> None:
    state, client = StoreState(Instant(0.0)), 0
    state.receive(client, {"do": "set", "key": "a"}, b"abc", Instant(0.0))
    state.receive(client, {"do": "set", "key": "n"}, b"1", Instant(0.0))

    def request(head: object) -> None:
        nonlocal client
        assert isinstance(head, dict)
        client += 1
        state.receive(client, head, b"value", Instant(float(client)))
        state.pass_time(Instant(client + 0.5))
        state.hang_up(client)

    attempts: list[Callable[[], object]] = []
    for path in sorted(folder.glob("*.frame")):
        attempts.append(partial(_sent, path.read_bytes(), lambda line: request(receive_frame(line, REQUEST)[0])))
    for path in sorted(folder.glob("*.json")):
        raw = path.read_bytes()[: 1 << 16]
        attempts.append(partial(_sent, sealed(raw), lambda line: request(receive_frame(line, REQUEST)[0])))
    _each(attempts)


def _write_messages(folder: Path) -> None:
    for number, dtype in enumerate(("float32", "int64", "bfloat16", "uint8")):
        head = MessageHead("world t", dtype, (1.0, 2.5)).encode(64)
        (folder / f"{number}.message").write_bytes(head + bytes(64))
        (folder / f"{number}.json").write_bytes(head[PREFIX.size :])
    offered = MessageHead("world t", "float32", (1.0,), offer=MemoryOffer(7, 8, 9, 10, 1 << 16)).encode(64) + bytes(64)
    (folder / "offered.message").write_bytes(offered)
    lent = MessageHead("world t", "float32", (1.0,), loan=Loan(10, 1, 0, 3), elements=16).encode(0)
    (folder / "lent.message").write_bytes(lent)


def _read_messages(folder: Path) -> None:
    blocks = [path.read_bytes() for path in sorted(folder.glob("*.message"))]
    blocks += [sealed(path.read_bytes()[: 1 << 16], 64) + bytes(64) for path in sorted(folder.glob("*.json"))]
    _each([partial(_sent, block, receive) for block in blocks])
    _each([partial(from_block, np.frombuffer(block, np.uint8)) for block in blocks])


DAMAGE = (ValueError, OSError, DamagedCheckpoint)
TARGETS = {
    "checkpoints": Target(_write_checkpoints, _read_checkpoints, _sign, DAMAGE, plants=True),
    "models": Target(_write_models, _read_models, _sign, DAMAGE, plants=True),
    "records": Target(_write_records, _read_records, plants=True),
    "runs": Target(_write_run, _read_run, _sign, DAMAGE, plants=True),
    "requests": Target(_write_request, _read_request),
    "traces": Target(_write_trace, _read_traces),
    "settings": Target(_write_settings, _read_settings),
    "clusters": Target(_write_cluster, _read_cluster),
    "frames": Target(_write_frames, _read_frames),
    "messages": Target(_write_messages, _read_messages),
}
