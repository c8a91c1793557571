"""The language model under every strategy of the registry: virtual world, threads, processes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest
import torch

from murmur.core.facts import Facts
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import Adam
from murmur.engine.trainer import Trainer
from murmur.speech.language_model.word_lstm import Sentences, WordLstm
from murmur.speech.tasks.language_model import LanguageModelTask
from murmur.strategies import ALL, EASGD, KAVG, Compressed, ParameterAveraging, QuasiGlobal, StreamingDiLoCo
from murmur.testing.strategies import plain_loop
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, LognormalSeconds
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.grids import few
from tests.support.pool import Pool
from tests.support.tasks import fit, fit_in_process, weights_of
from tests.support.unscaled import Experiment

SMALL = {
    "EASGD": EASGD(1),
    "ParameterAveraging": ParameterAveraging(300),
    "StreamingDiLoCo": StreamingDiLoCo(4, 2, 2),
    "Compressed": Compressed(KAVG(4), "bfloat16"),
    "QuasiGlobal": QuasiGlobal(beta=0.0),  # Adam has a momentum of its own
}
MADE = {name: SMALL.get(name) or make() for name, make in ALL.items()}
LEARNERS, MINIBATCHES = 2, 60


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> LanguageModelTask:
    """Sentences of several lengths whose next word is almost certain."""
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("A B C\nC A B C A\nB C A B C A B\nA B\n" * 40)
    return LanguageModelTask(text=file, min_count=1, minibatch_size=8, network=WordLstm(4, 8, 1, 0.0, tied=False))


def experiment(task: LanguageModelTask, name: str) -> Experiment:
    # The steps of two learners are shared among three vectors by elastic averaging.
    budget = Budget(minibatches=2 * MINIBATCHES if name == "EASGD" else MINIBATCHES)
    return Experiment(task, MADE[name], budget, Adam(lr=6e-2), evaluate_every_epochs=2.0, max_gradient_norm=1.0)


def dev_loss(task: LanguageModelTask, weights: torch.Tensor) -> float:
    model = task.model()
    torch.nn.utils.vector_to_parameters(weights, model.parameters())
    return task.evaluate(model)["loss"]


@pytest.mark.parametrize("name", MADE)
def test_every_strategy_learns_on_a_virtual_cluster(task: LanguageModelTask, name: str) -> None:
    cluster = Cluster(learners=LEARNERS, compute=LognormalSeconds(sigma=0.5, seed=4))
    weights = fit(experiment(task, name), VirtualWorld(cluster))
    assert 0 < dev_loss(task, weights) < 1.2  # ln 5 = 1.61 without knowledge


@pytest.mark.parametrize("name", few([name for name in MADE if Facts.of(MADE[name]).lock_step]))
def test_threads_agree_to_the_bit(task: LanguageModelTask, name: str) -> None:
    virtual = fit(experiment(task, name), VirtualWorld(LEARNERS))
    assert torch.equal(fit(experiment(task, name), ThreadWorld(LEARNERS, timeout_seconds=20)), virtual)


@pytest.mark.parametrize("name", few([name for name in MADE if Facts.of(MADE[name]).bitwise_alone]))
def test_one_learner_is_the_plain_loop(task: LanguageModelTask, name: str) -> None:
    alone = Experiment(task, MADE[name], Budget(minibatches=4), Adam(lr=1e-2))
    assert torch.equal(fit(alone, VirtualWorld(1)), plain_loop(alone))


@pytest.mark.processes
@pytest.mark.parametrize("name", ["KAVG", "ADPSGD"])
def test_processes(task: LanguageModelTask, name: str, pool: Pool) -> None:
    learners = [torch.tensor(w) for w in pool.call(fit_in_process, 2, experiment(task, name))]
    assert torch.equal(*learners)
    assert 0 < dev_loss(task, learners[0]) < 1.2


class CutOff(Exception):
    """Exception that ends a run in the middle."""


@dataclass(frozen=True)
class Until(LanguageModelTask):
    """A task that ends the run when a minibatch is read."""

    last: int = 0

    def minibatch(self, n: int) -> Sentences:
        if n >= self.last:
            raise CutOff
        return super().minibatch(n)


def test_a_run_that_is_cut_off_goes_on_with_the_same_bits(task: LanguageModelTask, tmp_path: Path) -> None:
    small = Budget(minibatches=80)
    whole = Experiment(task, KAVG(K=4), small, Adam(lr=1e-2), evaluate_every_epochs=1.0)
    cut = replace(whole, task=Until(**{f.name: getattr(task, f.name) for f in fields(task)}, last=60))
    with suppress(CutOff):
        Trainer(cut, VirtualWorld(LEARNERS), tmp_path).fit()
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("0*"))
    resumed = Trainer(whole, VirtualWorld(LEARNERS), tmp_path, resume=True).fit().model
    assert torch.equal(weights_of(resumed), fit(whole, VirtualWorld(LEARNERS)))
