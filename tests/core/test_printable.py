"""Messages without sequences that a terminal obeys: names, contents of files, words and settings."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from murmur.cli import app
from murmur.core.errors import SettingError, user_message
from murmur.core.printable import PrintableLines, printable, say
from murmur.report.terminal_table import TerminalTable
from murmur.report.watch import Watched, frame

CLEAR, TITLE, RIGHT_TO_LEFT, CONTROL = "\x1b[2J", "\x1b]0;title\x07", "\u202e", "\x9b2J"
HOSTILE = [CLEAR, TITLE, RIGHT_TO_LEFT, CONTROL, "\r", "\x00", "\x7f", "\u2028", "\udcff"]


def is_safe(text: str) -> bool:
    return not any(part in text for part in HOSTILE) and "\x1b" not in text


@given(st.text())
def test_no_text_keeps_a_character_that_a_terminal_obeys(text: str) -> None:
    found = printable(text + "".join(HOSTILE))
    assert is_safe(found)
    found.encode()


def test_words_of_all_languages_and_lines_stay() -> None:
    text = "grüße, 北京, नमस्ते, \u0645\u06cc\u200c\u062e, 👩\u200d🚀, a\u00adb\n\tsecond line"
    assert printable(text) == text


def test_messages_logs_and_tables_are_printable(capsys: pytest.CaptureFixture[str]) -> None:
    for bad in HOSTILE:
        assert is_safe(user_message(SettingError(f"{bad} is no file")) or bad)
        record = logging.LogRecord("murmur", logging.INFO, "x.py", 1, "file %s", (bad,), None)
        assert is_safe(PrintableLines("%(message)s").format(record))
        table = TerminalTable(("word",))
        table.add_row(f"a{bad}b")
        console = Console(width=80)
        with console.capture() as shown:
            console.print(table)
        assert is_safe(shown.get())
        say(f"skipped {bad}")
        say(f"skipped {bad}", err=True)
    out, err = capsys.readouterr()
    assert is_safe(out)
    assert is_safe(err)
    assert out.count("\n") == err.count("\n") == len(HOSTILE)


def test_a_watched_run_with_hostile_records_is_printable(tmp_path: Path) -> None:
    for bad in HOSTILE[:-1]:
        folder = tmp_path / f"run{bad}".replace("\0", "")
        folder.mkdir()
        step = {
            "kind": "step",
            "learner": 0,
            "samples": 1.0,
            "seconds": 1.0,
            "minibatches": 1,
            "epoch": 0.1,
            "loss": 1.0,
        }
        figures = {"kind": "evaluation", "samples": 1.0, "seconds": 1.0, "epoch": 0.1, "figures": {f"a{bad}": 1.0}}
        (folder / "records.jsonl").write_text(json.dumps(step) + "\n" + json.dumps(figures) + "\n")
        facts = {"learners": f"2{bad}", "experiment": {"strategy": f"KAVG{bad}"}, "strategy": bad}
        (folder / "run.json").write_text(json.dumps(facts))
        (folder / "score.json").write_text(json.dumps({"lines": [f"wer {bad}"]}))
        (folder / "ended.json").write_text(json.dumps({"state": "failed", "status": 1, "why": bad, "at": bad}))
        watched = Watched(folder, lambda: 0.0)
        watched.look()
        console = Console(width=120)
        with console.capture() as shown:
            console.print(frame(watched))
        assert is_safe(shown.get()), bad


@pytest.mark.parametrize(
    "words",
    [
        ["train", f"{CLEAR}.py"],
        ["train", "toy", "--set", f"task.hidden={CLEAR}"],
        ["train", "toy", "--set", f"{TITLE}=1"],
        ["train", "toy", "--strategy", f"KAVG(K={CLEAR!r})"],
        ["train", "toy", "--strategy", f"{RIGHT_TO_LEFT}"],
        ["watch", f"no{CLEAR}where"],
        ["report", f"no{CONTROL}where"],
        ["score", f"no{TITLE}where", "there"],
        [f"{CLEAR}"],
    ],
    ids=range(9),
)
def test_commands_repeat_no_hostile_argument(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, words)
    assert done.exit_code != 0
    assert is_safe(done.output), done.output


def test_the_program_itself_prints_no_hostile_name(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "murmur", "report", os.fsencode(tmp_path / f"x{CLEAR}") + b"\xff"]
    done = subprocess.run(words, check=False, capture_output=True)
    assert done.returncode == 1
    assert b"\x1b" not in done.stderr
    assert b"there is no folder" in done.stderr


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
    code = f"from murmur.core.printable import open_standard_streams as o; o(); {body}"
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
