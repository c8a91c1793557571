"""Passes over blocks by workers elsewhere: the same bits, and the loss of workers."""

from __future__ import annotations

import os
import signal
from functools import reduce
from operator import add

import numpy as np
import pytest

from murmur.execution.executors import Engine
from murmur.execution.workers import WorkerDied
from murmur.speech.hmm import blocks, passes
from murmur.speech.hmm.align import align
from murmur.speech.hmm.blocks import Workers, cut_into_blocks
from murmur.speech.hmm.em_loop import EmConfig
from murmur.speech.hmm.monophone import train_monophone
from tests.support.dask_workers import dask_engine, needs_dask

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]
CONFIG = EmConfig(gaussians=20, passes=3, grow_passes=2, align_passes=(2, 3), min_gaussian_frames=3)


@pytest.fixture(scope="module")
def dask(tmp_path_factory):
    with dask_engine(folder=tmp_path_factory.mktemp("shared")) as engine:
        yield engine


@pytest.fixture(params=["processes", pytest.param("dask", marks=needs_dask)])
def engine(request):
    return Engine(jobs=2) if request.param == "processes" else request.getfixturevalue("dask")


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_FRAMES", 500)


@pytest.fixture(scope="module")
def mono(corpus):
    return train_monophone(corpus.lang, corpus.feats, corpus.texts, CONFIG).model


@needs_dask
def test_training_and_alignment_have_the_same_bits(corpus, small_blocks, dask):
    here, there = (train_monophone(corpus.lang, corpus.feats, corpus.texts, CONFIG, jobs) for jobs in (1, dask))
    assert np.array_equal(here.model.mixtures.means, there.model.mixtures.means)
    assert np.array_equal(here.model.mixtures.variances, there.model.mixtures.variances)
    assert np.array_equal(here.model.log_probs, there.model.log_probs)
    assert all(np.array_equal(here.tids[u], there.tids[u]) for u in here.tids)
    one, two = (align(here.model, corpus.feats, corpus.texts, jobs=jobs) for jobs in (1, dask))
    assert all(np.array_equal(one[u], two[u]) for u in one)
    assert list(dask.folder.iterdir()) == []


def killed_once(block, model, marker):
    """The sums of a block; the first worker that has u010 dies with it."""
    if "u010" in block.texts and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return passes.accumulate(block, model)


def test_a_worker_killed_in_a_pass_changes_no_bit(corpus, small_blocks, mono, engine, tmp_path):
    def sums(workers, *function):
        failed = workers.gather(passes.realign, mono, CONFIG.align)
        again = workers.gather(passes.realign, mono, CONFIG.align)
        assert failed == again
        return reduce(add, workers.map(*function))

    with Workers(cut_into_blocks(corpus.feats, corpus.texts)) as workers:
        alone = sums(workers, passes.accumulate, mono)
    with Workers(cut_into_blocks(corpus.feats, corpus.texts), engine) as workers:
        together = sums(workers, killed_once, mono, tmp_path / "killed")
        assert (tmp_path / "killed").exists()
        after = workers.gather(passes.realign, mono, CONFIG.align)  # by a worker without this block's graphs
    assert after == {}
    for name in ("occupancy", "first", "second"):
        assert np.array_equal(getattr(alone.mixtures, name), getattr(together.mixtures, name))
    assert np.array_equal(alone.transition_counts, together.transition_counts)
    assert alone.mixtures.log_likelihood == together.mixtures.log_likelihood


def kill(block, counted):
    if "u010" in block.texts:
        with open(counted, "a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)


def test_three_deaths_are_told_with_the_block(corpus, small_blocks, engine, tmp_path):
    cut = list(cut_into_blocks(corpus.feats, corpus.texts))
    number = next(n for n, block in enumerate(cut) if "u010" in block.texts)
    with (
        Workers(cut, engine) as workers,
        pytest.raises(WorkerDied, match=rf"block {number + 1} of {len(cut)} \(utterances u\d+ to u\d+\)"),
    ):
        workers.map(kill, tmp_path / "deaths")
    assert (tmp_path / "deaths").read_text() == "xxx"
