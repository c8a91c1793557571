"""A chain model from audio to words: train, decode, transcribe and export, without corpus and cache at the end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from murmur.cli import app

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

import soundfile

from murmur.run.configuration import configure, resolved
from murmur.speech.corpus.kaldi_dir import read_table
from murmur.speech.hmm.grow import TreeConfig
from tests.support.tones import LEXICON, RATE, make_tones, tones

WORDS = ["ANNA", "BOB", "NOB"]
CHAIN = """
from pathlib import Path
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import Adam
from murmur.speech.features.augment import SpecAugment
from murmur.speech.models import Tdnn
from murmur.strategies import SyncSGD
from murmur.speech.features.chunks import Chunks
from murmur.speech.tasks.hybrid.config import Decoding, FrontEnd
from murmur.speech.tasks.graph_sources import Search
from murmur.speech.tasks.hybrid.config import ChainMmi
from murmur.speech.tasks.hybrid.task import HybridTask


def experiment():
    task = HybridTask(
        corpus=Path({corpus!r}),
        cache=Path({cache!r}),
        front=FrontEnd(bins=12, cmvn="speaker"),
        network=Tdnn(24, ((-1, 0, 1), (-3, 0, 3), (0,)), dropout=0.0, stack=3),
        criterion=ChainMmi(),
        chunks=Chunks(size=8),
        augment=SpecAugment(time_masks=0, bin_masks=0),
        decoding=Decoding(network=Search(scales=(1.0,))),
    )
    return Experiment(task, SyncSGD(), Budget(epochs=16), Adam(lr=1e-2), evaluate_every_epochs=16.0)
"""


def run(*words: object) -> str:
    done = CliRunner().invoke(app, [str(w) for w in words], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run, and dev as another data directory; corpus and cache are gone."""
    root = tmp_path_factory.mktemp("chain")
    corpus = make_tones(root / "home" / "set", {"train": 48, "dev": 8, "test": 8})
    file = root / "chain_experiment.py"
    file.write_text(CHAIN.format(corpus=str(corpus), cache=str(root / "home" / "cache")))
    run("train", file, "--out", root / "run", "--threads", 1)
    run("decode", file, "--model", root / "run", "--data", "dev", "--out", root / "before")
    shutil.copytree(corpus / "data" / "dev", root / "dev")
    shutil.copytree(corpus / "wav", root / "wav")
    table = (root / "dev" / "wav.scp").read_text()
    (root / "dev" / "wav.scp").write_text(table.replace(str(corpus / "wav"), str(root / "wav")))
    shutil.rmtree(root / "home")
    soundfile.write(root / "said.wav", tones(WORDS, 99), RATE)
    return root


def test_the_words_are_learnt_and_found_without_the_corpus(place: Path, tmp_path: Path) -> None:
    figures = json.loads((place / "run" / "score.json").read_text())["test"]
    assert figures["network test wer"] <= 20
    run("decode", place / "chain_experiment.py", "--model", place / "run", "--data", place / "dev", "--out", tmp_path)
    facts = json.loads((tmp_path / "summary.json").read_text())
    assert facts["wer"] == figures["network dev wer"]
    for name in ("text", "words.ctm"):
        assert (tmp_path / name).read_bytes() == (place / "before" / name).read_bytes()
    texts = read_table(place / "dev" / "text")
    for line in (tmp_path / "words.ctm").read_text().splitlines():
        name, _, begin, length, _ = line.split()
        info = soundfile.info(place / "wav" / f"{name}.wav")
        assert 0 <= float(begin) < float(begin) + float(length) <= info.duration + 0.03
        assert name in texts


def test_recordings_are_transcribed_with_times_and_the_run_is_exported(place: Path, tmp_path: Path) -> None:
    found = json.loads(run("transcribe", place / "run", place / "said.wav", "--format", "json"))
    assert [word["word"] for word in found["words"]] == WORDS
    rng, at = np.random.default_rng(99), 0.125  # lengths as `tones` draws them
    for word in found["words"]:  # a flat start may give the silence of 0.1 s between two words to either of them
        assert word["start_seconds"] == pytest.approx(at, abs=0.1)
        at += sum(int(RATE * rng.uniform(0.06, 0.1)) for _ in LEXICON[word["word"]].split()) / RATE
        assert word["end_seconds"] == pytest.approx(at, abs=0.1)
        at += 0.1
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install murmur-asr[deploy])")
    run("export", place / "run", "--out", tmp_path / "export", "--cmvn", "global")
    assert {"model.onnx", "graph.fst"} <= {path.name for path in (tmp_path / "export").iterdir()}


def test_the_recipe_has_the_set_of_an4_and_a_tree_by_a_setting() -> None:
    chain, first = resolved("an4_chain"), resolved("an4")
    assert (chain.task.corpus, chain.task.hmm) == (first.task.corpus, first.task.hmm)
    changed = configure(chain, ["task.criterion.tree=TreeConfig(leaves=300)", "task.criterion.shifts=(0,)"])
    assert changed.task.criterion.tree == TreeConfig(leaves=300)
    assert changed.task.criterion.shifts == (0,)
