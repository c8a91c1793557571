"""Contents of data files: text, damaged files and full disks."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import kaldifst
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.core.whole_files import write_text_whole, write_whole
from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.corpus.file_content import (
    columns,
    making_sense_of,
    numbered_lines,
    read_arrays,
    read_object,
    text_lines,
)
from murmur.speech.corpus.kaldi_dir import read_pairs, read_scp, read_table
from murmur.speech.decoding.graph import DecodingGraph, GraphFacts
from murmur.speech.decoding.graph_store import save_graph
from murmur.speech.features.shards import write_then_rename
from murmur.speech.hmm.mixtures import one_gaussian_each
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.storage import load_model, save_model, write_with_header
from murmur.speech.hmm.transitions import make_transitions
from murmur.speech.hmm.tree import Leaf, Question, Tree, monophone_tree
from murmur.speech.language_model.arpa import read_arpa
from murmur.speech.language_model.grammar_file import read_grammar, read_jsgf, read_words
from murmur.speech.lexicon.g2p import PhoneMap
from murmur.speech.lexicon.lexicon import make_lang, read_lexicon
from murmur.speech.scoring.time_marked import read_ctm, read_glm, read_stm
from murmur.speech.tasks.texts import sentences_of

LANG = make_lang([("A", ("a", "b")), ("B", ("b",))])


def gmm() -> HmmGmm:
    tree = monophone_tree(LANG)
    return HmmGmm(LANG, tree, make_transitions(LANG, tree).log_probs, one_gaussian_each(np.zeros(3), np.ones(3), 11))


def graph() -> DecodingGraph:
    return DecodingGraph(kaldifst.StdVectorFst(), ("<eps>",), np.zeros(1, np.int32), 1, GraphFacts(0, 0, 0, 0, 0))


def test_errors_without_a_file_get_one() -> None:
    path = Path("some/file.npz")
    for error in (
        KeyError("x"),
        RecursionError("deep"),
        EOFError(),
        OSError(22, "Invalid argument"),
        CorpusError("odd"),
    ):
        with pytest.raises(CorpusError, match=r"file\.npz"), making_sense_of(path, "make it again"):
            raise error
    with pytest.raises(FileNotFoundError), making_sense_of(path, "make it again"):
        raise FileNotFoundError(2, "No such file", "some/file.npz")


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff", b"[]", b"null"])
def test_what_is_no_object_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=r"facts\.json"):
        read_object(path, "make it again")


def test_pickles_are_refused_without_the_advice_to_load_them(tmp_path: Path) -> None:
    path = tmp_path / "arrays.npz"
    np.savez(path, a=np.array([{}], dtype=object))
    with pytest.raises(CorpusError, match="Object arrays") as found:
        read_arrays(path, "make it again")
    assert "unsafely" not in str(found.value)


def test_arpa_headers_take_no_memory_by_their_word(tmp_path: Path) -> None:
    text = b"\\data\\\nngram 1=999999999999\n\n\\1-grams:\n-1\t<s>\n\\end\\\n"
    (tmp_path / "lm.arpa").write_bytes(text)
    (tmp_path / "lm.arpa.gz").write_bytes(gzip.compress(text))
    for name in ("lm.arpa", "lm.arpa.gz"):
        with pytest.raises(ValueError, match=f"{name}.*counts 999999999999"):
            read_arpa(tmp_path / name)


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress])
def test_compressed_text_is_called_that(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    (tmp_path / "packed").write_bytes(pack(b"A a\nB b\n"))
    for read in (read_lexicon, read_table, read_jsgf):
        with pytest.raises(ValueError, match=r"packed is compressed \((bzip2|xz)\): unpack it, e.g. with "):
            read(tmp_path / "packed")


def test_reserved_phones_are_refused_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "lexicon.txt").write_text("A a\nB b #0\nC <eps>\n")
    with pytest.raises(ValueError, match=r"lexicon.txt:3: 'C' is or has the reserved symbol '<eps>'"):
        read_lexicon(tmp_path / "lexicon.txt")
    (tmp_path / "lexicon.txt").write_bytes(b"A a\nB \xff\n")
    with pytest.raises(ValueError, match=r"lexicon.txt is not UTF-8 \(byte 6\)"):
        read_lexicon(tmp_path / "lexicon.txt")


@pytest.mark.parametrize(
    "nodes",
    [
        (Question(0, (1,), 0, 1), Leaf(0)),
        (Question(0, (1,), 1, 2), Question(0, (2,), 2, 0), Leaf(0)),
        (Question(0, (1,), 7, 1), Leaf(0)),
        (Question(5, (1,), 1, 1), Leaf(0)),
        (Leaf(0), Leaf(2)),
    ],
    ids=["itself", "circle", "nowhere", "outside the window", "pdf missing"],
)
def test_trees_that_do_not_end_are_refused(nodes: tuple[Question | Leaf, ...]) -> None:
    with pytest.raises(ValueError, match=r"leads nowhere|lead back|asks for a phone|must carry the pdfs"):
        Tree(1, 0, nodes, {(1, 0): 0})


def test_branches_may_meet_again() -> None:
    tree = Tree(1, 0, (Question(0, (1,), 1, 2), Question(0, (2,), 2, 3), Leaf(0), Leaf(1)), {(1, 0): 0, (2, 0): 1})
    assert [tree.pdf([phone], 0) for phone in (1, 2)] == [1, 0]


def test_models_on_which_the_library_would_hang_or_abort_are_refused(tmp_path: Path) -> None:
    model, path = gmm(), tmp_path / "gmm.npz"
    save_model(model, path)
    assert load_model(path).num_pdfs == 11
    earning, free = model.log_probs.copy(), model.log_probs.copy()
    earning[1], free[1] = 3.0, 0.0
    huge = replace(model.mixtures, means=np.full_like(model.mixtures.means, 1e30))
    rootless = Tree(1, 0, model.tree.nodes, {k: v for k, v in model.tree.roots.items() if k != (2, 0)})
    bad = {
        "not positive": replace(model, log_probs=earning),
        "sum to": replace(model, log_probs=free),
        "beyond what 32 bits": replace(model, mixtures=huge),
        "lacks states": replace(model, tree=rootless),
        "belong to another model": replace(model, log_probs=model.log_probs[:-1]),
    }
    for says, wrong in bad.items():
        save_model(wrong, path)
        with pytest.raises(CorpusError, match=rf"gmm.npz.*{says}"):
            load_model(path)


def test_headers_that_are_no_objects_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "gmm.npz"
    np.savez(path, header=np.frombuffer(json.dumps(1.5).encode(), np.uint8))
    with pytest.raises(CorpusError, match=r"gmm\.npz"):
        load_model(path)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Make larger files fail as on a full disk, which names no file and fails again as the file is closed."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_then_rename(path, [b"x" * 3000]),
        lambda path: write_then_rename(path, [b"h" * 128, memoryview(bytes(2000))]),
        lambda path: write_then_rename(path, [bytes(100_000)] * 3),
        lambda path: write_with_header(path, {"format": "a"}, {"a": np.zeros(3000)}),
        lambda path: write_text_whole(path, "x" * 3000),
    ],
    ids=["small", "a small rest", "large", "npz", "text"],
)
def test_a_file_that_a_full_disk_cuts_off_is_named_and_the_old_one_stays(
    write: Callable[[Path], object], tmp_path: Path
) -> None:
    path = tmp_path / "00000.npy"
    path.write_text("old")
    with pytest.raises(OSError, match=rf"{path} cannot be written") as found, files_of_at_most(1000):
        write(path)
    assert found.value.errno is not None
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "old"


@pytest.mark.parametrize(
    "write",
    [
        lambda path, number: write_then_rename(path, [bytes([number]) * 3000]),
        lambda path, number: write_with_header(path, {"format": "a"}, {"a": np.full(3000, number)}),
        lambda path, number: write_text_whole(path, str(number) * 3000),
        lambda path, number: write_whole(path, bytes([number]) * 3000),
        lambda path, number: save_graph(graph(), path, "key"),
    ],
    ids=["shard", "npz", "text", "bytes", "graph"],
)
def test_writers_at_the_same_time_do_not_disturb_each_other(
    write: Callable[[Path, int], object], tmp_path: Path
) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: write(tmp_path / "file", number), range(24)))
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_link_stays_where_text_is_written(tmp_path):
    (tmp_path / "link").symlink_to("real")
    write_text_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


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
    for read in (read_table, read_scp, read_pairs, read_lexicon):
        with pytest.raises(CorpusError, match=r"t:1: 'u1.*one' holds U\+"):
            read(tmp_path / "t")
