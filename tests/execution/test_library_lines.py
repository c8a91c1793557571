"""Lines that a library writes to the file descriptors of the process."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from murmur.execution.library_lines import library_lines_kept

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


@pytest.mark.parametrize("lines", LINES)
@pytest.mark.parametrize("number", [1, 2])
def test_they_are_not_shown(lines: str, number: int, capfd: pytest.CaptureFixture[str]) -> None:
    with library_lines_kept():
        os.write(number, lines.encode())
    os.write(number, b"after\n")
    assert capfd.readouterr()[number - 1] == "after\n"


@pytest.mark.parametrize("lines", LINES)
def test_they_are_shown_if_the_call_fails(lines: str, capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with library_lines_kept():
            os.write(2, lines.encode())
            raise ValueError("no graph")

    with pytest.raises(ValueError, match="no graph"):
        fail()
    assert capfd.readouterr().err == lines


def test_other_lines_are_written_afterwards(capfd: pytest.CaptureFixture[str]) -> None:
    """As those of another thread, of Python's streams, and of C's buffers before the call."""
    ctypes.CDLL(None).puts(b"before")
    with library_lines_kept():
        print("murmur: learner 1 goes on", file=sys.stderr)
        os.write(1, b"a transcript\n" + KALDILM.encode())
    out, err = capfd.readouterr()
    assert out == "before\na transcript\n"
    assert err == "murmur: learner 1 goes on\n"


def test_a_closed_stream_stays_closed() -> None:
    code = (
        "import os\nfrom murmur.execution.library_lines import library_lines_kept\n"
        "os.close(2)\nwith library_lines_kept():\n    os.write(1, b'[I] a\\nb\\n')\n"
        "try:\n    os.write(2, b'x')\nexcept OSError:\n    print('closed')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert ran.stdout == "b\nclosed\n"
