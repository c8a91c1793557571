"""Commands in data are run only if the user allows them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from murmur.cli import app

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

import soundfile

from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.corpus.kaldi_dir import read_data_dir, write_table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    data.mkdir()
    soundfile.write(tmp_path / "a.wav", 0.1 * np.random.default_rng(0).standard_normal(4000).astype(np.float32), 8000)
    write_table(data / "text", {"a": "YES"})
    write_table(data / "wav.scp", {"a": f"touch {tmp_path / 'ran'}; cat {tmp_path / 'a.wav'} |"})
    return data


def prepare(folder: Path, *words: str) -> tuple[int, str]:
    out = str(folder.parent / "out")
    done = CliRunner().invoke(app, ["prepare", str(folder), "--out", out, *words], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def test_commands_of_wav_scp_run_only_where_allowed(folder: Path) -> None:
    status, said = prepare(folder)
    assert status == 1
    assert "commands are not run from data" in said
    assert not (folder.parent / "ran").exists()
    status, said = prepare(folder, "--allow-commands")
    assert (status, "1 utterance," in said) == (0, True), said
    assert (folder.parent / "ran").exists()


def test_experiments_take_no_such_permission() -> None:
    done = CliRunner().invoke(app, ["prepare", "toy", "--allow-commands"], env={"COLUMNS": "200"})
    assert done.exit_code == 1
    assert "--allow-commands are for data" in done.output


@pytest.mark.parametrize("entry", ["touch {0} |", "x:touch {0} |", "touch {0}|:5", "{0}:12 |", "| touch {0}:7", "a:b"])
def test_commands_of_feats_scp_are_never_run(folder: Path, entry: str) -> None:
    ran = folder.parent / "ran"
    (folder / "wav.scp").unlink()
    write_table(folder / "feats.scp", {"a": entry.format(ran)})
    with pytest.raises(CorpusError, match=r"feats.scp|is missing"):
        read_data_dir(folder)
    assert not ran.exists()
