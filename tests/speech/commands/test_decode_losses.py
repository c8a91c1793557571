"""`murmur decode` of data with utterances that cannot be decoded: they are told, named and scored."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

import soundfile

from murmur.speech.corpus.kaldi_dir import read_table, write_table
from tests.support.command_line import run
from tests.support.tone_runs import train_ctc
from tests.support.tones import RATE, make_tones


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set, and `data/gaps`: the first of its 200 utterances is too short, the second has no audio."""
    root = make_tones(tmp_path_factory.mktemp("losses") / "set", {"train": 48, "dev": 8, "test": 8, "gaps": 200})
    gaps = root / "data" / "gaps"
    wavs = read_table(gaps / "wav.scp")
    short, unnamed = sorted(wavs)[:2]
    soundfile.write(wavs[short], np.zeros(RATE // 100, np.float32), RATE)
    del wavs[unnamed]
    write_table(gaps / "wav.scp", wavs)
    return root


@pytest.fixture(scope="module")
def model(corpus: Path) -> Path:
    return train_ctc(corpus)


@pytest.mark.parametrize("options", [(), ("--grammar", "loop", "--scale", 1)])
def test_left_out_utterances_are_told_and_scored(
    corpus: Path, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, options: tuple[object, ...]
) -> None:
    gaps = corpus / "data" / "gaps"
    texts = read_table(gaps / "text")
    short, unnamed = sorted(texts)[:2]
    with caplog.at_level(logging.WARNING):
        run("decode", "ctc", "--model", model, "--data", gaps, "--out", tmp_path, *options)
    assert f"{gaps}: 1 of 200 utterances is left out: {unnamed}" in caplog.text
    assert f"1 of 199 utterances is left out: {short}: its 0.010 s are shorter" in caplog.text
    found = read_table(tmp_path / "text")
    assert set(found) == set(texts) - {unnamed}
    assert found[short] == ""
    facts = json.loads((tmp_path / "summary.json").read_text())
    assert set(facts["left_out"]) == {short, unnamed}
    assert "shorter than one analysis window" in facts["left_out"][short]
    # The figure is that of `murmur score` on the same files, with the words of the short one as deletions.
    write_table(tmp_path / "ref", {name: text for name, text in texts.items() if name != unnamed})
    said = run("score", tmp_path / "ref", tmp_path / "text")
    assert f"%WER {facts['wer']:.2f} " in said


def test_nothing_is_left_out_of_whole_data(corpus: Path, model: Path, tmp_path: Path) -> None:
    run("decode", "ctc", "--model", model, "--out", tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["left_out"] == {}
