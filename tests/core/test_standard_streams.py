"""Standard streams that are closed, full, broken or of another encoding: one line, no traceback, the right status."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

PROGRAM = f"{sys.executable} -m murmur"
FULL = Path("/dev/full")


def shell(command: str, env: Mapping[str, str] | None = None, folder: Path | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        env={**os.environ, **(env or {})},
        cwd=folder,
        capture_output=True,
        check=False,
    )
    return done.returncode, done.stdout.decode("latin-1"), done.stderr.decode("latin-1")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text").write_text("u1 ein zwei\n")
    (tmp_path / "utt2spk").write_text("u1 \u0428\u00c4\u0416\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (">&-", "it is closed: redirect it"),
        (">&- <&-", "it is closed: redirect it"),
        (f"> {FULL}", "the disk is full: make room"),
        ("| (exec <&-; sleep 0)", "the program that reads it has ended"),
    ],
)
@pytest.mark.parametrize("words", ["--help", "score text text", "settings toy"])
def test_output_that_cannot_be_written_ends_with_one_line(words: str, end: str, why: str, text: Path) -> None:
    if str(FULL) in end and not FULL.exists():
        pytest.skip("this system has no /dev/full")
    pause = "sleep 0.1; " if "|" in end else ""
    status, _, said = shell(f"({pause}exec {PROGRAM} {words}) {end}", folder=text)
    assert status == 1
    assert said.startswith(f"murmur: standard output cannot be written: {why}")
    assert said.count("\n") == 1


def test_a_closed_stream_loses_nothing_else(text: Path) -> None:
    status, said, _ = shell(f"{PROGRAM} score text text 2>&- <&-", folder=text)
    assert status == 0
    assert said.startswith("%WER 0.00")
    # Nothing is printed, so that closed output is no error; the file that is written does not become the output.
    body = "import sys; open('made', 'w').write('1'); print(open('made').read(), file=sys.stderr)"
    code = f"from murmur.core.standard_streams import open_standard_streams as o; o(); {body}"
    assert shell(f'{sys.executable} -c "{code}" >&-', folder=text) == (0, "", "1\n")


@pytest.mark.parametrize(
    ("env", "shown", "told"),
    [
        ({"PYTHONIOENCODING": "latin-1"}, "\\u0428\u00c4\\u0416", "iso8859-1"),
        ({"PYTHONIOENCODING": "cp1252"}, "\\u0428\u00c4\\u0416", "cp1252"),
        ({"PYTHONIOENCODING": "utf-8"}, "\u0428\u00c4\u0416".encode().decode("latin-1"), ""),
    ],
)
def test_words_that_an_encoding_lacks_are_escaped_and_told_once(
    env: Mapping[str, str], shown: str, told: str, text: Path
) -> None:
    status, said, errors = shell(f"{PROGRAM} score text text --speakers utt2spk", env, text)
    assert status == 0
    assert f"\n{shown}  %WER 0.00" in said
    assert errors.count("standard output is") == bool(told)
    assert not told or f"murmur: standard output is {told}, which lacks \\u0428 and perhaps others" in errors
