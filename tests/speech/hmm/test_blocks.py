"""Blocks on disk: references in place of data, alignments of passes, and what processes hold."""

from __future__ import annotations

import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from murmur.speech.features.derived import ChangedArrays, DerivedFeatures
from murmur.speech.features.feature_store import ShardRows
from murmur.speech.hmm import blocks, passes
from murmur.speech.hmm.align import align_scores
from murmur.speech.hmm.blocks import Workers, cut_into_blocks
from murmur.speech.hmm.em_loop import EmConfig
from murmur.speech.hmm.grow import merge_stats, tree_stats
from murmur.speech.hmm.monophone import train_monophone
from murmur.speech.hmm.storage import load_alignments, save_alignments

CONFIG = EmConfig(gaussians=12, passes=2, grow_passes=1, align_passes=(2,), min_gaussian_frames=3)


@pytest.fixture(scope="module")
def trained(corpus):
    return train_monophone(corpus.lang, corpus.feats, corpus.texts, CONFIG)


def in_shards(feats: dict[str, np.ndarray], folder: Path, shards: int = 3) -> DerivedFeatures:
    """The features as rows of several shards."""
    places, shapes, names = {}, {}, sorted(feats)
    for shard in range(shards):
        own = names[shard::shards]
        joined = np.concatenate([feats[u] for u in own])
        np.save(folder / f"{shard:05}.feats.npy", joined)
        firsts = np.cumsum([0, *(len(feats[u]) for u in own)]).tolist()
        places |= {u: (shard, first, len(feats[u])) for u, first in zip(own, firsts, strict=False)}
        shapes[shard] = joined.shape
    return DerivedFeatures(ShardRows(folder, places, shapes))


def same(one, two) -> bool:
    return list(one) == list(two) and all(np.array_equal(one[u], two[u]) for u in one)


def test_features_in_shards_give_the_bits_of_features_in_memory(corpus, trained, tmp_path):
    found = train_monophone(corpus.lang, in_shards(corpus.feats, tmp_path), corpus.texts, CONFIG)
    assert np.array_equal(found.model.mixtures.means, trained.model.mixtures.means)
    assert np.array_equal(found.model.log_probs, trained.model.log_probs)
    assert same(found.tids, trained.tids)


def test_features_in_shards_are_not_copied_and_the_folder_goes(corpus, trained, tmp_path):
    feats = in_shards(corpus.feats, tmp_path)
    with Workers(cut_into_blocks(feats, corpus.texts)) as workers:
        (folder,) = set(workers.map(folder_of_block))
        workers.map(passes.realign, trained.model, CONFIG.align)
        assert not list(folder.glob("*.feats.npy"))
        assert folder.exists()
    assert not folder.exists()


def folder_of_block(block):
    return block.stem.parent


def test_alignments_are_those_of_the_last_pass_that_made_some(corpus, trained, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_FRAMES", 500)
    with Workers(cut_into_blocks(corpus.feats, corpus.texts, tids=trained.tids)) as workers:
        assert len(workers.blocks) > 3
        assert same(workers.alignments, trained.tids)
        workers.map(passes.accumulate, trained.model)
        assert same(workers.alignments, trained.tids)
        (folder,) = set(workers.map(folder_of_block))
        workers.map(shortened)
        kept = workers.alignments
        assert len(list(folder.glob("*-*.npz"))) == len(workers.blocks)  # earlier files are removed
    odd = sorted(corpus.texts)[1::2]
    assert list(kept) == odd  # the file outlives the blocks
    assert all(np.array_equal(kept[u], trained.tids[u][:-1]) for u in odd)


def shortened(block):
    """Keep the alignments of utterances of odd numbers, without their last frame."""
    block.tids = {u: tids[:-1] for u, tids in block.tids.items() if int(u[1:]) % 2}


def test_a_pass_that_breaks_off_leaves_whole_alignments(corpus, trained, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_FRAMES", 500)
    write = blocks.write_paths

    def fails(block, path):
        write(block, path)
        if "u010" in block.texts:
            raise OSError("the disk is full")

    with Workers(cut_into_blocks(corpus.feats, corpus.texts, tids=trained.tids)) as workers:
        monkeypatch.setattr(blocks, "write_paths", fails)
        with pytest.raises(OSError, match="full"):
            workers.map(shortened)
        monkeypatch.setattr(blocks, "write_paths", write)
        failed = next(n for n, b in enumerate(workers.blocks) if b.first <= "u010" <= b.last)
        found = workers.alignments
    for u in corpus.texts:
        before = failed <= next(n for n, b in enumerate(workers.blocks) if b.first <= u <= b.last)
        if before:  # the failed block and those after it have the alignments of the pass before
            assert np.array_equal(found[u], trained.tids[u])
        else:
            assert (u in found) == bool(int(u[1:]) % 2)


def test_graphs_from_their_file_give_the_same_paths(corpus, trained, monkeypatch):
    with Workers(cut_into_blocks(corpus.feats, corpus.texts)) as workers:
        workers.map(passes.realign, trained.model, CONFIG.align)
        first = workers.alignments
        monkeypatch.setattr(passes, "GraphCompiler", None)  # nothing is compiled again
        workers.map(passes.realign, trained.model, CONFIG.align)
        assert same(first, workers.alignments)


def test_memory_does_not_grow_with_the_features(corpus, trained, tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_FRAMES", 2000)

    def peak_bytes(times: int) -> tuple[int, int]:
        """Most bytes during passes, and those of the features."""
        folder = tmp_path / str(times)
        folder.mkdir(exist_ok=True)
        feats = {f"{n}{u}": np.repeat(x, 10, 0) for n in range(times) for u, x in corpus.feats.items()}
        texts = {u: corpus.texts[u[1:]] for u in feats}
        tids = {u: np.repeat(trained.tids[u[1:]], 10) for u in feats}
        stored, size = in_shards(feats, folder), sum(x.nbytes for x in feats.values())
        with Workers(cut_into_blocks(stored, texts, tids=tids)) as workers:
            del feats, tids
            tracemalloc.start()
            workers.sum(passes.accumulate, trained.model)
            merge_stats(workers.stream(tree_stats, trained.model, None), at_once=2)
            _ = workers.alignments
            found = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        return found, size

    peak_bytes(1)  # modules, and what is made once
    (few, size), (many, more) = peak_bytes(1), peak_bytes(4)
    assert many - few < 0.2 * (more - size)


def test_sums_of_contexts_merged_in_steps_are_those_merged_at_once(corpus, trained, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_FRAMES", 300)
    with Workers(cut_into_blocks(corpus.feats, corpus.texts, tids=trained.tids)) as workers:
        parts = workers.map(tree_stats, trained.model, None)
    assert len(parts) > 4
    once, steps = merge_stats(parts), merge_stats([*parts, None], at_once=2)
    assert np.array_equal(once.keys, steps.keys)
    for one, two in zip(once.sums, steps.sums, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-12)


def test_targets_refer_to_stored_alignments(trained, tmp_path):
    stored, model = save_alignments(trained.model, trained.tids, tmp_path / "ali.npz"), trained.model
    content = pickle.dumps(model.pdf_ids(stored).part(["u002", "u001"]))
    assert b"ali.npz" in content
    part = pickle.loads(content)
    assert list(part) == ["u002", "u001"]
    assert all(np.array_equal(part[u], model.transitions.pdf_of[trained.tids[u]]) for u in part)


def test_scores_are_computed_one_utterance_at_a_time(corpus, trained):
    """Twice each: once for the check, once for the search."""
    taken = []

    def scored(name, feats_TF):
        taken.append(name)
        return trained.model.loglikes(feats_TF)

    scores = ChangedArrays(DerivedFeatures(corpus.feats), scored, trained.model.num_pdfs)
    found = align_scores(trained.model, scores, corpus.texts)
    assert sorted(taken) == sorted([*corpus.texts, *corpus.texts])
    given = {u: trained.model.loglikes(x) for u, x in corpus.feats.items()}
    assert same(found, align_scores(trained.model, given, corpus.texts))


def test_stored_alignments_are_mapped_and_their_checksum_is_compared(trained, tmp_path):
    path = tmp_path / "ali.npz"
    stored = save_alignments(trained.model, trained.tids, path)
    content = pickle.dumps(stored.part(["u003", "u001"]))
    assert len(content) < 1000
    part = pickle.loads(content)
    assert same(part, {u: trained.tids[u] for u in ("u003", "u001")})
    assert same(load_alignments(trained.model, path), trained.tids)
    damaged = bytearray(path.read_bytes())
    damaged[stored.begin] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"ali\.npz is damaged"):
        load_alignments(trained.model, path)
    assert list(save_alignments(trained.model, {}, path)) == []
