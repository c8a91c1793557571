"""A trained run without its corpus, its cache and its experiment: the same words, times, confidences and exports."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from murmur.cli import app

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

import soundfile

from murmur.run.saved_model import find_model
from murmur.speech.corpus.kaldi_dir import read_table, write_table
from murmur.speech.decoding.graph_store import load_graph
from murmur.speech.recognition.decoding import word_lines
from murmur.speech.recognition.decoding import words_of as words_with_frames
from murmur.speech.recognition.trained_run import Wanted, open_run
from murmur.speech.recognition.tuning import SearchRequest
from murmur.speech.tasks.prepare_data import read_corpus
from murmur.speech.tasks.word_search import several
from tests.support.tones import CTC, HYBRID, RATE, make_tones, tones

WORDS = ["ANNA", "BOB", "NOB"]
RULES = "#JSGF V1.0;\ngrammar own;\npublic <r> = (ANNA | NOBBA)+;\n"
OWN = """
import sys
from dataclasses import dataclass
from murmur.speech.tasks.recogniser import Recognises
from torch import nn


@dataclass(frozen=True)
class OwnNet:
    hidden: int = 24
    stack = 1

    def build(self, inputs, outputs):
        return nn.Sequential(nn.Linear(inputs, self.hidden), nn.ReLU(), nn.Linear(self.hidden, outputs))


@dataclass(frozen=True)
class OwnTask(Recognises):
    task: HybridTask

    def __getattr__(self, name):
        if name in ("per_epoch", "samples_per_epoch", "prepare", "model", "minibatch", "loss", "evaluate"):
            return getattr(self.task, name)
        raise AttributeError(name)

    def test(self, model):
        return self.task.test(model)

    def recogniser(self):
        return self.task.recogniser()

    def utterances(self, part):
        return self.task.utterances(part)


print("the experiment was executed", file=sys.stderr)
"""


def run(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(w) for w in words], env={"COLUMNS": "200"})
    return done.exit_code, done.stdout, done.stderr


def done(*words: object) -> str:
    code, out, said = run(*words)
    assert code == 0, said
    assert "the experiment was executed" not in said or words[0] == "train"
    return out


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs, and what is used with them, beside a folder with the corpus and the cache."""
    root = tmp_path_factory.mktemp("tones")
    corpus = make_tones(root / "home" / "set", {"train": 48, "dev": 8, "test": 8})
    file = root / "home" / "tones_experiment.py"
    where = {"corpus": str(corpus), "cache": str(corpus.parent / "cache")}
    file.write_text(HYBRID.format(**where) + OWN.partition("@dataclass")[0] + OWN[OWN.index("print(") :])
    done("train", file, "--out", root / "hybrid", "--threads", 1)
    settings = [w for s in (*CTC, f"task.corpus={corpus}", f"task.cache={where['cache']}") for w in ("--set", s)]
    done("train", "ctc", *settings, "--out", root / "ctc", "--threads", 1)
    own = root / "home" / "own_experiment.py"
    text = HYBRID.format(**where).replace("network=Lstm(hidden=24, layers=1)", "network=OwnNet()")
    text = text.replace("def experiment", OWN + "\n\ndef experiment").replace(
        "Experiment(task,", "Experiment(OwnTask(task),"
    )
    own.write_text(text)
    done("train", own, "--out", root / "own", "--threads", 1)
    soundfile.write(root / "said.wav", tones(WORDS, 99), RATE)
    (root / "own.jsgf").write_text(RULES)
    (root / "mine.txt").write_text("NOBBA N O B\n")
    return root


@pytest.fixture(scope="module")
def other(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of dev as another data directory."""
    folder, corpus = tmp_path_factory.mktemp("other"), place / "home" / "set"
    for table in ("text", "utt2spk"):
        shutil.copy(corpus / "data" / "dev" / table, folder / table)
    wavs = {name: shutil.copy(path, folder) for name, path in read_table(corpus / "data/dev/wav.scp").items()}
    write_table(folder / "wav.scp", {name: str(path) for name, path in wavs.items()})
    return folder


@pytest.fixture
def moved(place: Path, tmp_path: Path) -> Iterator[Path]:
    """The place, moved, without corpus, cache and experiments; with a copy of the runs as they were."""
    away = tmp_path / "elsewhere"
    place.rename(away)
    (away / "home").rename(tmp_path / "gone")
    yield away
    (tmp_path / "gone").rename(away / "home")
    away.rename(place)


def words_of(root: Path, model: str, *options: object) -> str:
    return done("transcribe", root / model, root / "said.wav", "--format", "json", *options).replace(str(root), "")


OPTIONS = {
    "hybrid": ((), ("--grammar", "one word"), ("--grammar", "own.jsgf", "--lexicon", "mine.txt")),
    "ctc": ((), ("--grammar", "loop"), ("--grammar", "own.jsgf", "--beam", 100)),
}


def all_words(root: Path, model: str) -> list[str]:
    files = {name: root / name for name in ("own.jsgf", "mine.txt")}
    return [words_of(root, model, *(files.get(str(o), o) for o in options)) for options in OPTIONS[model]]


@pytest.mark.parametrize("model", ["hybrid", "ctc"])
def test_words_times_and_confidences_need_neither_corpus_nor_cache(
    request: pytest.FixtureRequest, place: Path, model: str
) -> None:
    before = all_words(place, model)
    assert [word["word"] for word in json.loads(before[0])["words"]] == WORDS
    moved = request.getfixturevalue("moved")
    graphs = {path.name for path in moved.glob("*/recogniser/graphs/graph-*")}
    assert all_words(moved, model) == before
    assert {path.name for path in moved.glob("*/recogniser/graphs/graph-*")} == graphs  # none was built again
    shutil.rmtree(moved / model / "recogniser" / "graphs")
    assert all_words(moved, model) == before


@pytest.mark.parametrize("model", ["hybrid", "ctc"])
def test_decoding_and_export_need_neither_corpus_nor_cache(
    request: pytest.FixtureRequest, place: Path, other: Path, tmp_path: Path, model: str
) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install murmur-asr[deploy])")
    source = {"hybrid": place / "home" / "tones_experiment.py", "ctc": "ctc"}[model]
    grammar = {"hybrid": (), "ctc": ("--grammar", "loop", "--scale", 0.7)}[model]

    def made(root: Path, out: Path) -> dict[str, bytes]:
        done("decode", source, "--model", root / model, "--data", other, "--out", out / "decoded", *grammar)
        done("export", root / model, "--out", out / "export", "--cmvn", "global", *grammar)
        return {path.name: path.read_bytes() for path in out.rglob("*") if path.name not in CHANGING}

    before = made(place, tmp_path / "before")
    assert {"text", "model.onnx", "graph.fst", "times.json"} < set(before)
    assert made(request.getfixturevalue("moved"), tmp_path / "after") == before


CHANGING = {"decoded", "export", ".export.lock", "summary.json"}  # folders, a time, and the speed of the search


def test_tuning_on_other_data_needs_neither_corpus_nor_cache(other: Path, moved: Path) -> None:
    options = ("--grammar", moved / "own.jsgf", "--lexicon", moved / "mine.txt", "--dev", other)
    assert words_of(moved, "hybrid", *options)
    code, _, said = run("transcribe", moved / "hybrid", moved / "said.wav", *options[:-1], "dev")
    assert code == 1
    assert "tones_experiment.py, which is not there" in said


def test_parts_of_the_runs_own_corpus_need_it(place: Path, tmp_path: Path) -> None:
    source = place / "home" / "tones_experiment.py"
    code, _, said = run("decode", source, "--model", place / "hybrid", "--data", "test", "--out", tmp_path)
    assert code == 0, said
    kept = json.loads((place / "hybrid" / "score.json").read_text())["test"]
    assert json.loads((tmp_path / "summary.json").read_text())["wer"] == kept["network test wer"]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def turned(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, turned, Path.unlink])
def test_a_damaged_file_is_named(place: Path, tmp_path: Path, damage) -> None:
    names = {
        "hybrid": {"manifest.json", "recogniser.json", "acoustic.npz", "states.npz", "lexicon.txt"},
        "ctc": {"manifest.json", "recogniser.json", "acoustic.npz", "words.txt"},
    }
    for model, wanted in names.items():
        assert {path.name for path in (place / model / "recogniser").iterdir()} - {"graphs"} == wanted
        for name in sorted(wanted):
            copy = Path(shutil.copytree(place / model, tmp_path / f"{model}-{name}"))
            damage(copy / "recogniser" / name)
            code, out, said = run("transcribe", copy, place / "said.wav")
            assert (code, out, said.count("\n")) == (1, "", 1), said
            assert str(copy / "recogniser" / name) in said


def test_a_hybrid_run_without_a_score_needs_a_scale(place: Path, other: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(place / "hybrid", tmp_path / "hybrid"))
    (copy / "score.json").unlink()
    code, _, said = run("decode", "digits_hybrid", "--model", copy, "--data", other, "--out", tmp_path / "out")
    assert code == 1
    assert "give --scale, such as " in said
    assert not (tmp_path / "out").exists()


def test_a_recogniser_is_small(place: Path) -> None:
    files = [path for path in (place / "hybrid" / "recogniser").rglob("*") if path.is_file()]
    assert 1000 < sum(path.stat().st_size for path in files) < 200_000


def test_code_of_an_experiment_is_needed_only_for_a_network_of_its_own(
    place: Path, other: Path, tmp_path: Path
) -> None:
    """A task of a user's own implements the protocol; its network is a class of the experiment's file."""
    code, out, said = run("transcribe", place / "own", place / "said.wav")
    assert (code, "the experiment was executed" in said) == (0, True), said
    theirs = Path(shutil.copytree(place / "own", tmp_path / "theirs"))
    facts = json.loads((theirs / "run.json").read_text())
    (theirs / "run.json").write_text(json.dumps({**facts, "signature": "of another user"}))
    code, _, said = run("transcribe", theirs, place / "said.wav")
    assert (code, "the experiment was executed" in said) == (1, False), said
    assert f"the network of {theirs} is a murmur_experiment_own_experiment.OwnNet, which is code" in said
    assert "give --trust" in said
    set_aside = (place / "home" / "set").rename(place / "home" / "aside")
    try:
        assert run("transcribe", theirs, place / "said.wav", "--trust")[:2] == (0, out)
    finally:
        set_aside.rename(place / "home" / "set")
    source, decoded = place / "home" / "own_experiment.py", tmp_path / "decoded"
    code, _, said = run("decode", source, "--model", place / "own", "--data", other, "--out", decoded)
    assert (code, (decoded / "words.ctm").is_file()) == (0, True), said


def test_several_runs_decode_with_their_mean_scores(place: Path, other: Path, tmp_path: Path) -> None:
    """A search fed by hand with the mean finds the words of the command; --dev tunes for the mean."""
    source, both = place / "home" / "tones_experiment.py", ("--with", place / "own")
    words = ("decode", source, "--model", place / "hybrid", "--data", other)
    code, _, said = run(*words, *both, "--out", tmp_path / "a")  # the class of the other network is its experiment's
    assert code == 0, said
    facts = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert facts["with"] == [str(find_model(place / "own"))]
    runs = [open_run(Wanted(place / name)) for name in ("hybrid", "own")]
    corpus = read_corpus(str(other))
    feats = [one.acoustic.features(corpus, tmp_path / "feats") for one in runs]
    scores = {
        name: np.mean([one.scores(own[name]) for one, own in zip(runs, feats, strict=True)], 0) for name in corpus.texts
    }
    assert any(np.abs(runs[0].scores(feats[0][name]) - scores[name]).max() > 1 for name in scores)
    search, options = runs[0].searched(SearchRequest(None, None, {}))
    expected = search.decode(iter(scores.items()), options)
    timed = words_with_frames(expected, search.spans(load_graph(search.folder).columns))
    assert read_table(tmp_path / "a" / "text") == expected.texts
    assert (tmp_path / "a" / "words.ctm").read_text() == "".join(word_lines(timed, 0.01 * runs[0].stack))
    done(*words, "--out", tmp_path / "alone")
    assert (tmp_path / "alone" / "words.ctm").read_text() != (tmp_path / "a" / "words.ctm").read_text()
    grid = search.tune(several(search.sources), scores, corpus.texts)
    assert run(*words, *both, "--dev", other, "--out", tmp_path / "tuned")[0] == 0
    found = json.loads((tmp_path / "tuned" / "summary.json").read_text())["search"]
    assert (found["acoustic_scale"], found["beam"]) == (grid.acoustic_scale, grid.beam)


def test_runs_with_other_outputs_do_not_decode_together(place: Path, other: Path, tmp_path: Path) -> None:
    source = place / "home" / "tones_experiment.py"
    words = ("decode", source, "--model", place / "hybrid", "--data", other, "--out", tmp_path / "out")
    code, _, said = run(*words, "--with", place / "ctc")
    assert code == 1
    assert "its outputs are not those of" in said
    assert not (tmp_path / "out").exists()
    assert run(*words, "--with", place / "nothing")[0] == 1
