"""Lattice-free MMI under every strategy of the registry: virtual world, threads, processes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.core.facts import Facts
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD, Adam
from murmur.engine.scaling import Auto
from murmur.speech.features.augment import SpecAugment
from murmur.speech.features.chunks import Chunks
from murmur.speech.hmm.em_loop import EmConfig
from murmur.speech.models import Tdnn
from murmur.speech.tasks.hybrid.config import HmmStages, Mmi
from murmur.speech.tasks.hybrid.task import HybridTask
from murmur.strategies import ALL, EASGD, KAVG, Compressed, ParameterAveraging, SyncSGD
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
    "ParameterAveraging": ParameterAveraging(200),
    "Compressed": Compressed(KAVG(4), "bfloat16"),
}
MADE = {name: SMALL.get(name) or make() for name, make in ALL.items()}
LEARNERS, MINIBATCHES = 2, 12


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> HybridTask:
    root = make_set(tmp_path_factory.mktemp("set"), {"train": 12, "dev": 3, "test": 2})
    stages = EmConfig(gaussians=30, passes=4, grow_passes=3, align_passes=(2, 3, 4))
    return HybridTask(
        corpus=root,
        hmm=HmmStages(monophone=stages, triphone=None),
        network=Tdnn(hidden=8, contexts=((-1, 0, 1), (0,)), dropout=0.0),
        criterion=Mmi(),
        chunks=Chunks(frames=12, left_frames=1, right_frames=1, size=4),
        augment=SpecAugment(time_masks=0, bin_masks=0),
        cache=root / "cache",
    )


def experiment(task: HybridTask, name: str) -> Experiment:
    # The steps of two learners are shared among three vectors by elastic averaging.
    budget = Budget(minibatches=2 * MINIBATCHES if name == "EASGD" else MINIBATCHES)
    return Experiment(task, MADE[name], budget, Adam(lr=3e-2), evaluate_every_epochs=9.0, max_gradient_norm=5.0)


def dev_loss(task: HybridTask, weights: torch.Tensor | None) -> float:
    torch.manual_seed(0)
    model = task.model()
    if weights is not None:
        torch.nn.utils.vector_to_parameters(weights, model.parameters())
    return task.evaluate(model)["loss"]


@pytest.mark.parametrize("name", MADE)
def test_every_strategy_learns_on_a_virtual_cluster(task: HybridTask, name: str) -> None:
    cluster = Cluster(learners=LEARNERS, compute=LognormalSeconds(sigma=0.5, seed=4))
    weights = fit(experiment(task, name), VirtualWorld(cluster))
    assert 0 < dev_loss(task, weights) < 0.85 * dev_loss(task, None)


@pytest.mark.parametrize("name", few([name for name in MADE if Facts.of(MADE[name]).lock_step]))
def test_threads_agree_to_the_bit(task: HybridTask, name: str) -> None:
    virtual = fit(experiment(task, name), VirtualWorld(LEARNERS))
    assert torch.equal(fit(experiment(task, name), ThreadWorld(LEARNERS, timeout_seconds=20)), virtual)


@pytest.mark.parametrize("name", few([name for name in MADE if not Facts.of(MADE[name]).lock_step]))
def test_threads_learn_at_their_own_pace(task: HybridTask, name: str) -> None:
    weights = fit(experiment(task, name), ThreadWorld(LEARNERS, timeout_seconds=20))
    assert 0 < dev_loss(task, weights) < 0.85 * dev_loss(task, None)


@pytest.mark.parametrize("name", few([name for name in MADE if Facts.of(MADE[name]).bitwise_alone]))
def test_one_learner_is_the_plain_loop(task: HybridTask, name: str) -> None:
    alone = Experiment(task, MADE[name], Budget(minibatches=3), Adam(lr=1e-2))
    assert torch.equal(fit(alone, VirtualWorld(1)), plain_loop(alone))


@pytest.mark.processes
@pytest.mark.parametrize("name", few(list(MADE), one_in=9))
def test_processes(task: HybridTask, name: str, pool: Pool) -> None:
    learners = [torch.tensor(w) for w in pool.call(fit_in_process, 2, experiment(task, name))]
    assert torch.equal(*learners)
    if Facts.of(MADE[name]).lock_step:
        wanted = fit(experiment(task, name), VirtualWorld(2))
        # Adam divides by the root of tiny numbers at first, so rounding errors are larger than elsewhere.
        assert np.abs((learners[0] - wanted).numpy()).max() < 3e-2
    assert 0 < dev_loss(task, learners[0]) < dev_loss(task, None)


def test_minibatches_are_cut_for_lock_step_learners(task: HybridTask) -> None:
    """Two learners on halves of the minibatches take the steps of one learner on whole ones."""
    cut = Experiment(task, SyncSGD(), Budget(minibatches=4), SGD(lr=0.1), scaling=Auto("stays"))
    one, two = (fit(cut, VirtualWorld(learners)) for learners in (1, 2))
    assert torch.allclose(one, two, atol=1e-5)
