"""Repeated messages: told once, and counted at the end."""

from __future__ import annotations

import logging

import pytest

from murmur.execution.told_once import ToldOnce, told_once

log = logging.getLogger("murmur.tests.told_once")


def test_a_warning_of_many_recordings_is_told_once_with_its_count(caplog: pytest.LogCaptureFixture) -> None:
    ends: list[str] = []
    with told_once(ends.append):
        for _ in range(1178):
            log.warning("%d speaker is not adapted to: fewer than %g frames", 1, 500)
    assert caplog.messages == ["1 speaker is not adapted to: fewer than 500 frames"]
    assert ends == ["1178 times in all: 1 speaker is not adapted to: fewer than 500 frames"]


def test_of_warnings_that_differ_in_their_names_three_are_told(caplog: pytest.LogCaptureFixture) -> None:
    ends: list[str] = []
    with told_once(ends.append):
        for n in range(10):
            log.warning("speaker %r is not adapted to: %s", f"s{n}", "no sound")
        log.warning("another one")
    assert caplog.messages == [*(f"speaker 's{n}' is not adapted to: no sound" for n in range(3)), "another one"]
    assert ends == ["7 more like this: speaker 's9' is not adapted to: no sound"]


def test_texts_without_a_template_are_no_kind(caplog: pytest.LogCaptureFixture) -> None:
    """A warning that is only the text of an error does not hide that of another error."""
    with told_once(lambda _: None):
        for letter in "abcdef":
            log.warning("%s", f"file {letter} is damaged")
    assert len(caplog.messages) == 6


def test_other_levels_pass_and_nothing_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ends: list[str] = []

    def fail() -> None:
        with told_once(ends.append):
            for _ in range(2):
                log.info("going on")
                log.error("broken")
                log.warning("twice")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert caplog.messages == ["going on", "broken", "twice", "going on", "broken"]
    assert ends == ["2 times in all: twice"]
    log.warning("twice")
    assert caplog.messages[-1] == "twice"


def test_a_kind_may_be_given() -> None:
    ends: list[str] = []
    told = ToldOnce(ends.append)
    new = [told.is_new(f"{name}.wav: resampled from 44100 to 16000 Hz", "resampled") for name in "abcde"]
    assert new == [True, True, True, False, False]
    told.end()
    assert ends == ["2 more like this: e.wav: resampled from 44100 to 16000 Hz"]
    told.end()
    assert len(ends) == 1
