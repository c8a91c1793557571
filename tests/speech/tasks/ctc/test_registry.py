"""CTC under every strategy of the registry: virtual world, threads, processes; phones with several pronunciations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.core.facts import Facts
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import Adam
from murmur.speech.features.augment import SpecAugment
from murmur.speech.models import Blstm, Conformer
from murmur.speech.tasks.chunk_learning import _fast_here
from murmur.speech.tasks.ctc import CtcTask
from murmur.strategies import ALL, EASGD, KAVG, Compressed, ParameterAveraging, QuasiGlobal
from murmur.testing.strategies import plain_loop
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, LognormalSeconds
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.grids import few
from tests.support.plateaus import make_set
from tests.support.pool import Pool
from tests.support.tasks import fit, fit_in_process
from tests.support.unscaled import Experiment

SMALL = {
    "EASGD": EASGD(1),
    "ParameterAveraging": ParameterAveraging(1000),
    "Compressed": Compressed(KAVG(4), "bfloat16"),
    "QuasiGlobal": QuasiGlobal(beta=0.0),  # Adam has a momentum of its own
}
MADE = {name: SMALL.get(name) or make() for name, make in ALL.items()}
LEARNERS, MINIBATCHES = 2, 16


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> CtcTask:
    """Words of phones, one of them with two pronunciations, so that both recursions of the criterion are used."""
    root = make_set(tmp_path_factory.mktemp("set"), {"train": 24, "dev": 4, "test": 4})
    with (root / "lexicon.txt").open("a") as lexicon:
        lexicon.write("BOB B A B\n")
    return CtcTask(
        corpus=root,
        units="phone",
        network=Blstm(6, 1, 0.1, 4),
        minibatch_size=4,
        augment=SpecAugment(time_masks=0, bin_masks=0),
        cache=root / "cache",
    )


def experiment(task: CtcTask, name: str) -> Experiment:
    # The steps of two learners are shared among three vectors by elastic averaging.
    budget = Budget(minibatches=2 * MINIBATCHES if name == "EASGD" else MINIBATCHES)
    return Experiment(task, MADE[name], budget, Adam(lr=2e-2), evaluate_every_epochs=2.0, max_gradient_norm=0.1)


def dev_loss(task: CtcTask, weights: torch.Tensor) -> float:
    model = task.model()
    torch.nn.utils.vector_to_parameters(weights, model.parameters())
    return task.evaluate(model)["loss"]


@pytest.mark.parametrize("name", MADE)
def test_every_strategy_learns_on_a_virtual_cluster(task: CtcTask, name: str) -> None:
    cluster = Cluster(learners=LEARNERS, compute=LognormalSeconds(sigma=0.5, seed=4))
    weights = fit(experiment(task, name), VirtualWorld(cluster))
    torch.manual_seed(0)
    fresh = task.evaluate(task.model())["loss"]
    assert 0 < dev_loss(task, weights) < 0.7 * fresh


@pytest.mark.parametrize("name", [name for name in MADE if Facts.of(MADE[name]).lock_step])
def test_threads_agree_to_the_bit(task: CtcTask, name: str) -> None:
    virtual = fit(experiment(task, name), VirtualWorld(LEARNERS))
    assert torch.equal(fit(experiment(task, name), ThreadWorld(LEARNERS, timeout_seconds=20)), virtual)


@pytest.mark.parametrize("name", [name for name in MADE if not Facts.of(MADE[name]).lock_step])
def test_threads_learn_at_their_own_pace(task: CtcTask, name: str) -> None:
    weights = fit(experiment(task, name), ThreadWorld(LEARNERS, timeout_seconds=20))
    torch.manual_seed(0)
    assert 0 < dev_loss(task, weights) < 0.7 * task.evaluate(task.model())["loss"]


@pytest.mark.parametrize("name", [name for name in MADE if Facts.of(MADE[name]).bitwise_alone])
def test_one_learner_is_the_plain_loop(task: CtcTask, name: str) -> None:
    alone = Experiment(task, MADE[name], Budget(minibatches=4), Adam(lr=1e-2))
    assert torch.equal(fit(alone, VirtualWorld(1)), plain_loop(alone))


@pytest.mark.processes
@pytest.mark.parametrize("name", few(list(MADE)))
def test_processes(task: CtcTask, name: str, pool: Pool) -> None:
    learners = [torch.tensor(w) for w in pool.call(fit_in_process, 2, experiment(task, name))]
    assert torch.equal(*learners)
    if Facts.of(MADE[name]).lock_step:
        wanted = fit(experiment(task, name), VirtualWorld(2))
        # Adam divides by the root of tiny numbers at first, so rounding errors are larger than elsewhere.
        assert np.abs((learners[0] - wanted).numpy()).max() < 2e-2
    assert 0 < dev_loss(task, learners[0]) < 0.9


CONFORMER = Conformer(8, 1, 2, 3, dropout=0.0, stack=4)


@pytest.mark.parametrize("name", ["KAVG", "ADPSGD"])
def test_conformers_learn_by_averages(task: CtcTask, name: str) -> None:
    task = replace(task, network=CONFORMER)
    cluster = Cluster(learners=LEARNERS, compute=LognormalSeconds(sigma=0.5, seed=4))
    weights = fit(experiment(task, name), VirtualWorld(cluster))
    torch.manual_seed(0)
    assert 0 < dev_loss(task, weights) < 0.7 * task.evaluate(task.model())["loss"]


@pytest.mark.processes
@pytest.mark.parametrize("name", ["KAVG", "ADPSGD"])
def test_conformers_in_processes_end_equal(task: CtcTask, name: str, pool: Pool) -> None:
    task = replace(task, network=CONFORMER)
    learners = [torch.tensor(w) for w in pool.call(fit_in_process, 2, experiment(task, name))]
    assert torch.equal(*learners)
    torch.manual_seed(0)
    assert 0 < dev_loss(task, learners[0]) < 0.7 * task.evaluate(task.model())["loss"]


def test_bfloat16_is_for_the_products_of_training(task: CtcTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """The criterion is near that of float32, which evaluation takes."""
    monkeypatch.setattr("murmur.speech.tasks.chunk_learning.has_fast_bfloat16", lambda: True)
    _fast_here.cache_clear()
    task = replace(task, network=CONFORMER)
    torch.manual_seed(0)
    model, narrow = task.model(), replace(task, precision="bfloat16")
    exact, low = (each.loss(model, task.minibatch(0)).total for each in (task, narrow))
    _fast_here.cache_clear()
    assert low.dtype == torch.float32
    assert 0 < abs(float(low - exact)) < 0.02 * float(exact)
    assert narrow.evaluate(model) == task.evaluate(model)


def test_a_minibatch_weighs_its_frames(task: CtcTask) -> None:
    batches = [task.minibatch(n) for n in range(task.per_epoch)]
    assert sum(batch.frames for batch in batches) == task.samples_per_epoch == task.data.train.frames
    assert any(graph.sequence is None for batch in batches for graph in batch.targets)
    assert any(graph.sequence is not None for batch in batches for graph in batch.targets)
