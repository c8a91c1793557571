"""Modes of a model around code of a task or a user, and every caller of such code."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import murmur
from murmur.core.learner import Learner
from murmur.core.model_mode import evaluating, in_training, into_training
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.stacked import draw_together
from murmur.engine.task import Loss, Score
from murmur.engine.trainer import Trainer
from murmur.run.dry_run import first_steps
from murmur.run.learner import report
from murmur.run.request import RunRequest
from murmur.run.saved_model import InitialWeights
from murmur.strategies import KAVG, SyncSGD
from murmur.tasks.toy import ToyTask
from murmur.user_loop.joined import Plan
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.unscaled import Experiment

SOURCE = Path(murmur.__file__).parent
SETS_A_MODE = {  # of models that are read from files for recognition alone
    "speech/recognition/rescoring.py",
    "speech/recognition/trained_run.py",
    "core/model_mode.py",
}


class Frozen(nn.Module):
    """Model with dropout, and normalisation that its user keeps in evaluation mode while the model trains."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 16)
        self.drop = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(16)
        self.outer = nn.Linear(16, 10)
        self.norm.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.norm(self.drop(torch.relu(self.inner(x)))))


class Plain(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 16), nn.Dropout(0.0), nn.Linear(16, 10))


Modes = tuple[bool, ...]
TRAINS: Modes = (True, True, True, False, True)  # of the model, and of its modules in their order
EVALUATES: Modes = (False,) * 5


def modes(model: nn.Module) -> Modes:
    return tuple(module.training for module in model.modules())


@dataclass(frozen=True)
class Recording(ToyTask):
    """Toy whose functions record the modes of the model, and leave it in the other mode."""

    kind: Callable[[], nn.Module] = Frozen
    seen: list[tuple[str, Modes]] = field(default_factory=list, compare=False, repr=False)

    def model(self) -> nn.Module:
        return self.kind()

    def loss(self, model: nn.Module, minibatch: tuple[Tensor, Tensor]) -> Loss:
        self.seen.append(("loss", modes(model)))
        return super().loss(model, minibatch)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        self.seen.append(("evaluate", modes(model)))
        found = super().evaluate(model)
        model.train()
        return found

    def test(self, model: nn.Module) -> Score:
        self.seen.append(("test", modes(model)))
        return super().test(model)


def experiment(**task: Any) -> Experiment:
    return Experiment(
        Recording(per_epoch=8, samples=4, **task), KAVG(2), Budget(minibatches=8), SGD(0.1), evaluate_every_epochs=0.5
    )


def calls_of(seen: list[tuple[str, Modes]]) -> dict[str, set[Modes]]:
    return {kind: {found for each, found in seen if each == kind} for kind, _ in seen}


def virtual(what: Experiment) -> nn.Module:
    return Trainer(what, VirtualWorld(Cluster(2, ConstantSeconds(1.0)))).fit().model


def threads(what: Experiment) -> nn.Module:
    return Trainer(what, ThreadWorld(2)).fit().model


@pytest.mark.parametrize("train", [virtual, threads])
def test_training_and_evaluation_set_the_mode_and_put_it_back(train: Callable[[Experiment], nn.Module]) -> None:
    what = experiment()
    model = train(what)
    assert calls_of(what.task.seen) == {"loss": {TRAINS}, "evaluate": {EVALUATES}}
    assert modes(model) == TRAINS


def test_a_model_that_is_in_evaluation_mode_itself_trains_with_all_its_modules() -> None:
    what = experiment(kind=lambda: Frozen().eval())  # as a library returns trained weights
    virtual(what)
    assert calls_of(what.task.seen)["loss"] == {(True,) * 5}


def test_gradients_of_many_learners_are_those_of_models_that_train() -> None:
    seen: list[Modes] = []

    class Watching(Plain):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(modes(self))
            return super().forward(x)

    what = experiment(kind=Watching)
    world = VirtualWorld(Cluster(2, ConstantSeconds(1.0)), together=draw_together)
    Trainer(what, world).fit()
    assert (True,) * 4 in seen
    assert calls_of(what.task.seen) == {"evaluate": {(False,) * 4}}
    assert {found for found in seen if found[0]} == {(True,) * 4}


@pytest.mark.parametrize("initialised", [False, True])
def test_the_last_test_of_a_run_is_without_dropout(initialised: bool, tmp_path: Path) -> None:
    what = experiment()
    model = Trainer(what, ThreadWorld(1), tmp_path).fit().model
    tested = replace(what, initial=InitialWeights(tmp_path / "model", "0") if initialised else None)
    figures = []
    for seed in range(3):
        torch.manual_seed(seed)
        request = RunRequest(source="toy", out=tmp_path, tested="last")
        (tmp_path / "score.json").unlink(missing_ok=True)
        what_digest = tested.digest() if not initialised else what.digest()
        _reported(request, tested, model, what_digest)
        figures.append((tmp_path / "score.json").read_text().partition("test_seconds")[0])
    assert len(set(figures)) == 1
    assert calls_of(what.task.seen)["test"] == {EVALUATES}
    assert modes(model) == TRAINS


def _reported(request: RunRequest, what: Experiment, model: nn.Module, digest: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Experiment, "digest", lambda _: digest)  # an initialised task has another digest
        report(request, what, model)


def test_timed_steps_train_and_put_the_mode_back() -> None:
    what = experiment()
    model = what.task.model()
    first_steps(what, model, "cpu")
    assert calls_of(what.task.seen) == {"loss": {TRAINS}}
    assert modes(model) == TRAINS
    evaluated = what.task.model().eval()
    first_steps(what, evaluated, "cpu")
    assert modes(evaluated) == EVALUATES


@dataclass(frozen=True)
class Evaluates(SyncSGD):
    """Synchronous SGD that evaluates after each step."""

    async def __call__(self, me: Learner) -> None:
        async for g in me.gradients(mean_over=me.group):
            me.descend(g)
            me.evaluate()


def test_held_out_figures_of_a_loop_are_without_dropout() -> None:
    model, seen = Frozen(), list[Modes]()

    def evaluate(probe: nn.Module) -> Mapping[str, float]:
        seen.append(modes(probe))
        probe.train()  # that a user forgets to undo
        return {"loss": 1.0}

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with murmur.join(Evaluates(), model, optimizer, plan=Plan(evaluate=evaluate)) as me:
        for _ in range(3):
            cross_entropy(model(torch.randn(4, 64)), torch.zeros(4, dtype=torch.long)).backward()
            me.step()
            assert modes(model) == TRAINS
    assert set(seen) == {EVALUATES}
    assert len(seen) == 3


@pytest.mark.parametrize(("context", "seen"), [(evaluating, EVALUATES), (in_training, (True,) * 5)])
def test_modes_are_put_back_after_an_exception(context: Any, seen: Modes) -> None:
    def fails(model: nn.Module, inside: Modes) -> None:
        with context(model):
            assert modes(model) == inside
            model.norm.train()
            raise RuntimeError("out of memory")

    for model, before in ((Frozen(), TRAINS), (Frozen().eval(), EVALUATES)):
        with pytest.raises(RuntimeError, match="out of memory"):
            fails(model, before if context is in_training and model.training else seen)
        assert modes(model) == before


def test_classes_that_act_on_a_change_of_mode_are_told_of_it() -> None:
    class Merges(nn.Linear):
        merged = False

        def train(self, mode: bool = True) -> Merges:
            self.merged = not mode
            return super().train(mode)

    model = nn.Sequential(Merges(2, 2))
    with evaluating(model):
        assert model[0].merged
    assert not model[0].merged
    assert into_training(model.eval())[0].merged is False


def test_only_contexts_set_the_mode_of_a_model() -> None:
    offenders = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                mode = [ast.unparse(word) for word in node.args]
                sets = node.func.attr == "eval" or (node.func.attr == "train" and mode in ([], ["True"], ["training"]))
                if sets and not node.keywords and str(path.relative_to(SOURCE)) not in SETS_A_MODE:
                    offenders.append(f"{path.name}:{node.lineno}")
    assert offenders == []
