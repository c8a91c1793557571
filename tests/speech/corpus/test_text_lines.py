"""One rule of lines, columns and characters: every reader of text ends lines and columns at the same places."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.corpus.kaldi_dir import read_pairs, read_scp, read_table
from murmur.speech.corpus.text_lines import columns, numbered_lines, text_lines
from murmur.speech.language_model.arpa import read_arpa
from murmur.speech.language_model.grammar_file import read_grammar, read_words
from murmur.speech.language_model.jsgf import read_jsgf
from murmur.speech.lexicon.g2p import PhoneMap
from murmur.speech.lexicon.lexicon import read_lexicon
from murmur.speech.scoring.glm import read_glm
from murmur.speech.scoring.stm import read_ctm, read_stm
from murmur.tasks.sentences import sentences_of

NO_ENDS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"  # str.splitlines ends lines there
ARPA = "\\data\\\nngram 1=3\n\n\\1-grams:\n-1\t<s>\n-1\t</s>\n-1\té\n\n\\end\\\n"
READERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "table": (read_table, "u1 é\n"),
    "stm": (read_stm, "f A s 0 1 é\n"),
    "ctm": (read_ctm, "f A 0 1 é\n"),
    "glm": (read_glm, "[é] => [e]\n"),
    "lexicon": (read_lexicon, "é E\n"),
    "words": (read_words, "é\n"),
    "acceptor": (read_grammar, "0 1 é\n1\n"),
    "jsgf": (read_jsgf, "#JSGF V1.0;\ngrammar g;\npublic <a> = é;\n"),
    "phone map": (PhoneMap.read, "é E\n"),
    "sentences": (lambda path: sentences_of([path]), "é\n"),
    "arpa": (lambda path: repr(read_arpa(path).words), ARPA),
}


@pytest.mark.parametrize("kind", READERS)
def test_bytes_that_mean_the_same_are_read_alike(kind: str, tmp_path: Path) -> None:
    read, text = READERS[kind]
    plain = tmp_path / "plain"
    plain.write_text(text, encoding="utf-8")
    wanted = repr(read(plain))
    for name, content in {
        "bom": b"\xef\xbb\xbf" + text.encode(),
        "crlf": text.replace("\n", "\r\n").encode(),
        "nfd": text.replace("é", "e\u0301").encode(),
        "packed": gzip.compress(text.encode()),
        "packed.gz": gzip.compress(text.encode()),
        "plain.gz": text.encode(),
    }.items():
        (tmp_path / name).write_bytes(content)
        assert repr(read(tmp_path / name)).replace(str(tmp_path / name), str(plain)) == wanted, name


@pytest.mark.parametrize("kind", READERS)
def test_other_encodings_are_named(kind: str, tmp_path: Path) -> None:
    read, text = READERS[kind]
    path = tmp_path / "file"
    for encoding in ("utf-16", "utf-16-be"):
        path.write_bytes(text.encode(encoding))
        with pytest.raises(ValueError, match="file.*UTF-16" if encoding == "utf-16" or kind != "arpa" else "file"):
            read(path)
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"file.* is not UTF-8"):
        read(path)
    path.write_bytes(gzip.compress(text.encode())[:-12])
    with pytest.raises(ValueError, match="file is damaged"):
        read(path)


def test_the_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"a b\nc \xff\n")
    with pytest.raises(CorpusError, match=r"t is not UTF-8 \(byte 6\) in line 2"):
        text_lines(tmp_path / "t")
    (tmp_path / "t").write_bytes(b"a b\rc d\re f")
    with pytest.raises(CorpusError, match="ends its lines with CR alone"):
        text_lines(tmp_path / "t")


@given(st.text(st.sampled_from("ab \t\r\n" + NO_ENDS), max_size=30))
def test_lines_end_at_lf_alone(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("lines") / "t"
    path.write_bytes(f"a\n{text}".encode())
    assert len(text_lines(path)) == f"a\n{text}".removesuffix("\n").count("\n") + 1
    assert [line for _, line in numbered_lines(path)] == [
        line.strip() for line in f"a\n{text}".replace("\r\n", "\n").split("\n") if line.strip()
    ]


@pytest.mark.parametrize("odd", ["\u00a0", "\u3000", "\u2003", *NO_ENDS])
def test_columns_end_at_spaces_and_tabs_and_words_anywhere(odd: str, tmp_path: Path) -> None:
    assert columns("a \t b  c d ", "x:1") == ["a", "b", "c", "d"]
    assert columns(f"a b  c{odd}d ", "x:1", 3) == ["a", "b", f"c{odd}d"]
    with pytest.raises(CorpusError, match=f"x:1: .* holds U\\+{ord(odd):04X}: separate columns by spaces or tabs"):
        columns(f"a{odd}b c", "x:1")
    (tmp_path / "t").write_text(f"u1 one{odd}two\n", encoding="utf-8", newline="")
    assert read_table(tmp_path / "t") == {"u1": "one two"}
    assert read_scp(tmp_path / "t") == {"u1": f"one{odd}two"}  # a name of a file stays as it is
    (tmp_path / "t").write_text(f"u1{odd}one two\n", encoding="utf-8", newline="")
    for read in (read_table, read_scp, lambda path: read_pairs(path, "A B"), read_lexicon):
        with pytest.raises(CorpusError, match=r"t:1: 'u1.*one' holds U\+"):
            read(tmp_path / "t")
