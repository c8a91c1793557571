"""Clusters in the words of options: presets, stragglers, faults, traces; continued runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.core.errors import SettingError
from murmur.engine.checkpoints.position import Position, write_start
from murmur.engine.scaling import Auto
from murmur.recipes import toy
from murmur.simulation.scenario import Scenario, Simulation, compute_times, continued, factors_of, faults_of, kind_of
from murmur.worlds.virtual.cluster import (
    Cluster,
    ConstantSeconds,
    Kill,
    Link,
    LognormalSeconds,
    RecordedSeconds,
    Rejoin,
    Stop,
)
from murmur.worlds.virtual.presets import preset

TOY = toy.experiment()
OWN = replace(TOY, cluster=Cluster(6, ConstantSeconds(2.0), Link(0.25, 1e6), learners_per_node=3))


def test_a_preset_with_a_straggler_and_a_kill() -> None:
    scenario = Scenario(16, "v100-ethernet", step_seconds=0.5, stragglers=("3=10x",), kills=("5@30s",))
    cluster = scenario.cluster(TOY)
    kind = preset("v100-ethernet")
    assert (cluster.learners, cluster.link, cluster.learners_per_node) == (16, kind.link, kind.learners_per_node)
    assert cluster.compute == ConstantSeconds(0.5, {3: 10.0})
    assert cluster.faults == (Kill(5, 30.0),)
    assert cluster.message_bytes is None  # the real vectors are sent
    assert replace(scenario, model_bytes=165e6).cluster(TOY).message_bytes == 165e6


def test_the_experiments_own_cluster_stays_where_nothing_else_is_said() -> None:
    assert Scenario().cluster(OWN) == OWN.cluster
    assert not Scenario().unknown_step(OWN)
    changed = Scenario(4, stragglers=("1=2x",), lease_seconds=3.0).cluster(OWN)
    assert changed == replace(OWN.cluster, learners=4, compute=ConstantSeconds(2.0, {1: 2.0}), lease_seconds=3.0)
    assert Scenario(kind="ethernet-1g", step_seconds=1.0).cluster(OWN).link == preset("ethernet-1g").link


def test_what_cannot_be_is_refused_with_field_and_value() -> None:
    with pytest.raises(ValueError, match=r"Cluster.learners=64 do not fit into Cluster.nodes=2 x .*=8 slots"):
        Scenario(64, "v100-ethernet", nodes=2, step_seconds=1.0).cluster(TOY)
    with pytest.raises(ValueError, match=r"ConstantSeconds.seconds must be positive and finite, got -1"):
        Scenario(step_seconds=-1.0).cluster(TOY)
    with pytest.raises(ValueError, match=r"Cluster.lease_seconds must be positive and finite, got 0"):
        Scenario(step_seconds=1.0, lease_seconds=0.0).cluster(TOY)
    with pytest.raises(SettingError, match="the seconds of a gradient are unknown"):
        Scenario().cluster(TOY)
    with pytest.raises(SettingError, match=r"--trace t\.json sets times and jitter"):
        Scenario(trace=Path("t.json"), jitter=0.1)
    with pytest.raises(SettingError, match="the experiment's own compute times take no factors"):
        Scenario(stragglers=("0=2x",)).cluster(replace(OWN, cluster=replace(OWN.cluster, compute=min)))


def test_a_real_runs_trace_is_replayed(tmp_path: Path) -> None:
    spans = [
        {"ph": "X", "cat": "compute", "pid": i, "ts": 9e6 * k, "dur": 1e6 * (i + 1)} for i in (0, 1) for k in (0, 1)
    ]
    (tmp_path / "trace.json").write_text(json.dumps(spans))
    for path in (tmp_path, tmp_path / "trace.json"):
        compute = Scenario(2, trace=path, stragglers=("1=10x",)).cluster(TOY).compute
        assert isinstance(compute, RecordedSeconds)
        assert [compute(0, 0), compute(1, 0)] == [1.0, 20.0]
    facts = Simulation("toy", scenario=Scenario(2, trace=tmp_path)).facts(Scenario(2, trace=tmp_path).cluster(TOY), TOY)
    assert facts["compute"] == {"trace": str(tmp_path), "factors": {}}
    json.dumps(facts, allow_nan=False)


CUT = replace(TOY, scaling=Auto("stays"))


def traced(folder: Path, learners: int, seconds: float, cut: int | None) -> Path:
    """Write the trace of a run whose gradients took so many seconds, and the number of pieces of a minibatch."""
    spans = [{"ph": "X", "cat": "compute", "pid": i, "ts": 0, "dur": 1e6 * seconds} for i in range(learners)]
    folder.mkdir(parents=True)
    (folder / "trace.json").write_text(json.dumps(spans))
    if cut is not None:
        write_start(folder, cut, "", Position())
    return folder


@pytest.mark.parametrize("before", [1, 2, 8])
@pytest.mark.parametrize("learners", [1, 2, 8])
def test_a_trace_of_cut_minibatches_is_replayed_with_other_pieces(tmp_path: Path, before: int, learners: int) -> None:
    """A whole minibatch takes 4 s in both runs, whatever the numbers of pieces."""
    run = traced(tmp_path / "run", before, 4.0 / before, before)
    for path in (run, run / "trace.json"):
        scenario = Scenario(learners, trace=path, stragglers=("0=3x",))
        compute = scenario.cluster(CUT).compute
        factors = [3.0] + [1.0] * (learners - 1)
        assert [compute(i, 0) for i in range(learners)] == pytest.approx([f * 4.0 / learners for f in factors])
        facts = Simulation("toy", scenario=scenario).facts(scenario.cluster(CUT), CUT)
        assert facts["compute"] == {"trace": str(path), "factors": {"0": 3.0}}


def test_a_trace_of_unknown_pieces_is_not_replayed_with_others(tmp_path: Path) -> None:
    run = traced(tmp_path / "run", 2, 1.0, None)
    assert Scenario(1, trace=run).cluster(CUT).compute(0, 0) == 1.0
    with pytest.raises(SettingError, match=r"cuts each minibatch in 8 pieces, and no checkpoints/began.json"):
        Scenario(8, trace=run).cluster(CUT)


@given(st.floats(0.01, 2.0), st.integers(0, 5))
def test_jitter_spreads_the_times_of_the_experiments_own_cluster(jitter: float, slow: int) -> None:
    """Median, factors and seed stay; nothing has to be measured, and the cluster is the experiment's."""
    for own in (ConstantSeconds(2.0, {slow: 3.0}), LognormalSeconds(2.0, 0.7, 5, {slow: 3.0})):
        experiment = replace(OWN, cluster=replace(OWN.cluster, compute=own))
        scenario = Scenario(jitter=jitter)
        assert not scenario.unknown_step(experiment)
        wanted = LognormalSeconds(2.0, jitter, getattr(own, "seed", 0), {slow: 3.0})
        assert scenario.cluster(experiment) == replace(experiment.cluster, compute=wanted)
        changed = replace(scenario, stragglers=("1=2x",)).cluster(experiment).compute
        assert changed == replace(wanted, factors={1: 2.0})


def test_jitter_of_times_that_take_none_is_refused() -> None:
    own = replace(OWN, cluster=replace(OWN.cluster, compute=RecordedSeconds(((1.0,),))))
    with pytest.raises(SettingError, match="take no other jitter; give --step-seconds too"):
        Scenario(jitter=0.1).cluster(own)
    assert Scenario(jitter=0.1, step_seconds=2.0).cluster(own).compute == LognormalSeconds(2.0, 0.1)


@given(st.floats(0, 100), st.integers(0, 50))
def test_a_continued_run_meets_what_is_still_to_come(behind: float, steps: int) -> None:
    """Every fault after the checkpoint happens at the same moment of the whole run; compute times go on."""
    faults = (Kill(1, 20.0), Rejoin(1, 40.0), Stop(2, 50.0, 30.0), Kill(3, 90.0))
    cluster = Cluster(4, LognormalSeconds(0.1, 0.5), faults=faults)
    now = continued(cluster, behind, {2: steps})
    for fault in now.faults:
        if isinstance(fault, Stop):
            assert fault.at_seconds + fault.for_seconds + behind == pytest.approx(80.0)
            assert fault.at_seconds + behind == pytest.approx(max(50.0, behind))
        else:
            assert type(fault)(fault.learner, round(fault.at_seconds + behind, 6)) in faults
    kills = sum(isinstance(f, Kill) for f in now.faults)
    assert kills == (behind <= 20) + (behind <= 90)
    assert sum(isinstance(f, Rejoin) for f in now.faults) == (
        behind <= 20
    )  # a learner that was not lost is not restarted
    assert [now.compute(2, k) for k in range(3)] == [cluster.compute(2, steps + k) for k in range(3)]
    assert now.compute(0, 0) == cluster.compute(0, 0)


SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "": 1.0}
TIMES = st.tuples(st.integers(0, 9999), st.sampled_from(sorted(SECONDS)))


@given(st.integers(0, 63), TIMES, TIMES)
def test_what_is_written_is_what_happens(learner: int, at: tuple[int, str], duration: tuple[int, str]) -> None:
    when, long = (f"{number}{unit}" for number, unit in (at, duration))
    seconds, for_seconds = (number * SECONDS[unit] for number, unit in (at, duration))
    later = f"{learner}@{seconds + 1:f}s"
    faults = faults_of([f"{learner}@{when}"], [f"{learner}@{when}+{long}"], [later], 64)
    assert faults == (Kill(learner, seconds), Stop(learner, seconds, for_seconds), Rejoin(learner, seconds + 1))
    Cluster(64, faults=faults)


@given(st.dictionaries(st.integers(0, 63), st.floats(0.01, 1000).map(lambda x: round(x, 2)), max_size=8))
def test_stragglers_are_read_back(factors: dict[int, float]) -> None:
    assert factors_of([f"{learner}={factor:f}x" for learner, factor in factors.items()], 64) == factors


@pytest.mark.parametrize("text", ["", "5", "5@", "@30s", "5@-3s", "5@30 parsecs", "x@30s", "5@30s+2s", "5@nan"])
def test_texts_that_are_no_kill_are_refused_with_the_text(text: str) -> None:
    with pytest.raises(SettingError, match="write LEARNER@TIME, such as 5@30s") as refused:
        faults_of([text], [], [], 64)
    assert f"--kill {text!r}" in str(refused.value)


@pytest.mark.parametrize("text", ["3@10s", "3@10s+", "3@10s+-5s", "3@10s+5"[:-1]])
def test_texts_that_are_no_stop_are_refused_with_the_text(text: str) -> None:
    with pytest.raises(SettingError, match=r"write LEARNER@TIME\+DURATION, such as 3@10s\+20s") as refused:
        faults_of([], [text], [], 64)
    assert f"--stop {text!r}" in str(refused.value)


@pytest.mark.parametrize("text", ["0", "0=", "0=x", "0=-2x", "0=0x", "=2x", "a=2x", "0=2y"])
def test_texts_that_are_no_straggler_are_refused_with_the_text(text: str) -> None:
    with pytest.raises(SettingError, match="write LEARNER=FACTORx") as refused:
        factors_of([text], 64)
    assert repr(text) in str(refused.value)


def test_learners_that_are_not_there_are_refused() -> None:
    with pytest.raises(SettingError, match=r"--straggler '8=2x': there are learners 0\.\.7"):
        factors_of(["8=2x"], 8)
    with pytest.raises(SettingError, match=r"--kill '8@1s': there are learners 0\.\.7"):
        faults_of(["8@1s"], [], [], 8)
    with pytest.raises(SettingError, match=r"--stop '8@1s\+1s': there are learners 0\.\.7"):
        faults_of([], ["8@1s+1s"], [], 8)


def test_only_the_dead_come_back() -> None:
    with pytest.raises(SettingError, match=r"--rejoin '2@5s': learner 2 is not killed before 5 s"):
        faults_of(["2@6s", "1@1s"], [], ["2@5s"], 4)


def test_an_unknown_cluster_is_answered_with_the_nearest() -> None:
    with pytest.raises(SettingError, match="there is no cluster 'v100-ethernt'; did you mean 'v100-ethernet'"):
        kind_of("v100-ethernt")
    with pytest.raises(SettingError, match="there is no cluster 'q'; there are ethernet-1g"):
        kind_of("q")


def test_jitter_makes_times_random() -> None:
    assert compute_times(0.5, 0.0, ["1=3x"], 2) == ConstantSeconds(0.5, {1: 3.0})
    assert compute_times(0.5, 0.2, ["1=3x"], 2) == LognormalSeconds(0.5, 0.2, factors={1: 3.0})
    with pytest.raises(ValueError, match=r"ConstantSeconds.seconds must be positive and finite, got -0.5"):
        compute_times(-0.5, 0.0, [], 2)
