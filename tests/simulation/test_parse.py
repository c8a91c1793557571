from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.core.errors import SettingError
from murmur.simulation.parse import compute_times, factors_of, faults_of, kind_of
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Kill, LognormalSeconds, Rejoin, Stop

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
