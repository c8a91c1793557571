"""`murmur prepare DATA`: shards, statistics, summary; a kill in the middle loses only the shard in work."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from murmur.cli import app

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

import soundfile

from murmur.speech.corpus.kaldi_dir import read_data_dir, write_table
from murmur.speech.features.analysis import LogMel, Mfcc, Ready
from murmur.speech.features.feature_store import features_in
from murmur.speech.features.shards import open_frames
from tests.support.plateaus import make_set
from tests.support.speech_files import write_cuts

UTTERANCES = 12
# Shards of two utterances, slow enough for a kill between two of them.
SLOW = (
    "import sys, time; from murmur.speech.features import feature_store, shards; from murmur.cli import app\n"
    "whole = shards.make_shard\n"
    "def slow(*rest):\n    whole(*rest)\n    time.sleep(0.4)\n"
    "feature_store.UTTERANCES_PER_SHARD = 2; shards.make_shard = slow; app(sys.argv[1:])"
)


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["prepare", *map(str, words)], env={"COLUMNS": "200"})
    return done.exit_code, done.output


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    names = [f"s{n % 3}-{n:02}" for n in range(UTTERANCES)]
    for name in names:
        soundfile.write(root / f"{name}.wav", 0.1 * rng.standard_normal(4000).astype(np.float32), 8000)
    write_table(root / "text", dict.fromkeys(names, "A B"))
    write_table(root / "utt2spk", {n: n.partition("-")[0] for n in names})
    write_table(root / "wav.scp", {n: f"{n}.wav" for n in names})
    return root


def folder_in(out: Path) -> Path:
    (found,) = out.glob("features-*")
    return found


@pytest.mark.parametrize(
    ("options", "front"),
    [
        ([], LogMel(rate_hz=8000)),
        (["--kind", "mfcc"], Mfcc(rate_hz=8000)),
        (["--kind", "log-mel", "--bins", "24"], LogMel(rate_hz=8000, bins=24)),
    ],
)
def test_store_statistics_and_summary(options: list[str], front: LogMel | Mfcc, data: Path, tmp_path: Path) -> None:
    code, said = run(data, "--out", tmp_path, *options)
    assert code == 0, said
    assert f"{UTTERANCES} utterances, 3 speakers, 0 skipped" in said
    folder = folder_in(tmp_path)
    assert str(folder) in said
    store = features_in(open_frames(folder), read_data_dir(data), front)
    facts = json.loads((folder / "summary.json").read_text())
    assert (facts["utterances"], facts["speakers"], facts["skipped"]) == (UTTERANCES, 3, [])
    assert facts["frames"] == sum(len(store[u]) for u in store)
    assert facts["hours"] == pytest.approx(UTTERANCES * 0.5 / 3600, rel=0.05)
    with np.load(folder / "cmvn-speaker.npz", allow_pickle=False) as found:
        assert list(found["names"]) == ["s0", "s1", "s2"]
        own = np.concatenate([store[u] for u in store if u.startswith("s1")])
        assert np.allclose(found["means"][1], own.mean(0), atol=1e-4)
        assert np.allclose(found["deviations"][1], own.std(0), atol=1e-4)


def test_cuts_stored_features_and_other_scopes(data: Path, tmp_path: Path) -> None:
    write_cuts(read_data_dir(data), tmp_path / "cuts.jsonl.gz")
    code, said = run(tmp_path / "cuts.jsonl.gz", "--cmvn", "utterance", "--out", tmp_path / "a")
    assert code == 0, said
    with np.load(folder_in(tmp_path / "a") / "cmvn-utterance.npz", allow_pickle=False) as found:
        assert len(found["names"]) == UTTERANCES
    root = make_set(tmp_path / "set", {"train": 4})
    code, said = run(root / "data" / "train", "--cmvn", "none", "--out", tmp_path / "b")
    assert code == 0, said
    assert not list(folder_in(tmp_path / "b").glob("cmvn-*"))
    assert len(features_in(open_frames(folder_in(tmp_path / "b")), read_data_dir(root / "data/train"), Ready(13))) == 4


def test_skipped_utterances_are_named(tmp_path: Path) -> None:
    names = [f"u{n:03}" for n in range(150)]
    for name in names:
        soundfile.write(tmp_path / f"{name}.wav", np.zeros(100 if name == "u007" else 800, np.float32), 8000)
    write_table(tmp_path / "text", dict.fromkeys(names, "A"))
    write_table(tmp_path / "wav.scp", {n: f"{n}.wav" for n in names})
    code, said = run(tmp_path, "--out", tmp_path / "out")
    assert code == 0, said
    assert "149 utterances, 149 speakers, 1 skipped" in said
    (lost,) = json.loads((folder_in(tmp_path / "out") / "summary.json").read_text())["skipped"]
    assert lost["utterance"] == "u007"
    assert "shorter than one analysis window" in lost["what"]


def test_a_kill_loses_only_the_shard_in_work(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [sys.executable, "-c", SLOW, "prepare", str(data), "--out", str(tmp_path / "killed")]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(list((tmp_path / "killed").glob("*/[0-9]*.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    folder = folder_in(tmp_path / "killed")
    before = {p.name: p.stat().st_mtime_ns for p in folder.glob("[0-9]*.json")}
    assert 2 <= len(before) < UTTERANCES // 2
    assert not (folder / "summary.json").exists()
    (folder / "00000.feats.npy").write_bytes(b"half a shard")  # possible remains of a crash of the whole machine
    damaged = before.pop("00000.json")

    monkeypatch.setattr("murmur.speech.features.feature_store.UTTERANCES_PER_SHARD", 2)
    assert run(data, "--out", tmp_path / "killed")[0] == 0
    after = {p.name: p.stat().st_mtime_ns for p in folder.glob("[0-9]*.json")}
    assert before.items() <= after.items()
    assert after["00000.json"] != damaged
    assert len(after) == UTTERANCES // 2
    assert run(data, "--out", tmp_path / "whole")[0] == 0
    assert contents(folder) == contents(folder_in(tmp_path / "whole"))


def contents(folder: Path) -> dict[str, str]:
    """Digests of all complete files."""
    files = (p for p in folder.iterdir() if p.suffix in (".npy", ".json"))
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["yesn"], "'yesn' is not a folder, a manifest, a .py file or a recipe; did you mean 'yesno'?"),
        (["SET"], "is a set, not a data directory: name one of"),
        (["EMPTY"], "has no file 'text'"),
        (["cuts.jsonl"], "'cuts.jsonl' is not a folder, a manifest"),
        (["DATA", "--kind", "stored"], "brings no features (feats.scp): choose --kind log-mel or mfcc"),
        (["DATA", "--set", "task.x=1"], "--set is for experiments"),
        (["toy", "--kind", "mfcc"], "--allow-commands are for data"),
        (["toy", "--jobs", "2"], "ToyTask has no field 'jobs'"),
        (["SET/data/train", "--bins", "13"], "--bins is for features computed here"),
    ],
)
def test_mistakes(words: list[str], says: str, data: Path, tmp_path: Path) -> None:
    root = make_set(tmp_path / "set", {"train": 2})
    (tmp_path / "empty").mkdir()
    places = {"SET": root, "DATA": data, "EMPTY": tmp_path / "empty", "SET/data/train": root / "data/train"}
    code, said = run(*(places.get(word, word) for word in words), "--out", tmp_path / "x")
    assert code == 1, said
    assert says in said
    assert not (tmp_path / "x").exists()
