"""Staged shards: whole or absent, checked, fetched once for all learners, in a folder of bounded size."""

import io
import json
import logging
import pickle
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest

from murmur.speech.corpus import remote
from murmur.speech.corpus.errors import CorpusError, TransferError
from murmur.speech.corpus.remote import location
from murmur.speech.features import staging
from murmur.speech.features.chunks import AlignedFrames, ChunkTable
from murmur.speech.features.shards import make, open_store
from murmur.speech.features.staging import Staging
from tests.support.remote_servers import needs_web, seeded_cuts, web_server

pytestmark = needs_web
SHARDS, EACH, FRAMES, DIMS = 6, 3, 40, 30
GB = 1e9


@dataclass(frozen=True)
class Drawn:
    seed: int

    def utterances(self):
        rng = np.random.default_rng(self.seed)
        for n in range(EACH):
            feats = rng.standard_normal((FRAMES, DIMS)).astype(np.float32)
            yield AlignedFrames(f"u{self.seed}-{n}", feats, rng.integers(0, 9, FRAMES))


@pytest.fixture
def web(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "PAUSE_SECONDS", 0.0)
    make(tmp_path / "served" / "store", [Drawn(seed) for seed in range(SHARDS)], "uint8")
    with web_server(tmp_path / "served") as server:
        yield server


def altered(content):
    return content[:-1] + bytes([content[-1] ^ 1])


def opened(web, folder, **options):
    return open_store(location(f"{web.address}/store"), Staging(folder, **options))


def sizes(folder):
    return {path: sum(f.stat().st_size for f in path.iterdir()) for path in folder.iterdir() if path.is_dir()}


def shard_bytes(web):
    return sum(size for size, _ in open_store(web.folder / "store").manifest["shards"][0]["files"].values())


@pytest.mark.parametrize("ranges", [True, False])
def test_a_store_at_a_url_is_the_local_one_bit_for_bit_though_transfers_are_cut(web, ranges, tmp_path):
    local = open_store(web.folder / "store")
    web.ranges, web.cut = ranges, seeded_cuts(1, 0.25)
    far = pickle.loads(pickle.dumps(opened(web, tmp_path / "staged")))
    assert far.names == local.names
    assert far.manifest == local.manifest
    for u in range(len(local)):
        assert (far.feats(u) == local.feats(u)).all()
        assert (far.targets(u) == local.targets(u)).all()
    table = ChunkTable(local.lengths, 10, 3, 3, 4)
    for n in range(table.per_epoch):
        assert (table.batch(n, far).feats == table.batch(n, local).feats).all()


def test_a_shard_is_fetched_when_it_is_used_and_once_for_all_learners(web, tmp_path):
    stores = [opened(web, tmp_path / "staged") for _ in range(4)]
    assert web.of(".feats.npy") == []
    begin = threading.Barrier(4)

    def read(store):
        begin.wait()
        return store.feats(EACH)

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(read, stores))
    assert all((each == found[0]).all() for each in found)
    assert len(web.of("00001.feats.npy")) == len(web.of(".feats.npy")) == 1


def test_the_shards_of_a_minibatch_are_fetched_together(web, tmp_path):
    store = opened(web, tmp_path / "staged")
    store.stage([0, 1, EACH, 3 * EACH])
    assert len(sizes(tmp_path / "staged")) == 3
    before = len(web.sent)
    store.stage([0, 3 * EACH + 2])
    _ = store.feats(0), store.targets(EACH)
    assert len(web.sent) == before


@pytest.mark.parametrize("kept", [1, 2, 4])
def test_the_folder_keeps_its_bound_and_the_least_recently_used_shard_leaves(web, kept, tmp_path):
    bound = (kept + 0.5) * shard_bytes(web)
    folder, local = tmp_path / "staged", open_store(web.folder / "store")
    store, used = opened(web, folder, gigabytes=bound / GB), []
    for u in np.random.default_rng(0).integers(0, len(local), 24).tolist():
        assert (store.feats(u) == local.feats(u)).all()
        shard = u // EACH
        used = [*(s for s in used if s != shard), shard]
        assert sum(sizes(folder).values()) <= bound
        assert {next(p.glob("*.feats.npy")).name[:5] for p in sizes(folder)} == {f"{s:05}" for s in used[-kept:]}
        assert {s for s, _ in store._maps} <= set(used[-kept:])  # maps of other shards would hold their space


def test_a_folder_too_small_for_a_shard_is_named(web, tmp_path):
    store = opened(web, tmp_path / "staged", gigabytes=0.5 * shard_bytes(web) / GB)
    with pytest.raises(CorpusError, match=r"staged may hold .*raise task.staging.gigabytes"):
        store.feats(0)


def test_a_failed_transfer_leaves_nothing_and_is_mended_by_the_next(web, tmp_path):
    store = opened(web, tmp_path / "staged")
    web.cut = lambda number, size: size // 2
    with pytest.raises(TransferError, match=r"00000\.feats\.npy cannot be transferred, tried 5 times"):
        store.feats(0)
    assert sizes(tmp_path / "staged") == {}
    web.cut = lambda number, size: size
    assert (store.feats(0) == open_store(web.folder / "store").feats(0)).all()


def test_what_a_killed_learner_left_makes_room(web, tmp_path):
    folder = tmp_path / "staged"
    store = opened(web, folder, gigabytes=2.5 * shard_bytes(web) / GB)
    _ = store.feats(0)
    left = folder / f".abcd.new-{socket.gethostname()}-4194305-1"  # no process has this number
    left.mkdir()
    (left / "00000.feats.npy").write_bytes(bytes(shard_bytes(web)))
    _ = store.feats(EACH)
    assert len(sizes(folder)) == 2
    assert not left.exists()


def test_another_checksum_is_fetched_once_more_and_then_named(web, tmp_path, caplog):
    store = opened(web, tmp_path / "staged")
    begun = len(web.sent)
    web.change = lambda number, content: altered(content) if number == begun else content
    with caplog.at_level(logging.WARNING):
        assert (store.feats(0) == open_store(web.folder / "store").feats(0)).all()
    assert "00000.feats.npy has another checksum" in caplog.text
    web.change = lambda number, content: altered(content) if content.startswith(b"\x93NUMPY") else content
    with pytest.raises(TransferError, match=r"00001.feats.npy has another checksum .*fetched twice"):
        store.feats(EACH)
    assert len(sizes(tmp_path / "staged")) == 1
    with pytest.raises(TransferError, match=r"lengths.npy has another checksum"):
        opened(web, tmp_path / "staged")


@pytest.mark.parametrize("change", [lambda content: content + bytes(1), lambda content: content + bytes(8 << 20)])
def test_a_longer_file_is_refused_and_not_written(web, tmp_path, monkeypatch, change):
    store, written = opened(web, tmp_path / "staged"), []
    fetched = staging.fetch

    def watched(source, size, checksum, out):
        try:
            fetched(source, size, checksum, out)
        finally:
            written.append(out.seek(0, io.SEEK_END) - size)

    monkeypatch.setattr(staging, "fetch", watched)
    web.change = lambda number, content: change(content)
    with pytest.raises(TransferError, match=r"feats.npy has another checksum .*fetched twice"):
        store.feats(0)
    assert written == [0]
    assert not sizes(tmp_path / "staged")


@pytest.mark.parametrize("entry", [[-1, "00"], ["3", "00"], [3, None], [3], 3, [1.5, "00"], [True, "00"]])
def test_a_damaged_entry_of_a_file_is_refused(web, tmp_path, entry):
    path = web.folder / "store" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["shards"][2]["files"]["00002.feats.npy"] = entry
    path.write_text(json.dumps(manifest))
    for open_it in (lambda: opened(web, tmp_path / "staged"), lambda: open_store(web.folder / "store")):
        with pytest.raises(CorpusError, match=r"manifest\.json"):
            open_it()


def test_learners_of_adjacent_shares_stage_their_own_shards_alone(web, tmp_path):
    lengths = open_store(web.folder / "store").lengths
    table = ChunkTable(lengths, 10, 3, 3, 4, parts=2, shares="adjacent")
    wanted = []
    for rank in range(2):
        store = opened(web, tmp_path / f"host{rank}")
        for n in range(rank, table.per_epoch, 2):
            store.stage(chunk.utterance for chunk in table[n])
        wanted.append({next(p.glob("*.feats.npy")).name[:5] for p in sizes(tmp_path / f"host{rank}")})
    assert wanted == [{"00000", "00001", "00002"}, {"00003", "00004", "00005"}]
    frames = [f for n in range(table.per_epoch) for c in table[n] for f in range(c.first, c.last)]
    assert len(frames) == lengths.sum()
