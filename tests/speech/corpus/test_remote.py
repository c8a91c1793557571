"""Files at URLs: transfers that break arrive whole, lasting errors are named in a line, local files need no fsspec."""

import pickle
import sys

import numpy as np
import pytest

from murmur.core.errors import user_message
from murmur.speech.corpus import remote
from murmur.speech.corpus.errors import CorpusError, TransferError
from murmur.speech.corpus.remote import bytes_of, is_remote, location, opened
from tests.support.remote_servers import needs_web, seeded_cuts, web_server

SIZE = 300_000


@pytest.fixture
def web(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(remote, "BLOCK_BYTES", 1 << 16)
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "file.bin").write_bytes(np.random.default_rng(0).bytes(SIZE))
    with web_server(tmp_path / "served") as server:
        yield server


def file_of(web):
    return location(f"{web.address}/file.bin")


@pytest.mark.parametrize(("text", "shown"), [("s3://b/x/y", "s3://b/x/y"), ("gs:/b/x", "gs://b/x"), ("a//b", "a/b")])
def test_a_url_is_a_path_that_prints_both_slashes(text, shown):
    path = location(text)
    assert str(path) == shown
    assert str(path / "z") == f"{shown}/z"
    assert is_remote(path / "z") == is_remote(path) == ("://" in shown)
    again = pickle.loads(pickle.dumps(path))
    assert (type(again), str(again)) == (type(path), shown)
    assert str(location(path)) == str(location(str(path))) == shown


@needs_web
@pytest.mark.parametrize("seed", range(3))
def test_a_transfer_that_is_cut_arrives_whole_from_the_block_that_it_reached(web, seed):
    web.cut = seeded_cuts(seed, 0.4)
    assert bytes_of(file_of(web)) == (web.folder / "file.bin").read_bytes()
    requests = web.of("file.bin")
    assert sum(size for _, size in requests) < 2 * SIZE + sum(1 << 17 for _ in requests)
    assert sorted(first for first, _ in requests) == [first for first, _ in requests]
    assert len({first for first, _ in requests}) > 2


@needs_web
@pytest.mark.parametrize("denied", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_without_ranges_a_transfer_begins_again_and_arrives_whole(web, seed, denied):
    web.ranges, web.denied, web.cut = False, denied, seeded_cuts(seed, 0.5)
    assert bytes_of(file_of(web)) == (web.folder / "file.bin").read_bytes()
    assert {first for first, _ in web.of("file.bin")} == {0}


@needs_web
@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (404, CorpusError, "there is no such file"),
        (403, TransferError, "access is refused .*403.*check the credentials"),
        (401, TransferError, "access is refused"),
        (400, TransferError, "cannot be transferred .*400"),
        (503, TransferError, "tried 5 times .*503"),
    ],
)
def test_lasting_errors_are_named_in_one_line(web, status, kind, says):
    web.status = lambda number: status
    with pytest.raises(kind, match=says) as failed:
        bytes_of(file_of(web))
    told = user_message(failed.value)
    assert told is not None
    assert told.startswith(f"{web.address}/file.bin")
    assert "\n" not in told


@needs_web
def test_a_server_that_comes_back_is_asked_again_and_one_that_does_not_is_named(web):
    web.status = lambda number: 503 if number < 2 else 0
    assert len(bytes_of(file_of(web))) == SIZE
    web.cut = lambda number, size: 0
    with pytest.raises(TransferError, match=r"file.bin cannot be transferred, tried 5 times"):
        bytes_of(file_of(web))


@needs_web
def test_reading_goes_on_behind_a_cut(web):
    whole = (web.folder / "file.bin").read_bytes()
    with opened(file_of(web)) as file:
        assert file.read(100_000) == whole[:100_000]
        places = iter([7, 1, 0])
        web.cut = lambda number, size: next(places, size)
        assert file.read() == whole[100_000:]


@pytest.mark.parametrize(("url", "library"), [("s3://b/x", "s3fs"), ("gs://b/x", "gcsfs"), ("https://h/x", "aiohttp")])
def test_a_missing_library_is_named_with_the_extra(url, library, monkeypatch):
    known = pytest.importorskip("fsspec.registry")
    module = {"aiohttp": "fsspec.implementations.http"}.get(library, library)
    monkeypatch.setitem(sys.modules, module, None)
    for scheme in ("s3", "gs", "https"):
        monkeypatch.delitem(known._registry, scheme, raising=False)
    with pytest.raises(
        CorpusError, match=r"needs libraries that are not installed .*pip install 'murmur-asr\[remote\]'"
    ):
        bytes_of(location(url))


def test_local_files_need_no_fsspec(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    (tmp_path / "text").write_bytes(b"a")
    path = location(tmp_path / "text")
    assert bytes_of(path) == b"a"
    assert remote.sound_source(path) is path
    assert remote.exists(path)
    assert remote.mark(path) == (1, path.stat().st_mtime_ns)
    with pytest.raises(CorpusError, match=r"murmur-asr\[remote\]"):
        bytes_of(location("s3://b/x"))
