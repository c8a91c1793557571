"""Prepared corpora: values are stored to the promised precision; damage is found, named and repaired alone."""

import json
import logging
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from murmur.execution import processes
from murmur.speech.corpus.corpus import CorpusError, Problem
from murmur.speech.features import shards
from murmur.speech.features.chunks import AlignedFrames, ChunkTable, FramesInMemory
from murmur.speech.features.shards import damages, encoded, make, open_store


def drawn(number: int, frames: int) -> AlignedFrames:
    rng = np.random.default_rng(number)
    feats = (3 * rng.standard_normal((frames, 5)) + rng.uniform(-9, 9, 5)).astype(np.float32)
    return AlignedFrames(f"ü{number}", feats, rng.integers(0, 70_000 if number % 2 else 300, frames))


@dataclass(frozen=True)
class Drawn:
    """Utterances [first, last); some of them are problems."""

    first: int
    last: int
    lost: tuple[int, ...] = ()

    def utterances(self) -> Iterator[AlignedFrames | Problem]:
        for number in range(self.first, self.last):
            lost = number in self.lost
            yield Problem(f"ü{number}", "nowhere", "lost") if lost else drawn(number, 20 + number % 7)


PARTS = (Drawn(0, 4), Drawn(4, 9), Drawn(9, 10))


@pytest.mark.parametrize(("storage", "bytes_a_value"), [("float32", 4), ("float16", 2), ("uint8", 1)])
def test_a_store_gives_back_what_was_put_in(storage, bytes_a_value, tmp_path):
    store = make(tmp_path / storage, PARTS, storage)
    assert len(store) == 10
    assert store.names == tuple(f"ü{n}" for n in range(10))
    size = sum(path.stat().st_size for path in (tmp_path / storage).glob("*.feats.npy"))
    assert size == pytest.approx(store.lengths.sum() * 5 * bytes_a_value, abs=400)
    for number in range(10):
        wanted = drawn(number, 20 + number % 7)
        assert store.targets(number).tolist() == wanted.targets.tolist()
        steps = (wanted.feats.max(0) - wanted.feats.min(0)) / 255
        allowed = {"float32": 0.0, "float16": np.abs(wanted.feats) / 2000, "uint8": steps * 0.51}[storage]
        assert (np.abs(store.feats(number) - wanted.feats) <= allowed).all()


@pytest.mark.parametrize("storage", ["float32", "uint8"])
def test_chunks_from_disk_are_those_from_memory(storage, tmp_path):
    store = make(tmp_path, PARTS, storage)
    own = {name: store.feats(n) for n, name in enumerate(store.names)}
    memory = FramesInMemory(own, {name: store.targets(n) for n, name in enumerate(store.names)})
    table = ChunkTable(store.lengths, 8, 9, 11, 3)
    for n in range(2 * table.per_epoch):
        here, there = table.batch(n, store), table.batch(n, memory)
        assert (here.feats == there.feats).all()
        assert (here.targets == there.targets).all()


@given(st.integers(1, 30), st.floats(-1e3, 1e3), st.floats(0, 1e3))
@example(2, 0.0, 1.401298464324817e-45)
@settings(max_examples=50, deadline=None)
def test_a_byte_is_at_most_half_a_step_off(frames, middle, spread):
    feats = (middle + spread * np.random.default_rng(frames).uniform(-1, 1, (frames, 3))).astype(np.float32)
    kept, (least, step) = encoded(feats, "uint8")
    rounding = 255 * np.finfo(np.float32).smallest_subnormal  # of the step, in the columns of least spread
    assert (np.abs(least + step * kept - feats) <= 0.501 * step + 1e-6 * np.abs(feats) + rounding).all()


@pytest.mark.slow
def test_processes_change_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "START_SECONDS", 0.0)
    make(tmp_path / "a", PARTS, "uint8")
    make(tmp_path / "b", PARTS, "uint8", processes=2)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "b").iterdir())
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)


def test_damage_is_named_and_costs_one_shard(tmp_path, monkeypatch, caplog):
    before = make(tmp_path, PARTS, "float16")
    wanted = [before.feats(n) for n in range(10)]
    made, real = [], shards.make_shard
    monkeypatch.setattr(
        shards, "make_shard", lambda folder, number, *rest: (made.append(number), real(folder, number, *rest))
    )
    victims = [p for p in sorted(tmp_path.glob("00001.*")) if p.suffix != ".json"]
    assert len(victims) == 4
    for victim in victims:
        flipped = bytearray(victim.read_bytes())
        flipped[len(flipped) * 2 // 3] ^= 4
        for harm, says in (
            (lambda v=victim, f=flipped: v.write_bytes(f), "has another checksum"),
            (lambda v=victim: v.write_bytes(v.read_bytes()[:-1]), "bytes instead of"),
            (victim.unlink, "is missing"),
        ):
            harm()
            assert damages(tmp_path, 0) == []
            assert [victim.name in line and says in line for line in damages(tmp_path, 1)] == [True]
            made.clear()
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                mended = make(tmp_path, PARTS, "float16")
            assert made == [1]
            assert victim.name in caplog.text
            assert all((mended.feats(n) == wanted[n]).all() for n in range(10))
    (tmp_path / "00002.json").unlink()  # killed before it was finished
    made.clear()
    make(tmp_path, PARTS, "float16")
    make(tmp_path, PARTS, "float16")
    assert made == [2]


def test_what_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(CorpusError, match=r"has no manifest\.json"):
        open_store(tmp_path)
    make(tmp_path, PARTS, "float32")
    short = tmp_path / "00001.targets.npy"
    short.write_bytes(short.read_bytes()[:-3])
    with pytest.raises(CorpusError, match=r"00001\.targets\.npy is missing or does not have"):
        open_store(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"format": 99}))
    with pytest.raises(CorpusError, match="format 99"):
        open_store(tmp_path)


def test_problems_are_kept_and_too_many_are_refused(tmp_path):
    store = make(tmp_path / "a", (Drawn(0, 150, lost=(3,)), Drawn(3, 4, lost=(3,))), "uint8")
    assert len(store) == 149
    assert {p.utterance for p in store.problems} == {"ü3"}
    assert store.names[3] == "ü4"
    with pytest.raises(CorpusError, match="1 of 5"):
        make(tmp_path / "b", (Drawn(0, 5, lost=(3,)),), "uint8")

    class Short:
        def utterances(self):
            yield AlignedFrames("a", np.zeros((3, 2)), np.zeros(4, int))

    with pytest.raises(ValueError, match="a has 3 frames and 4 targets"):
        make(tmp_path / "c", (Short(),), "uint8")


def test_a_store_is_pickled_as_its_place(tmp_path):
    store = make(tmp_path, PARTS, "float32")
    store.feats(3)
    again = pickle.loads(pickle.dumps(store))
    assert len(pickle.dumps(store)) < 3000
    assert (again.feats(3) == store.feats(3)).all()


def test_two_commands_make_a_store_together(tmp_path):
    """The slower one begins first, and took away the marks of shards that the faster one had made."""
    fast_at_last, slow_goes_on, fast_over = (threading.Event() for _ in range(3))
    taken = []

    @dataclass(frozen=True)
    class Slow(Drawn):
        number: int = 0

        def utterances(self):
            taken.append(self.number)
            if self.number > 0:
                slow_goes_on.set()
            assert (fast_over if self.number else fast_at_last).wait(60)
            return super().utterances()

    class Fast(Drawn):
        def utterances(self):
            fast_at_last.set()
            assert slow_goes_on.wait(60)
            return super().utterances()

    slow = [Slow(part.first, part.last, number=number) for number, part in enumerate(PARTS)]
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(make, tmp_path / "both", slow, "float16")
        while not taken:
            assert not fast_at_last.wait(0.01)
        try:
            make(tmp_path / "both", [*PARTS[:2], Fast(9, 10)], "float16")
        finally:
            fast_over.set()
        assert len(there.result()) == 10
    assert taken == [0, 2]  # shard 1 was there when its turn came
    alone = make(tmp_path / "alone", PARTS, "float16").folder
    assert {p.name: p.read_bytes() for p in alone.iterdir()} == {
        p.name: p.read_bytes() for p in (tmp_path / "both").iterdir()
    }
