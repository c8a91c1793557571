"""Runs whose networks take i-vectors and adapted features: trained, then used without corpus and cache."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.cli import app
from murmur.speech.commands.decode import opened
from murmur.speech.corpus.kaldi_dir import read_table, write_table
from murmur.speech.recognition.tuning import SearchRequest
from tests.support.tones import RATE, make_tones, tones

EXAMPLE = Path(__file__).parents[3] / "examples" / "decode_export.py"
WORDS = [["ANNA", "BOB", "NOB"], ["NOB", "NOB", "ANNA", "BOB"]]
IVECTOR = "IvectorConfig(dims=3, passes=3, ubm=UbmConfig(gaussians=5, passes=3))"
INPUTS = {
    "ivector": [f"task.front.input=NetworkInput(deltas=1, ivector={IVECTOR})", "task.front.normalised=all"],
    "fmllr": ["task.front.input=NetworkInput(fmllr=True)"],
    "all": [f"task.front.input=NetworkInput(fmllr=True, ivector={IVECTOR})"],
}
EXPERIMENT = """
from pathlib import Path
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import Adam
from murmur.speech.features.augment import SpecAugment
from murmur.speech.hmm.em_loop import EmConfig
from murmur.speech.hmm.grow import TreeConfig
from murmur.speech.hmm.sat import SatConfig
from murmur.speech.hmm.fmllr import FmllrConfig
from murmur.speech.hmm.triphone import TriphoneConfig
from murmur.speech.models import Tdnn
from murmur.strategies import SyncSGD
from murmur.speech.features.chunks import Chunks
from murmur.speech.tasks.hybrid.config import Decoding, FrontEnd, HmmStages
from murmur.speech.tasks.graph_sources import Search
from murmur.speech.tasks.hybrid.task import HybridTask

EM = EmConfig(gaussians=30, passes=5, grow_passes=4, align_passes=(2, 3, 4), min_gaussian_frames=3)
TREE, FMLLR = TreeConfig(leaves=16, min_frames=10, min_gain=1.0), FmllrConfig(min_frames=50)


def experiment():
    task = HybridTask(
        corpus=Path({corpus!r}),
        cache=Path({cache!r}),
        front=FrontEnd(bins=12),
        hmm=HmmStages(monophone=EM, triphone=TriphoneConfig(TREE, EM), sat=SatConfig((2,), FMLLR, FMLLR, TREE, EM)),
        network=Tdnn(hidden=32, dropout=0.0),
        chunks=Chunks(frames=40, size=8),
        augment=SpecAugment(time_masks=1, time_frames=3, bin_masks=0),
        decoding=Decoding(gmm=Search(scales=(0.1,)), network=Search(scales=(0.3,)), scored="none"),
    )
    return Experiment(task, SyncSGD(), Budget(epochs=12), Adam(lr=1e-2), evaluate_every_epochs=12.0)
"""


def run(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(w) for w in words], env={"COLUMNS": "200"})
    return done.exit_code, done.stdout, done.stderr


def done(*words: object) -> str:
    code, out, said = run(*words)
    assert code == 0, said
    return out


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a corpus and an experiment; the runs share the cache."""
    root = tmp_path_factory.mktemp("home")
    corpus = make_tones(root / "set", {"train": 48, "dev": 8, "test": 8})
    (root / "experiment.py").write_text(EXPERIMENT.format(corpus=str(corpus), cache=str(root / "cache")))
    return root


@pytest.fixture(scope="module", params=INPUTS)
def place(request: pytest.FixtureRequest, home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run alone in a folder, with its test set as another data directory and two recordings."""
    root = tmp_path_factory.mktemp(request.param)
    settings = [word for setting in INPUTS[request.param] for word in ("--set", setting)]
    done("train", home / "experiment.py", *settings, "--out", root / "run", "--threads", 1)
    data = root / "other"
    data.mkdir()
    for table in ("text", "utt2spk"):
        shutil.copy(home / "set" / "data" / "test" / table, data / table)
    paths = read_table(home / "set" / "data" / "test" / "wav.scp")
    write_table(data / "wav.scp", {name: str(shutil.copy(path, data)) for name, path in paths.items()})
    for number, words in enumerate(WORDS):
        soundfile.write(root / f"said{number}.wav", tones(words, 90 + number), RATE)
    return root


def test_a_finished_run_decodes_other_speech_as_its_own_test(place: Path, home: Path) -> None:
    score = json.loads((place / "run" / "score.json").read_text())["test"]
    assert score["network test wer"] < 40
    (home / "cache").rename(home / "gone")
    try:
        decode = ("decode", "hybrid", "--model", place / "run", "--data", place / "other")
        done(*decode, "--out", place / "decoded")
        done(*decode, "--out", place / "two", "--jobs", 2)
    finally:
        (home / "gone").rename(home / "cache")
    found = json.loads((place / "decoded" / "summary.json").read_text())
    assert found["wer"] == score["network test wer"]
    assert (place / "decoded" / "text").read_text() == (place / "two" / "text").read_text()


def test_recordings_are_transcribed_alone_and_together_as_one_speaker(place: Path) -> None:
    files = [place / f"said{number}.wav" for number in range(len(WORDS))]

    def words(*options: object) -> list[list[str]]:
        out = place / "transcripts"
        done("transcribe", place / "run", *files, "--format", "json", "--out", out, *options)
        found = [json.loads((out / f"{file.stem}.json").read_text())["words"] for file in files]
        return [[word["word"] for word in each] for each in found]

    assert words() == WORDS
    assert words("--adapt") == WORDS
    speakers = ("--adapt", "--utt2spk", place / "utt2spk")
    (place / "utt2spk").write_text("said0 anna\nsaid1 bob\n")
    assert words(*speakers) == WORDS
    soundfile.write(place / "muted.wav", 1e-4 * np.ones(8 * RATE, np.float32), RATE)
    files.append(place / "muted.wav")
    assert words("--adapt")[:-1] == WORDS  # a file without sound changes nothing
    (place / "utt2spk").write_text("said0 anna\nsaid1 bob\nmuted anna\n")
    assert words(*speakers)[:-1] == WORDS
    (place / "utt2spk").write_text("said0 anna\nsaid1 bob\n")
    code, _, said = run("transcribe", place / "run", *files, *speakers)
    assert code == 1
    assert "no line for 'muted'" in said
    (place / "again").mkdir(exist_ok=True)
    shutil.copy(files[0], place / "again" / files[0].name)
    code, _, said = run("transcribe", place / "run", files[0], place / "again" / files[0].name, *speakers)
    assert code == 1
    assert "two files are 'said0': rename one" in said


def test_exports_take_an_ivector_or_are_not_adapted_and_adapted_features_are_refused(place: Path) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install murmur-asr[deploy])")
    if place.name.rstrip("0123456789") != "ivector":
        for more in ((), ("--cmvn", "global")):
            code, _, said = run("export", place / "run", "--out", place / "exported", *more)
            assert code == 1
            assert "other runtimes make one" in said
        return
    for kind in ("zero", "input"):
        done("export", place / "run", "--out", place / kind, "--ivector", kind)
        facts = json.loads((place / kind / "metadata.json").read_text())
        assert facts["ivector"] == kind
        assert (place / kind / "ivector.npz").is_file() == (kind == "input")
    done("export", place / "run", "--out", place / "global", "--cmvn", "global")
    own, by_input, by_zero, by_global = (scores_of(place, where) for where in ("run", "input", "zero", "global"))
    assert by_global[0][0] == "ANNA"
    assert own == by_input
    assert own[0][0] == by_zero[0][0] == "ANNA"
    for kind in ("zero", "input"):
        example = subprocess.run(
            [sys.executable, EXAMPLE, place / kind, place / "said0.wav"], capture_output=True, text=True, check=False
        )
        assert example.returncode == 0, example.stderr
        assert "ANNA" in example.stdout
    code, _, said = run("transcribe", place / "input", place / "said0.wav", "--adapt")
    assert code == 1
    assert "is an export folder, which recognises each recording by itself" in said
    code, _, said = run("export", place / "run", "--out", place / "stream", "--ivector", "input", "--kind", "stream")
    assert code == 1
    assert "a stream begins before there is speech" in said


def test_further_runs_search_for_transforms_with_the_grammar_of_the_command_line(place: Path) -> None:
    (other,) = opened([place / "run"], None, SearchRequest("loop", None, {}), 2)
    assert (other.grammar, other.jobs) == ("loop", 2)
    if other.estimate is not None:
        assert other.estimate.search.grammar == "loop"


def scores_of(place: Path, model: str) -> list[tuple[str, float]]:
    """Words of a recording with their times."""
    out = done("transcribe", place / model, place / "said0.wav", "--format", "json")
    return [(word["word"], word["start_seconds"]) for word in json.loads(out)["words"]]
