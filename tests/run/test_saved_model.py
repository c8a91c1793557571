from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from murmur.core.errors import SettingError
from murmur.engine.budget import Budget
from murmur.engine.checkpoints.checkpoint import read_pair, write_pair
from murmur.engine.optim.optimizer import SGD
from murmur.engine.trainer import Trainer
from murmur.run.saved_model import InitialWeights, choose, find_model, read_into, told_choice
from murmur.strategies import SyncSGD
from murmur.tasks.toy import ToyTask
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.tasks import OddToy, weights_of
from tests.support.unscaled import Experiment

TOY = ToyTask(samples=8, hidden=16, per_epoch=40)
RUN = Experiment(TOY, SyncSGD(), Budget(minibatches=80), SGD(0.05), evaluate_every_epochs=0.5)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    Trainer(RUN, VirtualWorld(1), out).fit()
    return out


def test_training_starts_from_the_model(run: Path, tmp_path: Path) -> None:
    initial = InitialWeights(run / "model", "x")
    wanted = read_pair(run / "model")[0]["weights"]
    for learners in (1, 2):
        experiment = replace(RUN, initial=initial, budget=Budget(minibatches=0))
        started = Trainer(experiment, VirtualWorld(learners), tmp_path).fit()
        assert torch.equal(weights_of(started.model), wanted)
    digests = [replace(RUN, initial=each).digest() for each in (None, initial, replace(initial, content="y"))]
    assert len(set(digests)) == 3


def test_what_does_not_fit_is_named(run: Path) -> None:
    with pytest.raises(SettingError, match=r"tensor '0.weight' has shape \(16, 64\), the model's has \(17, 64\)"):
        read_into(replace(TOY, hidden=17).model(), run / "model")
    with pytest.raises(SettingError, match=r"has no tensor 'inner.weight', which the model needs"):
        read_into(OddToy(hidden=16).model(), run / "model")
    with pytest.raises(SettingError, match=r"holds tensor '3.weight', which the model does not have"):
        read_into(nn.Sequential(nn.Linear(64, 16)), run / "model")


def test_files_of_others(run: Path, tmp_path: Path) -> None:
    theirs = TOY.model()
    file = tmp_path / "theirs.safetensors"
    save_file(theirs.state_dict(), file)
    mine = TOY.model()
    assert read_into(mine, find_model(file)) == {}
    assert torch.equal(weights_of(mine), weights_of(theirs))
    save_file({n: t for n, t in theirs.state_dict().items() if n != "3.bias"}, file)
    with pytest.raises(SettingError, match=r"has no tensor '3.bias'.*did you mean '0.bias'"):
        read_into(mine, find_model(file))
    file.write_bytes(b"what?")
    with pytest.raises(SettingError, match="cannot be read"):
        read_into(mine, find_model(file))


def test_a_model_without_names_is_checked_by_size(run: Path, tmp_path: Path) -> None:
    tensors, facts = read_pair(run / "model")
    write_pair(tmp_path / "old", tensors, {k: v for k, v in facts.items() if k not in ("tensors", "digest")})
    read_into(TOY.model(), tmp_path / "old")
    with pytest.raises(SettingError, match="it is of another experiment"):
        read_into(replace(TOY, hidden=8).model(), tmp_path / "old")


def test_which_model_of_a_run(run: Path, tmp_path: Path) -> None:
    assert find_model(run) == choose(run, "lowest", RUN.digest())[1]  # not tested yet
    assert find_model(run, "last") == run / "model"
    assert find_model(run, "averaged") == run / "averaged"
    with pytest.raises(SettingError, match="--weights last chooses among the models of a run's folder"):
        find_model(run / "best.safetensors", "last")
    assert find_model(run / "averaged") == find_model(run / "averaged.safetensors") == run / "averaged"
    with pytest.raises(SettingError, match=r"neither a .safetensors file nor a run's folder"):
        find_model(tmp_path)
    facts = {n: json.loads((run / f"{n}.json").read_text()) for n in ("model", "best", "averaged")}
    for lowest in facts:
        for name, each in facts.items():
            tensors = read_pair(run / name)[0]
            figures = {"loss": 0.5 if name == lowest else 1.0}
            write_pair(tmp_path / name, tensors, {**each, "figures": figures})
        assert choose(tmp_path, "lowest", RUN.digest())[1] == tmp_path / lowest
    assert choose(tmp_path, "best", RUN.digest()) == ("best", tmp_path / "best")
    with pytest.raises(SettingError, match="no averaged model"):
        choose(tmp_path, "averaged", "the digest of another experiment")
    (tmp_path / "score.json").write_text('{"model": {"name": "averaged"}}')
    assert find_model(tmp_path) == tmp_path / "averaged"
    assert find_model(tmp_path, "lowest") == tmp_path / lowest
    figures = {"figures": {"loss": 0.5}}
    assert told_choice(tmp_path / "averaged", None, figures) == "weights: averaged (the tested ones, held-out loss 0.5)"
    assert told_choice(run / "best", "lowest", figures) == "weights: best (lowest held-out loss 0.5)"
    assert told_choice(run / "model", "last", figures) == "weights: last (--weights, held-out loss 0.5)"
    assert told_choice(Path("stranger"), None, {}) == "weights: stranger"


def test_a_named_file_is_told_as_such(run: Path, tmp_path: Path) -> None:
    for name, loss in (("model", 0.5), ("best", 1.0), ("averaged", 0.7)):
        tensors, facts = read_pair(run / name)
        write_pair(tmp_path / name, tensors, {**facts, "figures": {"loss": loss}})
    other = {"figures": {"loss": 0.7}}
    averaged = find_model(tmp_path / "averaged.safetensors")
    assert told_choice(averaged, None, other) == "weights: averaged (named, held-out loss 0.7)"  # without score.json
    lowest = find_model(tmp_path / "model.safetensors")
    assert told_choice(lowest, None, {"figures": {"loss": 0.5}}) == "weights: last (lowest held-out loss 0.5)"
    (tmp_path / "score.json").write_text('{"model": {"name": "last"}}')
    assert told_choice(averaged, None, other) == "weights: averaged (named, held-out loss 0.7)"
    assert told_choice(lowest, None, {"figures": {"loss": 0.5}}) == "weights: last (the tested ones, held-out loss 0.5)"
    (tmp_path / "score.json").write_text("{")
    assert told_choice(averaged, None, other) == "weights: averaged (named, held-out loss 0.7)"
