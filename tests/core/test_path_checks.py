"""Every command checks its paths, names and settings before it prepares, reads or trains anything."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from murmur.cli import app

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.core import path_checks as checks
from tests.support.plateaus import make_experiment

CTC = ["ctc", "--set", "task.corpus=SET", "--set", "task.cache=CACHE"]


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(w) for w in words], env={"COLUMNS": "200"})
    return done.exit_code, done.output


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experiment file on a data set; no test here may prepare it."""
    return make_experiment(tmp_path_factory.mktemp("hybrid"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """File with a valid header, of an unknown model."""
    save_file({"weights": torch.zeros(3)}, tmp_path / "some.safetensors")
    return tmp_path / "some.safetensors"


CASES = [
    (["train", "HYBRID", "--out", "FILE"], "is a file, not a folder: choose another --out"),
    (["train", "HYBRID", "--set", "task.decoding.network.grammar=tg"], "network.grammar: this set has no grammar 'tg'"),
    (["train", "HYBRID", "--set", "task.corpus=NOWHERE"], "nowhere: name the folder of the set (task.corpus)"),
    (["train", "HYBRID", "--set", "task.loader=an4"], "an4.dic is missing"),
    (["train", "HYBRID", "--set", "task.corpus=SET/data/train"], "is a data directory, not a set"),
    (
        ["train", "HYBRID", "--set", "averaged_checkpoints=0", "--weights", "averaged"],
        "needs averaged_checkpoints of 1 or more",
    ),
    (["train", "HYBRID", "--init", "NOWHERE"], "nowhere is neither a .safetensors file nor a run's folder"),
    (["train", "HYBRID", "--init", "DAMAGED"], "damaged.safetensors cannot be read"),
    (["train", "HYBRID", "--secret-file", "NOWHERE"], "nowhere"),
    (["train", *CTC, "--set", "task.decoding.grammar=lm.arpa"], "there is no grammar 'lm.arpa'"),
    (["train", *CTC, "--set", "task.units=phone", "--set", "task.lexicon=no.txt"], "task.units=phone needs a lexicon"),
    (["decode", *CTC, "--model", "NOWHERE"], "nowhere is neither a .safetensors file nor a run's folder"),
    (["decode", *CTC, "--model", "DAMAGED"], "damaged.safetensors cannot be read"),
    (["decode", *CTC, "--model", "MODEL", "--out", "FILE"], "is a file, not a folder: choose another --out"),
    (["decode", *CTC, "--model", "MODEL", "--data", "NOWHERE"], "is not a folder, a manifest"),
    (["decode", *CTC, "--model", "MODEL", "--data", "SET"], "is a set, not a data directory: name one of"),
    (["decode", *CTC, "--model", "MODEL", "--grammar", "lm.arpa"], "--grammar: there is no grammar 'lm.arpa'"),
    (["decode", "HYBRID", "--model", "MODEL"], "a command that uses a model prepares nothing"),
    (["decode", "HYBRID", "--model", "MODEL", "--scale", "1", "--grammar", "tg"], "has no grammar 'tg'"),
    (["transcribe", "NOWHERE", "FILE"], "nowhere is neither a .safetensors file nor a run's folder"),
    (["transcribe", "MODEL", "NOWHERE", "--experiment", "HYBRID"], "murmur: there is no file '"),
    (["transcribe", "MODEL", "NOWHERE", "X"], "none of the 2 files exists; the first is '"),
    (["transcribe", "MODEL", "FILE", "--experiment", "HYBRID", "--out", "FILE"], "choose another --out"),
    (["transcribe", "MODEL", "FILE", "--experiment", "HYBRID", "--grammar", "tg"], "has no grammar 'tg'"),
    (["export", "MODEL", "--experiment", "HYBRID", "--out", "FILE"], "choose another --out"),
    (["export", "MODEL", "--experiment", "HYBRID", "--out", "X", "--grammar", "tg"], "has no grammar 'tg'"),
    (["score", "TEXT", "TEXT", "NOWHERE"], "there is no file"),
    (["score", "TEXT", "TEXT", "--speakers", "NOWHERE"], "nowhere does not exist"),
    (["score", "TEXT", "TEXT", "--errors", "SET"], "is a folder: give the name of a file"),
    (["compare", "HYBRID", "--strategies", "SyncSGD", "--virtual", "2", "--out", "FILE"], "choose another --out"),
    (["compare", "HYBRID", "--strategies", "SyncSGD", "--virtual", "2", "--cluster", "gold"], "gold"),
    (["papers", "asgd", "--corpus", "NOWHERE", "--cache", "CACHE"], "nowhere"),
    (["papers", "asgd", "--an4", "NOWHERE", "--cache", "CACHE"], "nowhere"),
    (["papers", "asgd", "--librispeech", "NOWHERE", "--cache", "CACHE"], "nowhere: name the folder of the set"),
    (["papers", "asgd", "--corpus", "SET", "--cache", "CACHE", "--out", "FILE"], "choose another --out"),
    (["papers", "asgd", "--corpus", "SET", "--cache", "CACHE", "--rows", "SET"], "give the name of a file"),
    (["simulate", "HYBRID", "--out", "FILE"], "is a file, not a folder: choose another --out"),
    (["simulate", "HYBRID", "--set", "task.decoding.network.grammar=tg"], "has no grammar 'tg'"),
    (["prepare", "HYBRID", "--set", "task.decoding.network.grammar=tg"], "has no grammar 'tg'"),
    (["prepare", "SET/data/train", "--out", "FILE"], "is a file, not a folder: choose another --out"),
    (["prepare", "SET/data/train", "--alignments", "NOWHERE"], "--alignments"),
    (["prepare", "yesno", "--download", "FILE"], "is a file, not a folder: choose another --download"),
    (["lexicon", "TEXT", "--guess", "graphemes", "--out", "FILE"], "choose another --out"),
    (["lexicon", "TEXT", "--base", "NOWHERE"], "--base"),
    (["lm", "train", "TEXT", "--out", "SET"], "is a folder: give the name of a file"),
    (["lm", "train", "TEXT", "--vocabulary", "NOWHERE", "--out", "X"], "--vocabulary"),
    (["lm", "perplexity", "TEXT", "NOWHERE"], "there is no file"),
    (["align", "HYBRID", "--stage", "triphone"], "the experiment has no stage 'triphone'"),
    (["align", "HYBRID", "--out", "FILE"], "is a file, not a folder: choose another --out"),
    (["report", "SET", "--audio", "NOWHERE"], "nowhere does not exist"),
    (["report", "SET", "--out", "SET"], "is a folder: give the name of a file"),
    (["report", "SET", "--tensorboard", "FILE"], "choose another --tensorboard"),
    (["doctor", "--json", "SET"], "is a folder: give the name of a file"),
    (["demo", "--out", "FILE"], "is a file, not a folder: choose another --out"),
]


@pytest.mark.parametrize(("words", "says"), CASES, ids=[" ".join(words) for words, _ in CASES])
def test_mistakes_are_told_before_anything_is_made(
    words: list[str], says: str, hybrid: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "damaged.safetensors").write_bytes(b"no header")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    root = hybrid.parent / "set"
    places = {
        "HYBRID": hybrid,
        "SET": root,
        "CACHE": tmp_path / "cache",
        "FILE": tmp_path / "file",
        "NOWHERE": tmp_path / "nowhere",
        "DAMAGED": tmp_path / "damaged.safetensors",
        "MODEL": model,
        "TEXT": root / "data" / "test" / "text",
        "X": tmp_path / "x",
    }
    before = sorted(tmp_path.rglob("*"))
    code, said = run(*(re.sub("[A-Z]{3,}|^X$", lambda m: str(places.get(m[0], m[0])), word) for word in words))
    assert code == 1, said
    assert says in said
    assert len(said.splitlines()) == 1, said  # the error is the only output
    assert [path for path in sorted(tmp_path.rglob("*")) if not path.name.endswith(".lock")] == before
    assert not (hybrid.parent / "cache").exists()


OVERWRITING = [
    ["decode", *CTC, "--model", "MODEL", "--data", "DATA", "--out", "DATA"],
    ["decode", *CTC, "--model", "MODEL", "--data", "test", "--out", "DATA"],
    ["decode", *CTC, "--model", "MODEL", "--lm", "HERE/text", "--out", "HERE"],
    ["decode", *CTC, "--model", "MODEL", "--words", "HERE/text", "--out", "HERE"],
    ["decode", *CTC, "--model", "MODEL", "--grammar", "HERE/text", "--out", "HERE"],
    ["decode", *CTC, "--model", "MODEL", "--words", "FILE", "--lexicon", "HERE/text", "--out", "HERE"],
    ["transcribe", "MODEL", "HERE/a.flac", "--words", "HERE/a.txt", "--out", "HERE"],
    ["transcribe", "MODEL", "HERE/a.flac", "--lm", "HERE/a.txt", "--out", "HERE"],
    ["transcribe", "MODEL", "HERE/a.flac", "--grammar", "HERE/a.txt", "--out", "HERE"],
    ["transcribe", "MODEL", "HERE/a.flac", "--words", "FILE", "--lexicon", "HERE/a.txt", "--out", "HERE"],
    ["transcribe", "MODEL", "HERE/a.flac", "--adapt", "--utt2spk", "HERE/a.txt", "--out", "HERE"],
    ["transcribe", "MODEL", "HERE/a.flac", "--channels", "each", "--words", "HERE/a-B.txt", "--out", "HERE"],
    ["transcribe", "MODEL", "HERE/a.txt", "--out", "HERE"],
    ["report", "HERE", "--out", "HERE/records.jsonl"],
    ["report", "HERE", "--out", "HERE/checkpoints/began.json"],
    ["report", "HERE", "--audio", "DATA/wav.scp", "--out", "DATA/wav.scp"],
    ["report", "HERE", "--audio", "DATA", "--out", "DATA/text"],
    ["doctor", "HERE/experiment.py", "--json", "HERE/experiment.py"],
]


@pytest.mark.parametrize("words", OVERWRITING, ids=[" ".join(words) for words in OVERWRITING])
def test_outputs_replace_no_input(words: list[str], model: Path, tmp_path: Path) -> None:
    """The names of files are relative here, and in another form than those of the outputs."""
    here, data = tmp_path / "here", tmp_path / "data"
    for path in (*(here / name for name in ("text", "a.txt", "a-B.txt", "a.flac", "records.jsonl")), tmp_path / "file"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("a speaker\n")
    (here / "experiment.py").write_text("from murmur.recipes.toy import experiment\n")
    (here / "checkpoints").mkdir()
    (here / "checkpoints" / "began.json").write_text("{}")
    data.mkdir()
    for name in ("text", "wav.scp"):
        (data / name).write_text("u one\n")
    places = {"HERE": f"{data}/../here", "DATA": data, "MODEL": model, "FILE": tmp_path / "file"}
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    code, said = run(*(re.sub("[A-Z]{3,}", lambda m: str(places.get(m[0], m[0])), word) for word in words))
    assert code == 1, said
    assert "overwritten: choose another --" in said
    assert len(said.splitlines()) == 1, said
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_page_replaces_an_older_page(tmp_path: Path) -> None:
    assert run("train", "toy", "--out", tmp_path, "--set", "budget.minibatches=4", "--threads", 1)[0] == 0
    for name in ("report.html", "other.html"):
        (tmp_path / name).write_text("older")
        assert run("report", tmp_path, "--out", tmp_path / name)[0] == 0
        assert (tmp_path / name).read_text() != "older"


@pytest.fixture
def an_ordinary_user() -> Iterator[None]:
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.usefixtures("an_ordinary_user")
def test_a_folder_that_may_not_be_written_is_called_that() -> None:
    place = Path("/usr/lib")
    with pytest.raises(ValueError, match="--out /usr/lib/runs/a: you may not write in /usr/lib: choose another --out"):
        checks.folder_to_write(place / "runs" / "a", "--out")


def test_a_read_only_file_system_is_called_that() -> None:
    place = Path("/sys")
    if not place.is_dir() or not os.statvfs(place).f_flag & os.ST_RDONLY:
        pytest.skip("this host has no /sys that is mounted read-only")
    with pytest.raises(ValueError, match="--out /sys/runs: /sys is on a read-only file system"):
        checks.folder_to_write(place / "runs", "--out")


def test_free_space_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "free_bytes", lambda _: 2e6)
    code, said = run("train", "toy", "--out", tmp_path / "a" / "b")
    assert code == 1
    assert f"--out {tmp_path}/a/b: 2 MB are free in {tmp_path}, about 10 MB are needed: make room" in said
    assert not (tmp_path / "a").exists()
