"""`murmur decode` of a CTC model: the run's own figure on test, any other data directory, no search settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app
from murmur.speech.commands.decode import write_results
from murmur.speech.recognition.decoding import Decoding

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.speech.corpus.kaldi_dir import read_table
from tests.support.plateaus import make_set

OPTIONS = ("task.network=Blstm(hidden=12, layers=1)", "budget.epochs=6", "evaluate_every_epochs=3")


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(w) for w in words], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def test_best_path_of_ctc(tmp_path: Path) -> None:
    root = make_set(tmp_path / "set", {"train": 40, "dev": 8, "test": 8})
    places = (f"task.corpus={root}", f"task.cache={tmp_path / 'cache'}")
    settings = [word for setting in (*OPTIONS, *places) for word in ("--set", setting)]
    code, said = run("train", "ctc", *settings, "--out", tmp_path / "run", "--threads", 1)
    assert code == 0, said
    for command in (
        f"murmur decode ctc --model {tmp_path / 'run'} --out {tmp_path / 'run/decoded'}",
        f"murmur transcribe {tmp_path / 'run'} FILE.wav",
        f"murmur export {tmp_path / 'run'} --out {tmp_path / 'run/exported'}",
        f"murmur report {tmp_path / 'run'}",
    ):
        assert f"  {command}\n" in said
    # The run's settings apply by default: the corpus, the cache and the size of the network are those of training.
    code, said = run("decode", "ctc", "--model", tmp_path / "run", "--out", tmp_path / "a")
    assert code == 0, said
    facts = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert facts["wer"] == json.loads((tmp_path / "run" / "score.json").read_text())["test"]["wer"]
    assert set(read_table(tmp_path / "a" / "text")) == set(read_table(root / "data/test/text"))
    dev = root / "data" / "dev"
    for data, out in (("dev", "b"), (str(dev), "c")):
        assert run("decode", "ctc", "--model", tmp_path / "run", "--data", data, "--out", tmp_path / out)[0] == 0
    assert (tmp_path / "b" / "text").read_bytes() == (tmp_path / "c" / "text").read_bytes()
    code, said = run("decode", "ctc", "--model", tmp_path / "run", "--scale", 0.3, "--out", tmp_path / "d")
    assert code == 1
    assert "a best path has no scale, penalty, beam or states to set" in said
    (tmp_path / "said.wav").write_bytes(b"")
    said_wav = ("transcribe", tmp_path / "run", tmp_path / "said.wav")
    for words in ((*said_wav, "--beam", 5), ("export", tmp_path / "run", "--scale", 2, "--out", tmp_path / "e")):
        code, said = run(*words)
        assert code == 1
        assert "a best path has no scale, penalty, beam or states to set" in said


def test_older_results_do_not_stay_beside_new_ones(tmp_path: Path) -> None:
    timed = Decoding({"u": "one"}, ("u 1 0.0 0.1 one\n",), (), {}, ("r 1 0.0 0.1 one\n",))
    write_results(timed, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recordings.ctm", "summary.json", "text", "words.ctm"]
    write_results(Decoding({"u": "two"}, None, (), {}), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["summary.json", "text"]


def test_a_graph_over_phones(tmp_path: Path) -> None:
    root = make_set(tmp_path / "set", {"train": 40, "dev": 8, "test": 8})
    lines = (root / "lexicon.txt").read_text().replace("NOB N O B\n", "").replace("ANNA", "anna")
    (root / "lexicon.txt").write_text(lines)  # one word is in another case, one is spelled: n o b
    places = (f"task.corpus={root}", f"task.cache={tmp_path / 'cache'}", "task.units=phone")
    # Letters are not phones of that lexicon, and the message says so; without a lexicon all words are spelled.
    spelled = [w for s in (*OPTIONS, *places, "task.guess=graphemes") for w in ("--set", s)]
    code, said = run("prepare", "ctc", *spelled)
    assert code == 1
    assert "the phone set lacks n:" in said
    (root / "lexicon.txt").unlink()
    code, said = run("prepare", "ctc", *[w for s in (*OPTIONS, *places) for w in ("--set", s)])
    assert code == 1
    assert "name one (task.lexicon), or guess all words (task.guess=espeak)" in said
    settings = [*spelled, "--set", "task.decoding.grammar=loop"]
    code, said = run("train", "ctc", *settings, "--out", tmp_path / "run", "--threads", 1)
    assert code == 0, said
    figures = json.loads((tmp_path / "run" / "score.json").read_text())["test"]
    assert {"wer", "cer", "greedy per", "acoustic scale", "insertion penalty", "low", "high"} <= set(figures)
    code, said = run("decode", "ctc", "--model", tmp_path / "run", "--out", tmp_path / "a")
    assert code == 0, said
    facts = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert facts["wer"] == figures["wer"]
    assert facts["search"]["acoustic_scale"] == figures["acoustic scale"]
    other = ("--grammar", "one word", "--scale", 0.5, "--max-active", 100)
    assert run("decode", "ctc", "--model", tmp_path / "run", *other, "--out", tmp_path / "b")[0] == 0
    texts = read_table(tmp_path / "b" / "text")
    assert all(len(text.split()) == 1 for text in texts.values())
    code, said = run("decode", "ctc", "--model", tmp_path / "run", "--grammar", "no.arpa", "--out", tmp_path / "c")
    assert code == 1
    assert "there is no grammar 'no.arpa'" in said
    assert run("decode", "ctc", "--model", tmp_path / "run", "--grammar", "greedy", "--out", tmp_path / "d")[0] == 0
    assert set(" ".join(read_table(tmp_path / "d" / "text").values()).split()) <= set("abno")
