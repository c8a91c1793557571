"""`murmur prepare EXPERIMENT`, `align`, `train`, `decode`, `score` one after another, on an easy data set."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from murmur.cli import app

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.core.stop_signals import Stopped
from murmur.run.configuration import resolved
from murmur.run.folder.lock import beside
from murmur.speech.corpus.kaldi_dir import read_table
from murmur.speech.decoding.decoder import Decoder, Hypothesis
from tests.support.plateaus import LEXICON, make_experiment


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(w) for w in words], env={"COLUMNS": "200"})
    return done.exit_code, done.output


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_experiment(tmp_path_factory.mktemp("plateaus"))


@pytest.fixture(scope="module")
def trained(experiment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    code, said = run("train", experiment, "--out", out, "--threads", 1)
    assert code == 0, said
    return out


def test_prepare_makes_what_training_needs_once(experiment: Path) -> None:
    code, said = run("prepare", experiment)
    assert code == 0, said
    cache = experiment.parent / "cache"
    made = {p: p.stat().st_mtime_ns for p in cache.rglob("*") if p.is_file()}
    assert any(p.name.startswith("monophone-") for p in made)
    assert run("prepare", experiment)[0] == 0
    assert {p: p.stat().st_mtime_ns for p in cache.rglob("*") if p.is_file()} == made


def test_a_complete_cache_in_a_read_only_folder_needs_no_lock(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("prepare", experiment)[0] == 0
    cache, real = experiment.parent / "cache", os.open

    def read_only(path: str | Path, *how: Any, **more: Any) -> int:
        if str(path) == str(beside(cache)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, *how, **more)

    monkeypatch.setattr(os, "open", read_only)
    code, said = run("prepare", experiment)
    assert code == 0, said
    (frames,) = cache.glob("frames-*")
    frames.rename(tmp_path / frames.name)
    try:
        code, said = run("prepare", experiment)
        assert code == 1
        assert ".cache.lock': the file system is read-only" in said
    finally:
        (tmp_path / frames.name).rename(frames)


def test_error_reports_lie_in_the_folder_of_the_run(experiment: Path, trained: Path) -> None:
    """Runs that share a cache wrote over each other's."""
    found = {path.name: path.read_text() for path in (trained / "errors").iterdir()}
    assert {"network-dev.txt", "network-test.txt"} <= found.keys()
    assert all(text.startswith("%WER") for text in found.values())
    assert not (trained / "decoded").exists()
    assert not (experiment.parent / "cache" / "errors").exists()


def test_align_writes_phones_words_and_states(experiment: Path, tmp_path: Path) -> None:
    code, said = run(
        "align", experiment, "--out", tmp_path, "--part", "train", "--part", "test", "--stage", "monophone"
    )
    assert code == 0, said
    task = resolved(str(experiment)).task
    for part, count in (("train", 40), ("test", 8)):
        facts = json.loads((tmp_path / part / "summary.json").read_text())
        assert (facts["utterances"], facts["lost"]) == (count, [])
        assert 0.2 < facts["silence"] < 0.6
        texts = read_table(experiment.parent / "set" / "data" / part / "text")
        words: dict[str, list[str]] = {name: [] for name in texts}
        for line in (tmp_path / part / "words.ctm").read_text().splitlines():
            words[line.split()[0]].append(line.split()[4])
        assert {name: " ".join(found) for name, found in words.items()} == texts
        phones = [line.split() for line in (tmp_path / part / "phones.ctm").read_text().splitlines()]
        said_phones = [row[4] for row in phones if row[0] == next(iter(texts)) and row[4] != "SIL"]
        assert said_phones == [p for word in next(iter(texts.values())).split() for p in LEXICON[word].split()]
        with np.load(tmp_path / part / "pdfs.npz", allow_pickle=False) as pdfs:
            assert sum(len(pdfs[name]) for name in pdfs.files) == facts["frames"]
            assert max(int(pdfs[name].max()) for name in pdfs.files) < facts["pdfs"]
            if part == "train":
                wanted = task.targets.train
                assert all(np.array_equal(pdfs[name], wanted[name]) for name in pdfs.files)


def test_decode_repeats_what_the_run_was_scored_with(experiment: Path, trained: Path, tmp_path: Path) -> None:
    kept = json.loads((trained / "score.json").read_text())
    code, said = run("decode", experiment, "--model", trained, "--out", tmp_path)
    assert code == 0, said
    facts = json.loads((tmp_path / "summary.json").read_text())
    assert facts["wer"] == kept["test"]["network test wer"]
    for name, value in facts["search"].items():
        assert value == kept["test"][f"network dev {name.replace('_', ' ')}"]
    assert f"{facts['wer']:.2f}" in run("score", experiment.parent / "set/data/test", tmp_path / "text")[1]
    times = [line.split() for line in (tmp_path / "words.ctm").read_text().splitlines()]
    assert " ".join(row[4] for row in times) == " ".join(read_table(tmp_path / "text").values())
    assert all(float(row[3]) > 0.05 for row in times)


def test_decode_other_data_with_other_settings(experiment: Path, trained: Path, tmp_path: Path) -> None:
    data = experiment.parent / "set/data/dev"
    options = ["--scale", 1.5, "--penalty", 0.5, "--beam", 9, "--max-active", 300, "--grammar", "one word"]
    code, said = run(
        "decode", experiment, "--model", trained / "best.safetensors", "--data", data, "--out", tmp_path, *options
    )
    assert code == 0, said
    facts = json.loads((tmp_path / "summary.json").read_text())
    assert facts["model"].endswith("best")
    assert {"acoustic_scale": 1.5, "insertion_penalty": 0.5, "beam": 9.0, "max_active": 300}.items() <= facts[
        "search"
    ].items()
    texts = read_table(tmp_path / "text")
    assert set(texts) == set(read_table(data / "text"))
    assert {len(text.split()) for text in texts.values()} == {1}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["align", "toy"], "toy trains a ToyTask, which needs no alignment"),
        (["align", "FILE", "--stage", "monofone"], "has no stage 'monofone'; did you mean 'monophone'?"),
        (["align", "FILE", "--part", "tset"], "did you mean 'test'?"),
        (["align", "FILE", "--set", "task.corpus=nowhere"], "nowhere"),
        (["decode", "toy", "--model", "RUN"], "toy trains a ToyTask, which recognises no speech"),
        (["decode", "FILE", "--model", "nowhere"], "nowhere is neither a .safetensors file nor a run's folder"),
        (["decode", "FILE", "--model", "RUN", "--grammar", "lop"], "this set has no grammar 'lop'"),
        (["decode", "FILE", "--model", "RUN", "--data", "nowhere"], "'nowhere' is not a folder"),
        (["decode", "FILE", "--model", "RUN", "--set", "task.network.hidden=16"], "has shape"),
    ],
)
def test_mistakes(words: list[str], says: str, experiment: Path, trained: Path, tmp_path: Path) -> None:
    places = {"FILE": experiment, "RUN": trained}
    code, said = run(*(places.get(word, word) for word in words), "--out", tmp_path / "x")
    assert code == 1, said
    assert says in said
    assert "Traceback" not in said
    assert not (tmp_path / "x").exists()


def test_report_of_runs(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("murmur.commands.report.write_report", lambda runs, out, _: asked.append((list(runs), out)))
    code, said = run("report", trained, trained, "--out", tmp_path / "page" / "report.html")
    assert (code, asked) == (0, [([trained, trained], tmp_path / "page" / "report.html")])
    assert str(tmp_path / "page" / "report.html") in said
    code, said = run("report", tmp_path / "nowhere")
    assert code == 1
    assert "there is no folder" in said


def test_a_test_that_was_cut_off_goes_on(
    experiment: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each utterance is decoded once with each setting, and the figures are those of an uninterrupted test."""
    decoded, allowed = 0, 10_000
    decode = Decoder.decode

    def counting(self: Decoder, scores_TC: np.ndarray) -> Hypothesis:
        nonlocal decoded
        if decoded == allowed:
            raise Stopped(signal.SIGTERM)
        decoded += 1
        return decode(self, scores_TC)

    monkeypatch.setattr(Decoder, "decode", counting)
    words = ("train", experiment, "--threads", 1, "--resume", "--out")
    whole, cut = (Path(shutil.copytree(trained, tmp_path / name)) for name in ("whole", "cut"))
    (whole / "score.json").unlink()
    (cut / "score.json").unlink()
    assert run(*words, whole)[0] == 0
    total, decoded, allowed = decoded, 0, 11
    assert total > 11
    with pytest.raises(Stopped):
        run(*words, cut)
    assert list((cut / "decoded").iterdir())
    assert not (cut / "score.json").exists()
    decoded, allowed = 0, 10_000
    assert run(*words, cut)[0] == 0
    assert decoded == total - 11
    assert not (cut / "decoded").exists()
    scores = [json.loads((folder / "score.json").read_text()) for folder in (whole, cut)]
    tests = [{name: value for name, value in s["test"].items() if "real-time" not in name} for s in scores]
    assert tests[0] == tests[1]
