"""Repeated messages, told once and counted at the end; and lines that a library writes to the file descriptors."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys

import pytest

from murmur.execution.messages import ToldOnce, library_lines_kept, told_once

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


KALDILM = (
    "/project/kaldilm/csrc/arpa_file_parser.cc:void kaldilm::ArpaFileParser::Read(std::istream&):79\n"
    "[I] Reading \\data\\ section.\n"
)
LINES = (
    KALDILM,
    "ERROR: FstHeader::Read: Bad FST header: graph.fst\n",
    "LOG (lattice-determinize[5.5]:Determinize():x.cc:12) done\n",
    "WARNING (nnet3[5.5]:Read():y.cc:3) odd\n",
)


@pytest.mark.interpreter
@pytest.mark.parametrize("lines", LINES)
@pytest.mark.parametrize("number", [1, 2])
def test_they_are_not_shown(lines: str, number: int, capfd: pytest.CaptureFixture[str]) -> None:
    with library_lines_kept():
        os.write(number, lines.encode())
    os.write(number, b"after\n")
    assert capfd.readouterr()[number - 1] == "after\n"


@pytest.mark.interpreter
@pytest.mark.parametrize("lines", LINES)
def test_they_are_shown_if_the_call_fails(lines: str, capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with library_lines_kept():
            os.write(2, lines.encode())
            raise ValueError("no graph")

    with pytest.raises(ValueError, match="no graph"):
        fail()
    assert capfd.readouterr().err == lines


@pytest.mark.interpreter
def test_other_lines_are_written_afterwards(capfd: pytest.CaptureFixture[str]) -> None:
    """As those of another thread, of Python's streams, and of C's buffers before the call."""
    ctypes.CDLL(None).puts(b"before")
    with library_lines_kept():
        print("murmur: learner 1 goes on", file=sys.stderr)
        os.write(1, b"a transcript\n" + KALDILM.encode())
    out, err = capfd.readouterr()
    assert out == "before\na transcript\n"
    assert err == "murmur: learner 1 goes on\n"


@pytest.mark.interpreter
def test_a_closed_stream_stays_closed() -> None:
    code = (
        "import os\nfrom murmur.execution.messages import library_lines_kept\n"
        "os.close(2)\nwith library_lines_kept():\n    os.write(1, b'[I] a\\nb\\n')\n"
        "try:\n    os.write(2, b'x')\nexcept OSError:\n    print('closed')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert ran.stdout == "b\nclosed\n"
