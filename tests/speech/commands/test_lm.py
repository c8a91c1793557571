"""`murmur lm`: the commands write the library's estimates."""

from __future__ import annotations

import gzip
import os
import re
import signal
import tempfile
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app
from murmur.core.stop_signals import Stopped

pytest.importorskip("kaldialign", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.speech.corpus.kaldi_dir import write_table
from murmur.speech.language_model.arpa import read_arpa, write_arpa
from murmur.speech.language_model.kneser_ney import KneserNey
from murmur.speech.language_model.ngram import perplexity, prune

SENTENCES = [f"{a} {b} {c}" for a in "ABCD" for b in "xyxyz" for c in ("one", "two", "one")]


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["lm", *map(str, words)], env={"COLUMNS": "200"})
    return done.exit_code, done.output


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress("\n".join([*SENTENCES, "", " "]).encode()))
    return path


def test_train_prune_perplexity(text: Path, tmp_path: Path) -> None:
    code, said = run("train", text, "--order", 2, "--out", tmp_path / "new" / "lm.arpa.gz")
    assert code == 0, said
    model = read_arpa(tmp_path / "new" / "lm.arpa.gz")
    wanted = perplexity(KneserNey(2).train(SENTENCES).model, SENTENCES).perplexity
    assert perplexity(model, SENTENCES).perplexity == pytest.approx(wanted, rel=1e-5)
    assert len(list((tmp_path / "new").iterdir())) == 1  # no partial file is left

    code, said = run("prune", tmp_path / "new" / "lm.arpa.gz", "--threshold", "0.01", "--out", tmp_path / "small.arpa")
    assert code == 0, said
    small = read_arpa(tmp_path / "small.arpa")
    assert [len(g) for g in small.orders] == [len(g) for g in prune(model, 0.01).orders]
    assert len(small.orders[1]) < len(model.orders[1])

    code, said = run("perplexity", tmp_path / "small.arpa", text)
    assert code == 0
    assert str(perplexity(small, SENTENCES)) in said


@pytest.mark.parametrize("name", ["lm.arpa", "lm.arpa.gz"])
def test_a_stop_leaves_no_partial_file(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def stopped(path: Path, mode: str) -> None:
        assert mode == "wb"
        path.write_bytes(b"")
        assert os.getpid() in map(int, re.findall(r"[0-9]+", path.name))  # else two programs write the same file
        raise Stopped(signal.SIGTERM)

    out = tmp_path / "new" / name
    monkeypatch.setattr("murmur.speech.language_model.arpa.opened_arpa", stopped)
    with pytest.raises(Stopped):
        write_arpa(KneserNey(2).train(SENTENCES).model, out)
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_out_may_be_a_fifo_or_a_link(text: Path, tmp_path: Path, kind: str) -> None:
    run("train", text, "--order", 1, "--out", tmp_path / "file")
    out, got = tmp_path / kind, list[bytes]()
    if kind == "fifo":
        os.mkfifo(out)
    else:
        (tmp_path / "far").write_bytes(b"old")
        out.symlink_to("far")
    reader = threading.Thread(target=lambda: got.append(out.read_bytes()), daemon=True)
    if kind == "fifo":
        reader.start()
    code, said = run("train", text, "--order", 1, "--out", out)
    assert code == 0, said
    assert out.is_fifo() if kind == "fifo" else out.is_symlink()
    if kind == "fifo":
        reader.join(20)
    assert (got[0] if kind == "fifo" else (tmp_path / "far").read_bytes()) == (tmp_path / "file").read_bytes()


@pytest.mark.parametrize("size", ["1M", "1.5m", "2G"])
def test_memory_changes_nothing_but_the_place_of_tables(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    folders, temporary = list[Path](), tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **how: folders.append(how["dir"]) or temporary(**how))
    run("train", text, "--out", tmp_path / "inside.arpa")
    assert folders == []
    out, elsewhere = tmp_path / "new" / "lm.arpa", tmp_path / "elsewhere"
    for options, folder in ([], out.parent), (["--temporary", elsewhere], elsewhere):
        code, said = run("train", text, "--out", out, "--memory", size, *options)
        assert code == 0, said
        assert set(folders) == {folder}
        assert out.read_bytes() == (tmp_path / "inside.arpa").read_bytes()
        assert list(out.parent.iterdir()) == [out]
        folders.clear()
    assert list(elsewhere.iterdir()) == []
    os.mkfifo(tmp_path / "fifo")  # its folder may be one of devices, which takes no files
    reader = threading.Thread(target=(tmp_path / "fifo").read_bytes, daemon=True)
    reader.start()
    run("train", text, "--out", tmp_path / "fifo", "--memory", size)
    reader.join(20)
    assert set(folders) == {Path(tempfile.gettempdir())}


def test_a_full_disk_is_told_in_one_line(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **how: open("/dev/full", "r+b", buffering=0))  # noqa: SIM115
    code, said = run("train", text, "--out", tmp_path / "lm.arpa", "--memory", "1M")
    assert code == 1
    told = [line for line in said.splitlines() if "temporary files in" in line]
    assert len(told) == 1
    assert "the disk is full: make room" in told[0]
    assert list(tmp_path.iterdir()) == [text]


def test_a_fifo_is_read_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    content = gzip.compress("\n".join(SENTENCES).encode())
    writer = threading.Thread(target=(tmp_path / "fifo").write_bytes, args=[content], daemon=True)
    writer.start()
    code, said = run("train", tmp_path / "fifo", "--most", 2, "--out", tmp_path / "lm.arpa")
    writer.join(20)
    assert code == 0, said
    assert read_arpa(tmp_path / "lm.arpa").words[3:] == ("one", "x")


def test_lmplz_gets_the_options_and_the_words(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, record = tmp_path / "bin" / "lmplz", tmp_path / "record"
    program.parent.mkdir()
    script = f'echo "$@" > {record}; for word; do last=$word; done; cat $last >> {record}; cat > /dev/null; echo ARPA'
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    options = ["--order", 2, "--cutoffs", "0,1", "--memory", "3M", "--most", 2, "--tool", "lmplz"]
    code, said = run("train", text, "--out", tmp_path / "new" / "lm.arpa", *options)
    assert code == 0, said
    arguments, words = record.read_text().splitlines()
    assert f"--order 2 --temp_prefix {tmp_path / 'new'}/.murmur-lm-" in arguments
    assert "--memory 3145728b --prune 0 1 --limit_vocab_file" in arguments
    assert words == "one x"
    assert [path.read_text() for path in (tmp_path / "new").iterdir()] == ["ARPA\n"]


def test_words_outside_of_a_vocabulary_are_named(text: Path, tmp_path: Path) -> None:
    text.write_text("a b\na c d e\n")
    (tmp_path / "words").write_text("a\n")
    code, said = run("train", text, "--order", 1, "--vocabulary", tmp_path / "words", "--out", tmp_path / "lm.arpa")
    assert code == 0, said
    assert f"4 words are left out: b, c, d and 1 more: not in {tmp_path / 'words'}\n" in said


def test_transcripts_of_a_data_directory_and_vocabularies(tmp_path: Path) -> None:
    write_table(tmp_path / "data" / "text", {f"u{n:03}": s for n, s in enumerate(SENTENCES)})
    (tmp_path / "lexicon.txt").write_text("A EY\nx EH K S\none W AH N\n")
    out = tmp_path / "lm.arpa"
    code, said = run("train", tmp_path / "data", "--vocabulary", tmp_path / "lexicon.txt", "--out", out)
    assert code == 0, said
    assert {"A", "x", "one", "<unk>"} < set(read_arpa(out).words)
    assert "u000" not in read_arpa(out).words
    assert f"{sum(w not in ('A', 'x', 'one') for s in SENTENCES for w in s.split())} words of the text" in said
    code, said = run("train", tmp_path / "data", "--most", 2, "--cutoffs", "0,0,1", "--out", out)
    assert code == 0, said
    assert len(read_arpa(out).words) == 5


def test_vocabularies_of_several_kinds(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("A x one\n")
    out = tmp_path / "lm.arpa"
    for content in (";;; CMUdict\nA EY\nx EH K S\nx(2) EH K\n", "<eps> 0\nA 1\nx 2\n#0 3\n", "# my words\nA\nx\n"):
        (tmp_path / "words").write_text(content)
        code, said = run("train", tmp_path / "text", "--vocabulary", tmp_path / "words", "--out", out)
        assert code == 0, said
        assert set(read_arpa(out).words) == {"A", "x", "<s>", "</s>", "<unk>"}


def test_prose_is_written_like_transcripts(tmp_path: Path) -> None:
    write_table(tmp_path / "data" / "text", {"u1": "TURN ON THE LIGHT"})
    (tmp_path / "prose.txt").write_text("Dim the light, please!\n")
    out = tmp_path / "lm.arpa"
    code, said = run("train", tmp_path / "data", tmp_path / "prose.txt", "--writing", "english", "--out", out)
    assert code == 0, said
    assert {w for w in read_arpa(out).words if w[0] != "<"} == {"TURN", "ON", "THE", "LIGHT", "DIM", "PLEASE"}
    _, plain = run("perplexity", out, tmp_path / "prose.txt")
    _, written = run("perplexity", out, tmp_path / "prose.txt", "--writing", "english")
    assert "OOV 100.00 %" in plain
    assert "OOV 0.00 %" in written


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "nowhere.txt", "--out", "x"], "there is no file nowhere.txt"),
        (
            ["train", "TEXT", "--order", "2", "--cutoffs", "0,one", "--out", "x"],
            "give whole numbers separated by commas",
        ),
        (["train", "TEXT", "--order", "2", "--cutoffs", "0", "--out", "x"], "give one per order"),
        (["train", "TEXT", "--vocabulary", "TEXT", "--most", "3", "--out", "x"], "give one of them"),
        (["train", "TEXT", "--vocabulary", "empty", "--unknown", "", "--out", "x"], "outside the closed vocabulary"),
        (["train", "empty", "--out", "x"], "no sentence in"),
        (["train", "damaged.gz", "--out", "x"], "is damaged"),
        (["train", "latin1", "--out", "x"], "is not UTF-8 (byte 1)"),
        (["train", "TEXT", "--unknown", "OOV", "--out", "x"], "readers of models know <unk> and <UNK> alone"),
        *(
            (["train", "TEXT", "--memory", size, "--out", "x"], f"--memory {size!r}: give a size of at least 1M")
            for size in ("", "0", "500", "1023K", "-1M", "5Q", "1M2", "1.M", "nan", "1e9", "500MB")
        ),
        (["train", "TEXT", "--temporary", "TEXT", "--out", "x"], "--temporary"),
        (["train", "TEXT", "--tool", "lmplz", "--unknown", "<UNK>", "--out", "x"], "lmplz knows <unk> alone"),
        (["train", "TEXT", "--tool", "lmplz", "--out", "x"], "there is no program lmplz on PATH"),
        (["train", "TEXT", "--out", "TEXT"], "is read too and would be overwritten"),
        (["train", "data", "--out", "data/text"], "is read too and would be overwritten"),
        (["train", "folder", "--out", "folder/a.txt"], "is read too and would be overwritten"),
        (["train", "TEXT", "--vocabulary", "words", "--out", "words"], "is read too and would be overwritten"),
        (["prune", "lm.arpa", "--out", "./lm.arpa"], "is read too and would be overwritten"),
        (["prune", "lm.arpa", "--threshold", "nan", "--out", "x"], "give a relative rise of perplexity, 0 or more"),
        (["prune", "nowhere.arpa", "--out", "x"], "LM nowhere.arpa does not exist"),
        (["perplexity", "latin1", "TEXT"], "latin1"),
    ],
)
def test_mistakes(words: list[str], says: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    Path("empty").write_text("\n\n")
    Path("latin1").write_bytes(b"a\xe4")
    Path("damaged.gz").write_bytes(gzip.compress(text.read_bytes())[:40])
    Path("data").mkdir()
    Path("data/text").write_text("u1 a b\n")
    Path("words").write_text("a\n")
    Path("folder").mkdir()
    Path("folder/a.txt").write_text("a b\n")
    write_arpa(KneserNey(2).train(SENTENCES).model, Path("lm.arpa"))
    code, said = run(*(str(text) if word == "TEXT" else word for word in words))
    assert code == 1, said
    assert says in said
    assert not Path("x").exists()
