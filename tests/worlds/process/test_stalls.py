"""Stall table: kept by each learner, sent with its signs of life, printed on request."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.worlds.awake_clock import awake_seconds
from murmur.worlds.process.listener import listen
from murmur.worlds.process.membership_client import (
    TOLD_AFTER_SECONDS,
    StoreMembership,
    Wait,
    Waits,
    ranks,
    stall_table,
    stalls_of,
)
from murmur.worlds.process.store_server import StoreClient, StoreServer

LEARNER = """
import pathlib, sys, time
from murmur.worlds.process.environment import take_place
from murmur.worlds.process.store_server import StoreClient
from murmur.worlds.process.membership_client import StoreMembership

place = take_place()
membership = StoreMembership(
    lambda: StoreClient(place.host, place.port, 30, place.secret), place.prefix + "world", place.rank, 2, 60.0,
    waiting=lambda: ("the mean of the world", 7.0) if place.rank else ("", 0.0),
)
pathlib.Path(sys.argv[1], f"entered-{place.rank}").touch()
time.sleep(100)
"""


@pytest.fixture
def server() -> Iterator[StoreServer]:
    serving = StoreServer(listen())
    yield serving
    serving.close()


def test_the_longest_wait_counts() -> None:
    waits = Waits()
    assert waits.longest()[0] == ""
    with waits.on("a message"):
        time.sleep(0.02)
        with waits.on("a mean"):
            what, seconds = waits.longest()
            assert (what, 0.02 <= seconds < 5) == ("a message", True)
    with pytest.raises(KeyError), waits.on("a sum"):
        raise KeyError
    assert waits.longest()[0] == ""


def test_a_long_wait_is_told_of_again_after_twice_as_long() -> None:
    assert not Wait("a sum", awake_seconds()).is_long()
    wait = Wait("a sum", awake_seconds() - 3 * TOLD_AFTER_SECONDS)
    assert [wait.is_long() for _ in range(3)] == [True, True, False]


def test_the_table_begins_with_those_that_the_others_wait_for() -> None:
    waits = [[0, "a sum", 1.0], [1, "", 0.0], [2, "a message", 61.25]]
    assert stall_table({"waits": waits, "lost": [[3, "no sign of life for 1.1 s"]]}).splitlines() == [
        "learners and their waits:",
        "  learner 3: lost, no sign of life for 1.1 s",
        "  learner 1: waits for no learner",
        "  learner 2: has waited 61.2 s for a message",
        "  learner 0: has waited 1.0 s for a sum",
    ]


@given(st.sets(st.integers(0, 40)))
def test_ranks_in_few_words_are_the_same_ranks(numbers: set[int]) -> None:
    written = ranks(sorted(numbers))
    found: list[int] = []
    for part in written.split(", ") if written else []:
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    assert found == sorted(numbers)
    assert ranks(range(128)) == "0-127"


def nothing() -> tuple[str, float]:
    return "", 0.0


def test_any_learner_can_ask_what_all_wait_for(server: StoreServer) -> None:
    memberships = [
        StoreMembership(lambda: StoreClient(*server.address), "launch/world", rank, 3, 60.0, waiting=waiting)
        for rank, waiting in enumerate((nothing, lambda: ("a message " + "x" * 1000, 5.0), nothing))
    ]
    memberships[2].fail("MemoryError: full")
    deadline = time.monotonic() + 10
    while "a message" not in memberships[0].stalls() and time.monotonic() < deadline:
        time.sleep(0.01)
    lines = stalls_of(StoreClient(*server.address), "launch/").splitlines()
    assert lines[1:3] == ["  learner 2: lost, MemoryError: full", "  learner 0: waits for no learner"]
    assert re.match(r"  learner 1: has waited [56]\.\d s for a message x+$", lines[3])
    assert len(lines[3]) < 600
    for membership in memberships[:2]:
        membership.leave()


@pytest.mark.processes
def test_the_launcher_answers_sigquit_with_the_table(tmp_path: Path) -> None:
    (tmp_path / "learner.py").write_text(LEARNER)
    program = (
        "import sys; from murmur.worlds.process.launcher import Launch;"
        "sys.exit(Launch(lambda place, resume: [sys.executable, *sys.argv[1:]], learners=2).run())"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "learner.py"), str(tmp_path)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as launcher:
        told = ""
        deadline = time.monotonic() + 90
        while len(list(tmp_path.glob("entered-*"))) < 2:  # before that the question would end it
            assert time.monotonic() < deadline
            time.sleep(0.05)
        while "the mean of the world" not in told and time.monotonic() < deadline:
            launcher.send_signal(signal.SIGQUIT)
            assert launcher.stderr is not None
            told += launcher.stderr.readline()
        launcher.terminate()
    assert "learner 0: waits for no learner" in told
    assert re.search(r"learner 1: has waited \d+\.\d s for the mean of the world", told)
