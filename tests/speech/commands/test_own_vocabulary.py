"""`murmur decode`, `transcribe` and `export` with a user's own vocabulary, on small runs on tones."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

import soundfile

from murmur.speech.corpus.kaldi_dir import read_table, write_table
from tests.support.tone_runs import train_ctc, train_hybrid
from tests.support.tones import RATE, make_tones, tones

WORDS = ["ANNA", "BOB", "NOB"]
HEAD = "#JSGF V1.0;\ngrammar own;\n"
ARPA = """\\data\\
ngram 1=5
ngram 2=3

\\1-grams:
-99 <s> 0
-0.5 </s>
-0.5 ANNA -1
-0.5 BOB -1
-0.5 NOBBA -1

\\2-grams:
-0.1 <s> ANNA
-0.1 ANNA BOB
-0.1 BOB NOBBA

\\end\\
"""


def run(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(w) for w in words], env={"COLUMNS": "200"})
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_tones(tmp_path_factory.mktemp("tones") / "set", {"train": 48, "dev": 8, "test": 8})


@pytest.fixture(scope="module")
def hybrid(corpus):
    return train_hybrid(corpus)


@pytest.fixture(scope="module")
def ctc(corpus):
    return train_ctc(corpus)


@pytest.fixture
def speech(tmp_path):
    path = tmp_path / "said.wav"
    soundfile.write(path, tones(WORDS, 99), RATE)
    return path


@pytest.fixture
def own(tmp_path):
    """Write a user's file: a grammar if it begins with a rule, else a list."""

    def write(text, name="own.txt"):
        (tmp_path / name).write_text(HEAD + text if text.startswith("public") else text)
        return tmp_path / name

    return write


def transcribed(model, path, *options):
    code, out, said = run("transcribe", model, path, *options)
    assert code == 0, said
    return out.strip()


def alignments(run_folder: Path) -> dict[Path, int]:
    """The Gaussian systems of a run with the times at which they were written."""
    cache = run_folder.parent / "cache"
    return {path: path.stat().st_mtime_ns for path in cache.rglob("*.npz")}


@pytest.mark.parametrize("model", ["hybrid", pytest.param("ctc", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("rules", "wanted"),
    [
        ("public <r> = ANNA BOB NOB;", "ANNA BOB NOB"),
        ("public <r> = NOB NOB NOB;", "NOB NOB NOB"),
        ("public <r> = <who> (BOB | NOB) [NOB]; <who> = ANNA;", "ANNA BOB NOB"),
        ("public <r> = BOB ANNA | (ANNA | NOB)+ ;", None),
        ("public <r> = /1/ NOB BOB ANNA | /1000/ ANNA BOB;", "ANNA BOB"),
    ],
)
def test_only_sentences_of_the_grammar_are_said(request, own, speech, model, rules, wanted):
    folder = request.getfixturevalue(model)
    before = alignments(folder)
    said = transcribed(folder, speech, "--grammar", own(rules), "--beam", 1)
    assert said == wanted if wanted else set(said.split()) <= {"ANNA", "NOB"} or said == "BOB ANNA"
    assert alignments(folder) == before


def test_a_search_outside_the_grammar_and_short_recordings_are_told(hybrid, own, speech, tmp_path):
    """Three words do not fit into the time of one."""
    rules, path = own("public <r> = ANNA BOB NOB;"), tmp_path / "short.wav"
    for seconds, says in ((0.0, True), (0.01, True), (0.04, False)):
        soundfile.write(path, tones(["BOB"], 3)[: int(seconds * RATE)], RATE)
        code, out, said = run("transcribe", hybrid, path, "--grammar", rules, "--format", "json")
        found = json.loads(out)
        assert (code, found["words"], found["too_short"]) == (0, [], says)
        assert (f"short.wav: {seconds:.3f} s of audio are shorter than one frame" in said) == says
        assert found["partial"] == ("short.wav: the search ended outside the grammar" in said) == (not says)


def test_graphs_of_equal_grammars_are_built_once(hybrid, own, speech):
    def graphs():
        return set((hybrid / "recogniser" / "graphs").glob("graph-*"))

    before = graphs()
    transcribed(hybrid, speech, "--grammar", own("public <r> = [BOB] ANNA BOB;"))
    once = graphs()
    assert len(once - before) == 1
    transcribed(hybrid, speech, "--grammar", own("public <r> = [(BOB)] <x> // as before\n; <x> = ANNA BOB;", "b.jsgf"))
    assert graphs() == once
    transcribed(hybrid, speech, "--grammar", own("public <r> = [BOB] ANNA NOB;"))
    assert len(graphs() - once) == 1


@pytest.mark.parametrize("packed", [False, True])
def test_an_arpa_model_with_a_word_of_its_own(hybrid, own, speech, tmp_path, packed):
    lexicon = own("NOBBA N O B\n", "mine.txt")
    path = tmp_path / ("own.arpa.gz" if packed else "own.arpa")
    path.write_bytes(gzip.compress(ARPA.encode()) if packed else ARPA.encode())
    assert transcribed(hybrid, speech, "--lm", path, "--lexicon", lexicon) == "ANNA BOB NOBBA"


def test_words_of_the_own_lexicon_go_before_the_models(hybrid, own, speech):
    words, lexicon = own("NOB\nBOB\nANNA\n", "words.txt"), own("BOB N O B\nNOB B O B\n", "mine.txt")
    assert transcribed(hybrid, speech, "--words", words) == "ANNA BOB NOB"
    assert transcribed(hybrid, speech, "--words", words, "--lexicon", lexicon) == "ANNA NOB BOB"


def test_words_in_another_case_and_spelled_words(request, own, speech, caplog):
    caplog.set_level(logging.INFO)
    words = own("anna\nBob\nNOB\nBOBO\n", "words.txt")
    lexicon = own("BOBO B O B O\n", "mine.txt")
    hybrid, ctc = request.getfixturevalue("hybrid"), request.getfixturevalue("ctc")
    caplog.clear()
    assert transcribed(hybrid, speech, "--words", words, "--lexicon", lexicon) == "anna Bob NOB"
    assert "2 words found in another case: Bob B O B, anna A N A" in caplog.text
    caplog.clear()
    assert transcribed(ctc, speech, "--words", words, "--scale", 1) == "anna Bob NOB"
    assert "2 words found in another case" in caplog.text
    code, _, said = run("transcribe", ctc, speech, "--words", words, "--lexicon", lexicon)
    assert (code, "writes chars" in said) == (1, True)


def test_words_without_a_pronunciation_are_listed(hybrid, ctc, own, speech, caplog):
    words = own("ANNA\nBABA\nZIZI\n", "words.txt")
    code, _, said = run("transcribe", hybrid, speech, "--words", words)
    assert code == 1
    assert f"{words}: 2 words not in the model's lexicon: BABA, ZIZI; give lines" in said
    assert "by --lexicon FILE (phones: A B N O)" in said
    mine = own("BABA B A B A\nZIZI Z I\n", "mine.txt")
    code, _, said = run("transcribe", hybrid, speech, "--words", words, "--lexicon", mine)
    assert code == 1
    assert f"{mine} has phones that the acoustic model lacks: I (in ZIZI), Z (in ZIZI); it knows A, B, N, O" in said
    code, _, said = run("transcribe", ctc, speech, "--words", words)
    assert code == 1
    assert f"{words}: the network's chars write 1 of 3 words in no case: ZIZI" in said
    assert "Traceback" not in said


def test_guesses_are_told_and_fit_the_phones(hybrid, own, speech, caplog):
    caplog.set_level(logging.INFO)
    words, spelled = own("ANNA\nBOB\nOBAN\n", "words.txt"), own("ob a n\n", "mine.txt")
    code, _, said = run("transcribe", hybrid, speech, "--words", words, "--guess", "graphemes")
    assert code == 1  # graphemes are lower case, the model's phones are not
    assert "has no phone 'o'" in said
    assert run("transcribe", hybrid, speech, "--words", words, "--lexicon", spelled)[0] == 1
    mine = own("OBAN O B A N\n", "mine.txt")
    assert transcribed(hybrid, speech, "--words", words, "--lexicon", mine).startswith("ANNA BOB")
    assert "guessed" not in caplog.text


def test_the_scale_of_the_run_is_kept_or_another_is_tuned(hybrid, corpus, own, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    file, words = corpus.parent / "tones_experiment.py", own("\n".join(WORDS), "words.txt")
    options = ("--model", hybrid, "--words", words, "--out", tmp_path / "out")
    code, _, said = run("decode", file, *options)
    assert code == 0, said
    kept = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (kept["search"]["acoustic_scale"], kept["wer"], kept["grammar"]) == (0.3, 0.0, str(words))
    assert "the acoustic scale is the run's, tuned with its own grammar; --dev DATA tunes it" in caplog.text
    caplog.clear()
    for dev in ("dev", corpus / "data" / "dev"):
        code, _, said = run("decode", file, *options, "--dev", dev, "--beam", 11)
        assert code == 0, said
        tuned = json.loads((tmp_path / "out" / "summary.json").read_text())
        assert tuned["search"]["beam"] == 11
        found = (tuned["search"]["acoustic_scale"], tuned["search"]["insertion_penalty"])
        assert f"tuned on {dev}; to use it again: --scale {found[0]:g} --penalty {found[1]:g}" in caplog.text
        assert caplog.text.count("network, dev: scale") == 21  # all scales with all word costs
        caplog.clear()


def test_tuning_improves_what_a_bad_scale_breaks(ctc, corpus, own, speech, tmp_path, caplog):
    """Tuning on dev finds a large scale, which overrules a grammar whose weights contradict the speech."""
    caplog.set_level(logging.INFO)
    rules = own("public <r> = (/1/ ANNA | /1000000/ BOB | /1/ NOB)+;")
    texts = read_table(corpus / "data" / "dev" / "text")
    assert any("ANNA" in text for text in texts.values())
    options = ["--model", ctc, "--grammar", rules, "--out", tmp_path / "out", "--set", "task.jobs=1"]
    assert run("decode", "ctc", *options, "--scale", 0.01, "--data", "dev")[0] == 0
    bad = json.loads((tmp_path / "out" / "summary.json").read_text())["wer"]
    code, _, said = run("decode", "ctc", *options, "--dev", "dev", "--data", "dev")
    assert code == 0, said
    good = json.loads((tmp_path / "out" / "summary.json").read_text())["wer"]
    assert good < bad / 2


def test_an_export_holds_the_own_words(hybrid, own, speech, tmp_path):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install murmur-asr[deploy])")
    out, rules = tmp_path / "exported", own("public <r> = ANNA (BOB | NOB) NOBBA;")
    lexicon = own("NOBBA N O B\n", "mine.txt")
    code, _, said = run("export", hybrid, "--out", out, "--grammar", rules, "--lexicon", lexicon)
    assert code == 0, said
    assert transcribed(out, speech) == "ANNA BOB NOBBA"
    code, _, said = run("transcribe", out, speech, "--lm", rules, "--dev", "dev")
    assert code == 1
    assert "--lm, --dev: fixed in an export folder" in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--grammar", "loop", "--words", "LIST"], "--grammar and --words exclude each other"),
        (["--lexicon", "LIST"], "--lexicon needs your own vocabulary"),
        (["--guess", "none", "--grammar", "loop"], "--guess needs your own vocabulary"),
        (["--lm", "nowhere.arpa"], "--lm nowhere.arpa does not exist"),
        (["--words", "LIST", "--lexicon", "nowhere"], "--lexicon nowhere does not exist"),
        (
            ["--grammar", "nowhere.jsgf"],
            "this set has no grammar 'nowhere.jsgf'; choose one of loop, one word, or give",
        ),
        (["--grammar", "BAD"], "bad.jsgf:3: rule <r> contains itself"),
        (["--grammar", "ARPA"], "ARPA by --lm"),
        (["--words", "LIST", "--dev", "test"], "settings that are tuned on test"),
        (["--words", "LIST", "--dev", "dev", "--scale", "1"], "leave --scale and --penalty out"),
        (["--words", "LIST", "--dev", "nowhere"], "nowhere"),
        (["--words", "LIST", "--dev", "OTHER"], "is in the vocabulary of 2 words (ANNA, BOB)"),
    ],
)
def test_mistakes(hybrid, corpus, own, tmp_path, options, says):
    other = tmp_path / "other"
    names = read_table(corpus / "data" / "dev" / "text")
    other.mkdir()
    for table in ("wav.scp", "utt2spk"):
        write_table(other / table, read_table(corpus / "data" / "dev" / table))
    write_table(other / "text", dict.fromkeys(names, "no such words"))
    places = {
        "LIST": own("ANNA\nBOB\n", "list.txt"),
        "BAD": own("public <r> = ANNA <r>;", "bad.jsgf"),
        "ARPA": own(ARPA, "own.arpa"),
        "OTHER": other,
    }
    file = corpus.parent / "tones_experiment.py"
    words = [places.get(word, word) for word in options]
    code, _, said = run("decode", file, "--model", hybrid, "--out", tmp_path / "out", *words)
    assert code == 1, said
    assert says in said
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()


def test_a_best_path_has_no_scale_to_tune(ctc, tmp_path):
    code, _, said = run("decode", "ctc", "--model", ctc, "--out", tmp_path / "out", "--dev", "dev")
    assert (code, "a best path has no scale to tune" in said) == (1, True), said
