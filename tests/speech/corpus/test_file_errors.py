"""Files that once ended or hung the process, or raised an error without a file name."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from murmur.speech.corpus.atomic_file import write_text_whole
from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.corpus.file_errors import making_sense_of, read_arrays, read_object
from murmur.speech.corpus.kaldi_dir import read_table
from murmur.speech.features.shards import write_then_rename
from murmur.speech.hmm.mixtures import one_gaussian_each
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.storage import load_model, save_model, write_with_header
from murmur.speech.hmm.transitions import make_transitions
from murmur.speech.hmm.tree import Leaf, Question, Tree, monophone_tree
from murmur.speech.language_model.arpa import read_arpa
from murmur.speech.language_model.jsgf import read_jsgf
from murmur.speech.lexicon.lexicon import make_lang, read_lexicon

LANG = make_lang([("A", ("a", "b")), ("B", ("b",))])


def gmm() -> HmmGmm:
    tree = monophone_tree(LANG)
    return HmmGmm(LANG, tree, make_transitions(LANG, tree).log_probs, one_gaussian_each(np.zeros(3), np.ones(3), 11))


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
    with pytest.raises(ValueError, match=r"leads? nowhere|asks for phone|must carry the pdfs"):
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


def test_a_link_stays_where_text_is_written(tmp_path):
    (tmp_path / "link").symlink_to("real")
    write_text_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"
