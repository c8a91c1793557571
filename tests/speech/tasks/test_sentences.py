"""Sentences of files, folders and data directories."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from murmur.core.errors import SettingError
from murmur.speech.corpus import file_content
from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.corpus.file_content import each_line, text_lines
from murmur.speech.tasks.texts import check_text, sentences_of


def test_a_folder_gives_its_text_files_in_order_and_a_data_directory_its_transcripts(tmp_path: Path) -> None:
    texts, data = tmp_path / "lm_text", tmp_path / "data"
    texts.mkdir()
    data.mkdir()
    (texts / "b.txt.gz").write_bytes(gzip.compress(b"THREE\n"))
    (texts / "a.txt").write_text("ONE\n\nTWO\n")
    (texts / "README.md").write_text("NOT THIS\n")
    (data / "text").write_text("u1 FOUR\nu2 FIVE SIX\n")
    (data / "notes.txt").write_text("NOR THIS\n")
    assert sentences_of([texts]) == ["ONE", "TWO", "THREE"]
    assert sentences_of([data, texts / "a.txt"]) == ["FOUR", "FIVE SIX", "ONE", "TWO"]


def test_a_missing_text_is_named_before_any_is_read(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "blank.txt").write_text("\n \n")
    with pytest.raises(SettingError, match=r"there is no file .*missing"):
        check_text([tmp_path / "blank.txt", tmp_path / "missing"])
    with pytest.raises(SettingError, match="empty is a folder without a file 'text'"):
        check_text([tmp_path / "empty"])
    with pytest.raises(SettingError, match="no sentence in"):
        sentences_of([tmp_path / "blank.txt"])


def test_text_files_are_written_like_transcripts_and_transcripts_stay(tmp_path: Path) -> None:
    text, data = tmp_path / "spoken.txt", tmp_path / "data"
    text.write_text("Turn on the lamp, please!\nDon’t <noise> go.\n")  # noqa: RUF001 - that is the apostrophe
    data.mkdir()
    (data / "text").write_text("u1 Stays as-it-is.\n")
    assert sentences_of([text, data], "english") == ["TURN ON THE LAMP PLEASE", "DON'T GO", "Stays as-it-is."]
    assert sentences_of([text], "unspaced")[0] == "TURNONTHELAMP,PLEASE!"
    assert sentences_of([text])[0] == "Turn on the lamp, please!"


def test_a_damaged_text_is_named(tmp_path: Path) -> None:
    whole = gzip.compress(b"ONE TWO THREE\n" * 50)
    for name, content in (("cut.txt.gz", whole[:-9]), ("flipped.txt.gz", whole[:12] + b"\xff\xff" + whole[14:])):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CorpusError, match=f"{name} is damaged"):
            sentences_of([tmp_path / name])


def test_files_of_a_folder_that_are_not_read_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a.txt", "b.md", "c.TXT", "d.text", "e.csv", ".hidden"):
        (tmp_path / name).write_text("one\n")
    assert sentences_of([tmp_path]) == ["one"]
    told = "4 of 5 files are left out: b.md, c.TXT, d.text and 1 more: only .txt and .txt.gz are read"
    assert caplog.messages == [f"{tmp_path}: {told}"]


def test_lines_end_at_line_feeds_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for content, wanted in (
        ("a\fb\x0bc\x1cd\x85e\u2028f\u2029g\nh\r\n\ni", ["a\fb\x0bc\x1cd\x85e\u2028f\u2029g", "h", "", "i"]),
        ("a\n", ["a"]),
        ("", []),
        ("\n\n", ["", ""]),
    ):
        path.write_bytes(content.encode())
        assert text_lines(path) == wanted
        assert list(each_line(path)) == wanted


@pytest.mark.parametrize("packed", [False, True])
def test_lines_of_pieces_are_those_of_the_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    """Lines, and the places of errors."""
    path, write = tmp_path / "t", gzip.compress if packed else bytes
    monkeypatch.setattr(file_content, "_PIECE_BYTES", 4)
    good = "\ufeffone\r\n\n two\u00a0e\u0301\n\ufeffx\n\n\nlast\rone".encode()
    path.write_bytes(write(good))
    assert list(each_line(path)) == text_lines(path)
    assert len(text_lines(path)) == 7
    for bad in (b"one\ntwo\nth\xffree\n", b"one\ntwo\nth\0ree\n", b"one\rtwo"):
        path.write_bytes(write(bad))
        with pytest.raises(CorpusError) as whole:
            text_lines(path)
        with pytest.raises(CorpusError) as pieces:
            list(each_line(path))
        assert str(pieces.value) == str(whole.value)
