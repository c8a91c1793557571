"""The page "Your own vocabulary": its files are readable, and its commands run one after the other."""

from __future__ import annotations

import logging
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from murmur.cli import app
from tests.support import tones

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.speech.corpus.digits import LEXICON
from murmur.speech.language_model.grammar import Acceptor
from murmur.speech.language_model.grammar_file import read_grammar, read_words
from murmur.speech.lexicon.lexicon import read_lexicon

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "my_vocabulary.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
PHONES = sorted({phone for ways in LEXICON.values() for way in ways for phone in way.split()})


def says(acceptor: Acceptor, words: list[str]) -> bool:
    state = 0
    for word in words:
        ways = [arc.target for arc in acceptor.arcs if arc.source == state and arc.word == word]
        if not ways:
            return False
        (state,) = ways
    return state in acceptor.finals


def run(*words: object) -> tuple[str, str]:
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    assert done.exit_code == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's files, and a network on tones under the name of the demo's run."""
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tones, "LEXICON", {word: ways[0] for word, ways in LEXICON.items()})
        patch.setattr(tones, "HERTZ", dict(zip(PHONES, np.geomspace(200, 3800, len(PHONES)), strict=True)))
        corpus = tones.make_tones(folder / "set", {"train": 60, "dev": 8, "test": 4})
        soundfile.write(folder / "talk.flac", tones.tones(["SEVEN", "EIGHT"], 1), tones.RATE)
    (corpus / "lexicon.txt").write_text("".join(f"{word} {way}\n" for word, ways in LEXICON.items() for way in ways))
    experiment = folder / "digits_demo.py"
    experiment.write_text(tones.HYBRID.format(corpus=str(corpus), cache=str(folder / "cache")))
    run("train", experiment, "--set", "task.front.bins=30", "--out", folder / "runs/demo/one-learner", "--threads", 1)
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_files_are_what_the_page_says() -> None:
    assert set(FILES) == {"time.jsgf", "extra.txt", "yes.txt", "times.txt", "list.txt"}
    assert {command.split()[1] for command in COMMANDS} == {"transcribe", "lm", "decode", "export"}
    assert "my_vocabulary.md" in (ROOT / "mkdocs.yml").read_text()


def test_the_grammar_allows_what_the_page_says(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    time = read_grammar(tmp_path / "time.jsgf")
    assert says(time, ["SAY", "TEN", "FORTY"])
    assert says(time, ["TEN", "OH", "FIVE"])
    assert not says(time, ["TEN", "TEN", "TEN"])
    known = {word for word, _ in read_lexicon(tmp_path / "extra.txt")} | set(LEXICON)
    assert set(time.words) <= known
    assert set(read_words(tmp_path / "list.txt")) <= known
    assert {phone for _, phones in read_lexicon(tmp_path / "extra.txt") for phone in phones} <= set(PHONES)


def test_the_commands_run(place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.chdir(place)
    caplog.set_level(logging.INFO)
    guessing = pytest.importorskip("importlib.util").find_spec("espeakng_loader") is not None
    heard = {}
    for command in COMMANDS:
        program, *words = shlex.split(command)
        assert program == "murmur"
        if not guessing and words[-2:] == ["--words", "list.txt"]:
            continue  # no guessing is installed
        if words[0] == "export":
            pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install murmur-asr[deploy])")
        if words[0] == "decode":
            words = [str(place / "digits_demo.py") if word == "digits_demo" else word for word in words]
            words += ["--out", "decoded"]
        heard[command] = run(*words)[0].split()
    grammar = read_grammar(place / "time.jsgf")
    for command, said in heard.items():
        if "time.jsgf" in command and "transcribe" in command:
            assert said == [] or says(grammar, said), command
        if "yes.txt" in command:
            assert said in (["SEVEN", "EIGHT"], ["SEVEN", "NINE"])
        if "list.txt" in command and "transcribe" in command:
            assert set(said) <= {"ONE", "TWO", "TEN", "FORTY"}
    assert "words guessed: FORTY" in caplog.text or not guessing
    assert "to use it again: --scale" in caplog.text
    assert "the acoustic scale is the run's" in caplog.text
