"""Simulated runs against the trainer in the virtual world, hand calculations and the network's counters."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from murmur.core.errors import SettingError
from murmur.core.group import PeerLost
from murmur.core.learner import Strategy
from murmur.engine.trainer import Trainer
from murmur.recipes import toy
from murmur.simulation.account import Account
from murmur.simulation.planner.timing import time_strategy
from murmur.simulation.run import Failure, attempt, behind, side_by_side, simulate, with_message
from murmur.simulation.scenario import Scenario, Simulation
from murmur.strategies import ADPSGD, ASGD, BMUF, KAVG, DelayByOne, SuperLearners, SyncSGD
from murmur.worlds.virtual.clock import Deadlock, Livelock
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Link
from murmur.worlds.virtual.world import VirtualWorld

SMALL = ("budget.minibatches=24", "task.hidden=8", "task.per_epoch=12", "scaling=Fixed()")
STRATEGIES = ["SyncSGD", "KAVG(K=2)", "DelayByOne", "ADPSGD", "ASGD", "SuperLearners(ADPSGD(), 2)"]


def simulation(out: Path, strategy: str, settings: tuple[str, ...] = SMALL, **scenario: object) -> Simulation:
    given = {"learners": 4, "step_seconds": 0.1, "jitter": 0.2, "kind": "ethernet-1g"} | scenario
    return Simulation("toy", settings, strategy, Scenario(**given), out, tested=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_simulated_run_is_the_trainer_in_the_virtual_world(strategy: str, tmp_path: Path) -> None:
    """The same model to the bit, the same records to the byte; the staleness of every step is counted once."""
    asked = simulation(tmp_path / "a", strategy)
    account = simulate(asked)
    experiment = asked.experiment()
    Trainer(experiment, VirtualWorld(asked.scenario.cluster(experiment)), tmp_path / "b").fit()
    records = (tmp_path / "a" / "records.jsonl").read_bytes()
    assert records == (tmp_path / "b" / "records.jsonl").read_bytes()
    assert (tmp_path / "a" / "trace.json").read_bytes() == (tmp_path / "b" / "trace.json").read_bytes()
    ours, theirs = (load_file(tmp_path / folder / "model.safetensors")["weights"] for folder in "ab")
    assert ours.equal(theirs)
    steps = [r for r in map(json.loads, records.splitlines()) if r["kind"] == "step"]
    assert sum(account.staleness.values()) == len(steps)
    if strategy != "ASGD":  # the steps are the server's
        assert len(steps) == 24
    assert len(account.marks) == 2
    assert (
        account.marks[-1].figures["loss"] == json.loads((tmp_path / "a" / "model.json").read_text())["figures"]["loss"]
    )
    assert json.loads((tmp_path / "a" / "simulated.json").read_text())["hours"] == account.seconds / 3600


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    """Also with lost and restarted learners; another seed gives other results."""
    faults = {"kills": ("1@0.4s",), "rejoins": ("1@0.9s",), "stops": ("2@0.2s+0.3s",), "lease_seconds": 0.2}
    seeds = {"a": 0, "b": 0, "c": 1}
    records = {}
    for name, seed in seeds.items():
        simulate(simulation(tmp_path / name, "ADPSGD(mixing=randomized_ring)", (*SMALL, f"seed={seed}"), **faults))
        records[name] = (tmp_path / name / "records.jsonl").read_bytes()
    assert records["a"] == records["b"] != records["c"]


@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(2), BMUF(2), DelayByOne()])
def test_idle_shares_by_hand(strategy: Strategy) -> None:
    """In lock-step on an instant network all learners wait for one that is ten times slower: 9 of 10 seconds."""
    cluster = Cluster(4, ConstantSeconds(0.1, {2: 10.0}), Link(0.0, 1e15), message_bytes=1.0)
    timing = time_strategy(strategy, cluster, 40)
    idle = [1 - busy / timing.seconds for busy in timing.compute_seconds]
    assert timing.seconds == pytest.approx(10.0)
    assert idle == pytest.approx([0.9, 0.9, 0.0, 0.9])


TOLERANT = ["KAVG(2)", "BMUF(2)", "DiLoCo(2)", "ParameterAveraging(64)", "ADPSGD", "OwnShares(ADPSGD())"]
FAULTS = {
    "killed": {"kills": ("1@0.45s",)},
    "killed and restarted": {"kills": ("1@0.45s",), "rejoins": ("1@0.95s",)},
    "killed in turn": {"kills": ("0@0.25s", "3@0.55s")},
    "suspended": {"stops": ("1@0.45s+0.5s",)},
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("strategy", TOLERANT)
def test_a_timed_run_goes_on_without_a_lost_learner_as_training_does(
    strategy: str, faults: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    """Both have the same losses and minibatches in about the same seconds, and leave none undone."""
    asked = simulation(tmp_path, strategy, jitter=0.0, lease_seconds=0.2, **faults)
    timed, trained = (simulate(replace(asked, timing_only=only, force=True)) for only in (True, False))
    assert (timed.killed, timed.minibatches, timed.samples) == (trained.killed, trained.minibatches, trained.samples)
    if strategy not in ("ADPSGD", "OwnShares(ADPSGD())"):  # their training lasts up to the end of the protocol
        assert timed.seconds == pytest.approx(trained.seconds, rel=0.05)
    assert timed.minibatches <= sum(timed.staleness.values())
    assert timed.minibatches == timed.budget_minibatches == 24
    assert trained.budget_minibatches is None
    assert trained.samples == trained.minibatches * 32
    assert trained.budget_hours >= trained.hours


@pytest.mark.parametrize("timing_only", [True, False])
@pytest.mark.parametrize("strategy", ["ADPSGD", "KAVG(2)", "OwnShares(ADPSGD())"])
def test_a_run_in_which_all_learners_are_lost_has_failed(strategy: str, timing_only: bool, tmp_path: Path) -> None:
    kills = tuple(f"{learner}@0.25s" for learner in range(4))
    asked = replace(simulation(tmp_path, strategy, kills=kills), timing_only=timing_only)
    with pytest.raises(PeerLost, match=r"all learners were lost before the end\n(.|\n)*learner 3 was killed"):
        simulate(asked)


def test_nobody_waits_for_a_straggler_without_lock_step(tmp_path: Path) -> None:
    """31 minibatches: ten of each of three fast learners, one of the slow one, in the same second."""
    asked = simulation(
        tmp_path, "ADPSGD", ("budget.minibatches=31", "task.hidden=8"), jitter=0.0, stragglers=("3=10x",)
    )
    timed = simulate(replace(asked, timing_only=True))
    assert timed.seconds == pytest.approx(1.0, rel=0.01)
    assert timed.idle == pytest.approx((0.0,) * 4, abs=0.02)
    trained = simulate(replace(asked, force=True))
    assert trained.compute_seconds == pytest.approx(timed.compute_seconds)
    assert timed.seconds < trained.seconds < 2  # up to the end of the protocol
    assert trained.binds == "compute"
    assert simulate(replace(asked, strategy="SyncSGD", force=True)).binds == "slowest learner"


def test_what_bound_a_run_is_the_network_where_it_is_slow(tmp_path: Path) -> None:
    asked = simulation(tmp_path, "SyncSGD", model_bytes=1e9)
    assert simulate(asked).binds == "network"
    assert simulate(replace(asked, strategy="ASGD", force=True)).binds == "network"
    assert simulate(replace(asked, strategy="ADPSGD", timing_only=True, force=True)).binds == "compute"


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([SyncSGD(), KAVG(3), DelayByOne(), ADPSGD(), ASGD(), SuperLearners(KAVG(2), 2)]),
    st.sampled_from(["ring", "hierarchical"]),
)
def test_bytes_of_links_are_the_ledgers(nodes: int, width: int, strategy: Strategy, allreduce: str) -> None:
    """Bytes through cards and inside nodes add up to those sent; with one learner per node all bytes use cards."""
    cluster = Cluster(
        nodes * width, ConstantSeconds(0.1), learners_per_node=width, allreduce=allreduce, message_bytes=1000.0
    )
    timing = time_strategy(strategy, cluster, 3 * nodes * width)
    assert len(timing.card_bytes) == nodes
    sent = [sum(timing.sent_bytes[n * width : (n + 1) * width]) for n in range(nodes)]
    for out, of_learners in zip(timing.card_bytes, sent, strict=True):
        assert out <= of_learners * (1 + 1e-12)
        if width == 1:
            assert out == pytest.approx(of_learners)
        if nodes == 1:
            assert out == 0


def test_bytes_of_a_mean_by_hand() -> None:
    """Rings of b bytes through 2 nodes of 2: 2 (L - 1) / L b cross each card; hierarchical: 2 (N - 1) / N b."""
    cluster = Cluster(4, ConstantSeconds(0.1), learners_per_node=2, message_bytes=1000.0)
    assert time_strategy(KAVG(1), cluster, 4).card_bytes == pytest.approx((1500.0, 1500.0))
    for allreduce in ("ring", "tree", "hierarchical"):
        alone = replace(cluster, learners_per_node=4, allreduce=allreduce)
        assert time_strategy(KAVG(1), alone, 4).card_bytes == (0.0,)
    assert time_strategy(KAVG(1), replace(cluster, allreduce="hierarchical"), 4).card_bytes == pytest.approx(
        (1000.0,) * 2
    )
    assert time_strategy(KAVG(1), replace(cluster, allreduce="tree"), 4).card_bytes == pytest.approx((1000.0,) * 2)


def test_a_run_that_is_cut_off_is_continued(tmp_path: Path) -> None:
    """Half of the budget, then the rest: the model of the whole run, to the bit, in the same virtual time."""
    whole = simulate(simulation(tmp_path / "whole", "KAVG(K=3)"))
    first = simulation(tmp_path / "parts", "KAVG(K=3)", ("budget.minibatches=12", *SMALL[1:]))
    half = simulate(first)
    step = {"kind": "step", "learner": 0, "minibatches": 12}
    with (first.out / "records.jsonl").open("a") as records:  # a step after the checkpoint, and an unfinished one
        records.write(f"null\n{json.dumps(step)}\n{json.dumps(step | {'minibatches': 0})}")
    seconds, steps, sent = behind(first.out)
    assert dict(steps) == {0: 3, 1: 3, 2: 3, 3: 3}
    parts = simulate(replace(simulation(first.out, "KAVG(K=3)"), resume=True))
    assert seconds == parts.since_seconds > 0
    assert parts.seconds == pytest.approx(whole.seconds, rel=0.01)  # one more mean in the middle
    assert sum(parts.staleness.values()) == 24
    ours, theirs = (load_file(tmp_path / folder / "model.safetensors")["weights"] for folder in ("parts", "whole"))
    assert ours.equal(theirs)
    a_mean = 2 * 3 / 4 * 4 * ours.numel()  # of four learners, in float32
    assert sent == list(half.sent_bytes)
    assert all(0 < b - a < 1.1 * a_mean for a, b in zip(whole.sent_bytes, parts.sent_bytes, strict=True))


def test_a_run_ended_by_a_fault_is_a_result(tmp_path: Path) -> None:
    """A lost learner ends SyncSGD and not ADPSGD, also side by side."""
    faults = {"kills": ("1@0.35s",), "lease_seconds": 0.1}
    asked = [simulation(tmp_path / name, name, **faults) for name in ("SyncSGD", "ADPSGD")]
    lost, lived = side_by_side(asked, jobs=1)
    assert isinstance(lost, Failure)
    assert "learner 1 was killed at t=0.350s" in lost.why
    assert isinstance(lived, Account)
    assert lived.killed == (1,)
    assert lived.idle[1] > 0.3 > lived.idle[0]
    with pytest.raises(PeerLost):
        simulate(replace(asked[0], force=True))


@pytest.mark.parametrize("strategy", ["Downpour", "EASGD"])
def test_a_learner_that_comes_back_after_the_end_is_lost_and_other_strategies_go_on(
    strategy: str, tmp_path: Path
) -> None:
    stopped = {"learners": 3, "step_seconds": 1.0, "jitter": 0.0, "stops": ("2@6s+12s",)}
    asked = [simulation(tmp_path / name, name, **stopped) for name in (strategy, "KAVG(8)")]
    late, other = side_by_side([replace(one, timing_only=True) for one in asked], jobs=1)
    assert isinstance(late, Account)
    assert late.killed == (2,)
    assert isinstance(other, Account)


@pytest.mark.parametrize("error", [Deadlock("stuck"), Livelock("polls")])
def test_a_run_that_cannot_end_is_a_failure(
    error: RuntimeError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(*_: object) -> None:
        raise error

    monkeypatch.setattr(VirtualWorld, "run", endless)
    failed = attempt(replace(simulation(tmp_path, "ASGD"), timing_only=True))
    assert failed == Failure("ASGD", f"the run cannot end: {error}")


def test_strategies_that_look_at_values_need_gradients(tmp_path: Path) -> None:
    asked = replace(simulation(tmp_path, "AdaptiveKAVG"), timing_only=True)
    with pytest.raises(SettingError, match="AdaptiveKAVG depends on losses: it"):
        simulate(asked)


def test_messages_are_as_large_as_the_model_without_gradients() -> None:
    numbers = 64 * 128 + 128 + 128 * 10 + 10
    assert with_message(Cluster(2), toy.experiment()).message_bytes == 4.0 * numbers
    assert with_message(Cluster(2, message_bytes=7.0), toy.experiment()).message_bytes == 7.0


def test_gradients_by_one_call(tmp_path: Path) -> None:
    """The same steps at the same virtual moments; models that do not support it are refused, with advice."""
    alone = simulation(tmp_path / "alone", "ADPSGD")
    batched = replace(alone, out=tmp_path / "batched", batched=True)
    ours, theirs = simulate(batched), simulate(alone)
    assert ours.staleness == theirs.staleness
    assert ours.seconds == theirs.seconds
    assert ours.marks[-1].figures["loss"] == pytest.approx(theirs.marks[-1].figures["loss"], rel=1e-5)
    with pytest.raises(SettingError, match=r"--batched: .*random.*; leave it out"):
        simulate(replace(batched, settings=(*SMALL, "task.dropout=0.1"), force=True))
    with pytest.raises(SettingError, match="--timing-only computes no gradients"):
        replace(batched, timing_only=True)
