"""`murmur decode --rescore`: an LSTM of one run rescores the n-best lists of another, on tones."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from murmur.cli import app

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.run.folder.contents import remove_run
from murmur.speech.corpus.kaldi_dir import read_table
from murmur.speech.decoding.decoder import Decoder
from murmur.speech.recognition import rescoring
from murmur.speech.recognition.rescoring import best_weight
from tests.support.tones import CTC, HYBRID, make_tones

SMALL = ("task.min_count=1", "task.minibatch_size=8", "task.network=WordLstm(8, 12, 1, 0.0)", "optimizer.lr=3e-2")


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(w) for w in words], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def trained(folder: Path, recipe: str, *settings: str) -> Path:
    words = [w for setting in settings for w in ("--set", setting)]
    code, said = run("train", recipe, *words, "--out", folder, "--threads", 1)
    assert code == 0, said
    return folder


def language_model(folder: Path, lines: list[str]) -> Path:
    folder.mkdir()
    (folder / "text.txt").write_text("".join(f"{line}\n" for line in lines))
    return trained(folder / "run", "lm", *SMALL, "task.corpus=None", f"task.text={folder / 'text.txt'}")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tones(tmp_path_factory.mktemp("tones") / "set", {"train": 48, "dev": 8, "test": 8})


@pytest.fixture(scope="module")
def ctc(corpus: Path) -> Path:
    """A CTC network trained too little to be sure of its words."""
    return trained(
        corpus.parent / "ctc", "ctc", *CTC, "budget.epochs=10", f"task.corpus={corpus}", f"task.cache={corpus.parent}"
    )


@pytest.fixture(scope="module")
def arpa(corpus: Path) -> Path:
    path = corpus.parent / "uniform.arpa"
    lines = ["-99 <s>", "-0.6 </s>", *(f"-0.6 {word}" for word in ("ANNA", "BOB", "NOB"))]
    path.write_text("\\data\\\nngram 1=5\n\n\\1-grams:\n" + "\n".join(lines) + "\n\n\\end\\\n")
    return path


@pytest.fixture(scope="module")
def only_bob(corpus: Path) -> Path:
    return language_model(corpus.parent / "bob", ["BOB BOB BOB"] * 120)


def decoded(folder: Path, *words: object) -> tuple[dict[str, str], dict[str, object], str]:
    code, said = run("decode", "ctc", *words, "--out", folder)
    assert code == 0, said
    texts = read_table(folder / "text")
    return texts, json.loads((folder / "summary.json").read_text()), said


def test_weights_choose_between_search_and_lstm(
    ctc: Path, arpa: Path, only_bob: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    search = ("--model", ctc, "--lm", arpa, "--scale", 0.2)
    plain, facts, _ = decoded(tmp_path / "plain", *search)
    none, zero, said = decoded(tmp_path / "none", *search, "--rescore", only_bob, "--lm-weight", 0)
    assert none == plain
    assert zero["wer"] == facts["wer"]
    assert "before rescoring: %WER" in said
    assert f"2 of 3 words of the search are unknown to {only_bob}: ANNA, NOB;" in caplog.text
    most, full, _ = decoded(tmp_path / "most", *search, "--rescore", only_bob, "--lm-weight", 1, "--nbest", 50)
    counts = [sum(text.split().count("BOB") for text in texts.values()) for texts in (plain, most)]
    assert counts[1] > counts[0]
    assert full["rescoring"] == {
        "language_model": str(only_bob),
        "weight": 1.0,
        "listed": 50,
        "words_unknown_to_the_model": 2,
    }
    assert "rescoring" not in facts


def test_a_weight_is_tuned_on_dev_and_kept(
    ctc: Path, arpa: Path, only_bob: Path, corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    search, dev = ("--model", ctc, "--rescore", only_bob), corpus / "data" / "dev"
    scaled = ("--lm", arpa, "--scale", 0.2)
    (ctc / "rescoring.json").unlink(missing_ok=True)  # of other tests
    code, said = run("decode", "ctc", *search, *scaled, "--out", tmp_path / "a")
    assert code == 1
    assert "tune it with --dev DATA, or give --lm-weight" in said
    _, tuned, _ = decoded(tmp_path / "b", *search, "--lm", arpa, "--dev", dev)
    [kept] = json.loads((ctc / "rescoring.json").read_text()).values()
    assert (kept["dev"], kept["model"]) == (str(dev), str(only_bob))
    assert kept["weight"] == tuned["rescoring"]["weight"] < 0.9  # the LSTM knows one word of three
    assert "names of --dev" not in caplog.text
    decoded(tmp_path / "same", *search, "--lm", arpa, "--dev", dev, "--data", dev)
    assert f"8 utterances of --data {dev} are in --dev {dev} too" in caplog.text
    caplog.clear()
    found = tuned["search"]
    same = ("--scale", found["acoustic_scale"], "--penalty", found["insertion_penalty"])
    _, again, _ = decoded(tmp_path / "c", *search, "--lm", arpa, *same)
    assert again["rescoring"] == tuned["rescoring"]
    assert "tune it again" not in caplog.text
    _, again, _ = decoded(tmp_path / "e", *search, "--lm", arpa, "--scale", 0.35, *same[2:], "--nbest", 7)
    assert again["rescoring"]["weight"] == tuned["rescoring"]["weight"]
    assert "was tuned in a search with other values of acoustic_scale, listed: tune it again" in caplog.text
    other = tmp_path / "changed" / arpa.name
    other.parent.mkdir()
    other.write_text(arpa.read_text().replace("-0.6 BOB", "-0.3 BOB"))
    code, said = run("decode", "ctc", *search, "--lm", other, "--scale", 0.2, "--out", tmp_path / "d")
    assert code == 1
    assert "no weight of" in said


def test_with_a_given_scale_dev_tunes_the_weight_alone(
    ctc: Path, arpa: Path, only_bob: Path, corpus: Path, tmp_path: Path
) -> None:
    dev = ("--dev", corpus / "data" / "dev")
    search = ("--model", ctc, "--rescore", only_bob, "--lm", arpa)
    (ctc / "rescoring.json").unlink(missing_ok=True)
    _, facts, _ = decoded(tmp_path / "a", *search, "--scale", 0.37, "--penalty", 0.25, *dev)
    assert (facts["search"]["acoustic_scale"], facts["search"]["insertion_penalty"]) == (0.37, 0.25)
    [kept] = json.loads((ctc / "rescoring.json").read_text()).values()
    assert kept["weight"] == facts["rescoring"]["weight"] < 0.9
    for options in (("--scale", 0.37), ("--penalty", 0.25)):
        code, said = run("decode", "ctc", *search, *options, *dev, "--lm-weight", 0.5, "--out", tmp_path / "b")
        assert code == 1
        assert "--dev has nothing to tune: leave --lm-weight, or --scale and --penalty, out" in said
        code, said = run("decode", "ctc", *search[:2], *search[4:], *options, *dev, "--out", tmp_path / "c")
        assert code == 1
        assert "--dev tunes the scale and the word cost: leave --scale and --penalty out" in said


def test_a_stopped_tuning_goes_on(
    ctc: Path, arpa: Path, only_bob: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dev is decoded for scales and for lists before the data; what was decoded before the stop is not repeated."""
    words = ("--model", ctc, "--rescore", only_bob, "--lm", arpa, "--dev", corpus / "data" / "dev")
    whole, facts, _ = decoded(tmp_path / "whole", *words)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(rescoring, "best_weight", stop)
        assert run("decode", "ctc", *words, "--out", tmp_path / "stopped")[0] != 0
    searched = list[str]()
    plain = Decoder.decode
    monkeypatch.setattr(Decoder, "decode", lambda self, *a, **k: searched.append("u") or plain(self, *a, **k))
    again, same, _ = decoded(tmp_path / "stopped", *words)
    assert (again, same["rescoring"], same["wer"]) == (whole, facts["rescoring"], facts["wer"])
    assert len(searched) <= 8  # test alone


def test_the_best_weight_is_in_the_middle_of_the_longest_run_of_best_ones(caplog: pytest.LogCaptureFixture) -> None:
    @dataclass
    class Listed:
        good: set[float]

        def best(self, weight: float) -> SimpleNamespace:
            return SimpleNamespace(text="A" if weight in self.good else "B")

    def chosen(*good: float) -> tuple[float, int]:
        return best_weight({"u": Listed(set(good))}, {"u": "A"})  # type: ignore[dict-item]

    assert chosen(0.0, 0.4, 0.5, 0.6, 0.8) == (0.5, 0)
    assert chosen(0.0, 0.9) == (0.0, 0)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    assert chosen(0.9) == (0.9, 0)
    assert "weight 0.9 is the largest one tried" in caplog.text


def test_errors_come_early_and_say_what_to_do(ctc: Path, arpa: Path, corpus: Path, tmp_path: Path) -> None:
    def fails(*words: object) -> str:
        code, said = run("decode", "ctc", "--model", ctc, *words, "--out", tmp_path / "out")
        assert code == 1, said
        return said

    assert "--lm-weight is for --rescore RUN" in fails("--lm-weight", 0.5)
    assert "--nbest is for --rescore RUN" in fails("--nbest", 20)
    assert "is neither a .safetensors file nor a run's folder" in fails("--rescore", tmp_path)
    assert "it is no finished run of a language model" in fails("--rescore", ctc)
    small = language_model(tmp_path / "lower", ["bob anna"] * 60)
    rescore = ("--rescore", small, "--lm-weight", 0.5)
    assert "the n-gram model of the search, and 'greedy' has none" in fails(*rescore)
    assert "'loop' has none" in fails(*rescore, "--grammar", "loop", "--scale", 1)
    assert "it knows none of the 3 words of the search" in fails(*rescore, "--lm", arpa, "--scale", 1)
    values = small / "description" / "language_model.json"
    right = values.read_text()
    values.write_text(right.replace('"hidden": 12', '"hidden": 1000000'))
    assert "weights, and" in fails(*rescore, "--lm", arpa, "--scale", 1)
    values.write_text(right)
    (small / "description" / "words.txt").write_text("</s>\n<unk>\nBOB\nANNA\n")
    assert "words.txt is not what was written there" in fails(*rescore, "--lm", arpa, "--scale", 1)


def test_times_of_rescored_words_are_those_of_their_own_path(
    corpus: Path, arpa: Path, only_bob: Path, tmp_path: Path
) -> None:
    file = tmp_path / "tones_experiment.py"
    file.write_text(HYBRID.format(corpus=str(corpus), cache=str(tmp_path / "cache")))
    hybrid = trained(tmp_path / "hybrid", str(file))
    words = ("--lm", arpa, "--scale", 0.02, "--rescore", only_bob, "--lm-weight", 1, "--data", corpus / "data" / "test")
    code, said = run("decode", file, "--model", hybrid, *words, "--out", tmp_path / "out")
    assert code == 0, said
    texts = read_table(tmp_path / "out" / "text")
    partial = json.loads((tmp_path / "out" / "summary.json").read_text())["partial"]
    lines = [line.split() for line in (tmp_path / "out" / "words.ctm").read_text().splitlines()]
    for name, text in texts.items():
        own = [(float(begin), float(length), word) for who, _, begin, length, word in lines if who == name]
        assert name in partial or [word for _, _, word in own] == text.split()
        assert all(b + length <= after + 1e-6 for (b, length, _), (after, _, _) in pairwise(own))
    assert lines


def test_the_run_of_a_language_model_holds_its_description_as_part_of_the_run(only_bob: Path, tmp_path: Path) -> None:
    assert (only_bob / "description" / "words.txt").read_text() == "</s>\n<unk>\nBOB\n"
    figures = json.loads((only_bob / "score.json").read_text())["test"]
    assert set(figures) == {"perplexity", "perplexity without OOV words", "OOV"}
    code, said = run("decode", "lm", "--model", only_bob, "--out", only_bob.parent / "out")
    assert code == 1
    assert "which recognises no speech" in said
    copy = shutil.copytree(only_bob, tmp_path / "copy")
    (copy / "rescoring.json").write_text("{}")
    (copy / "notes.txt").write_text("mine\n")
    remove_run(copy)
    assert {path.name for path in copy.iterdir()} - {".lock", "checkpoints"} == {"notes.txt"}
