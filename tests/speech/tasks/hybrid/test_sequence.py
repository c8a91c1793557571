"""Sequence training as a task: pure minibatches and pieces, containment, figures, the same network as the hybrid's."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")


from murmur.core.errors import SettingError
from murmur.engine.experiment import Experiment
from murmur.engine.stacked import NotStackable, check_stackable
from murmur.engine.task import Checkable, ContinuesTraining, DescribesModel, Divisible, Preparable, ResumableTest
from murmur.run.configuration import configure, resolved
from murmur.speech.features.augment import SpecAugment
from murmur.speech.features.chunks import Chunks
from murmur.speech.hmm.em_loop import EmConfig
from murmur.speech.models import Tdnn
from murmur.speech.sequence.denominator import PhoneNgrams
from murmur.speech.sequence.numerators import Aligned
from murmur.speech.tasks.graph_sources import Search
from murmur.speech.tasks.hybrid.config import (
    ChainMmi,
    CrossEntropy,
    Decoding,
    FrontEnd,
    HmmStages,
    Mmi,
    SequenceBatch,
    Smbr,
)
from murmur.speech.tasks.hybrid.task import HybridTask
from murmur.speech.tasks.recogniser import Recognises
from murmur.strategies import SyncSGD
from tests.support.plateaus import make_set

SMALL = EmConfig(gaussians=40, passes=6, grow_passes=4, align_passes=(2, 3, 4, 5, 6))


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> HybridTask:
    root = make_set(tmp_path_factory.mktemp("set"), {"train": 24, "dev": 6, "test": 4})
    return HybridTask(
        corpus=root,
        hmm=HmmStages(monophone=SMALL, triphone=None),
        network=Tdnn(hidden=16, contexts=((-1, 0, 1), (0,)), dropout=0.0),
        criterion=Mmi(),
        chunks=Chunks(frames=30, left_frames=2, right_frames=2, size=6),
        augment=SpecAugment(time_frames=3, time_masks=1, bin_masks=0),
        decoding=Decoding(network=Search(scales=(0.3, 1.0)), scored="none"),
        cache=root / "cache",
    )


def same(one: SequenceBatch, other: SequenceBatch) -> bool:
    mine, theirs = vars(one.numerators), vars(other.numerators)
    return (
        torch.equal(one.chunks.feats, other.chunks.feats)
        and torch.equal(one.chunks.targets, other.chunks.targets)
        and torch.equal(one.lengths, other.lengths)
        and all(torch.equal(mine[name], theirs[name]) for name in mine)
    )


def trained(task: HybridTask, model: torch.nn.Module, minibatches: int, lr: float) -> torch.nn.Module:
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for n in range(minibatches):
        loss = task.loss(model, task.minibatch(n))
        optimizer.zero_grad()
        (loss.total / loss.samples).backward()
        optimizer.step()
    return model


def fresh(task: HybridTask) -> torch.nn.Module:
    torch.manual_seed(0)
    return task.model()


def test_the_task_offers_what_the_hybrid_task_offers_except_stacking(task: HybridTask) -> None:
    for protocol in (Checkable, DescribesModel, Divisible, Preparable, ResumableTest, Recognises):
        assert isinstance(task, protocol)
    with pytest.raises(NotStackable, match="Mmi"):
        check_stackable(Experiment(task, SyncSGD()))
    check_stackable(Experiment(replace(task, criterion=CrossEntropy()), SyncSGD()))


def test_a_minibatch_is_a_pure_function_of_its_number(task: HybridTask) -> None:
    again = pickle.loads(pickle.dumps(task))  # carries no data, reads the cache again
    assert len(pickle.dumps(task)) < 5000
    for n in (1, 0, task.per_epoch):
        assert same(task.minibatch(n), again.minibatch(n))
    assert not same(task.minibatch(0), task.minibatch(1))
    assert same(task.minibatch(0), task.piece(0, 0, 1))


def test_pieces_hold_each_chunk_once_and_their_losses_add_up(task: HybridTask) -> None:
    quiet = replace(task, augment=SpecAugment(time_masks=0, bin_masks=0))
    model = fresh(quiet)
    whole = quiet.loss(model, quiet.minibatch(0))
    for of in (2, 4, 8):
        pieces = [piece for number in range(of) if (piece := quiet.piece(0, number, of)) is not None]
        assert len(pieces) == min(of, quiet.most_pieces)
        losses = [quiet.loss(model, piece) for piece in pieces]
        assert sum(loss.samples for loss in losses) == whole.samples
        total = sum(float(loss.total.detach()) for loss in losses)
        assert total == pytest.approx(float(whole.total.detach()), rel=1e-4)


def test_an_epoch_trains_every_frame_once(task: HybridTask) -> None:
    batches = [task.minibatch(n) for n in range(task.per_epoch)]
    assert sum(batch.chunks.frames for batch in batches) == task.samples_per_epoch
    assert all(batch.chunks.frames == int(batch.lengths.sum()) for batch in batches)


def test_numerators_of_train_are_part_of_the_denominator(task: HybridTask) -> None:
    data = task.learning.data
    assert all((phones.arcs > 0).all() for phones in data.train_phones)
    assert [int(phones.starts[-1]) for phones in data.train_phones] == data.train_lengths.tolist()
    model = fresh(task)
    for seed in range(3):
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(seed)))
            objective, entropy, _ = task.learning.totals(model, task.minibatch(seed))
            loss = task.loss(model, task.minibatch(seed))
        assert float(loss.total) == pytest.approx(float(0.1 * entropy - objective), rel=1e-5)
        assert float(objective) < 0 < float(entropy)


def test_numerators_follow_the_alignment_in_place(task: HybridTask) -> None:
    """Without tolerance and with scores that allow only the aligned pdfs, all mass is on them."""
    exact = replace(task, criterion=Mmi(tolerance_frames=0, acoustic_scale=1.0))
    batch = exact.minibatch(0)
    first, width = task.chunks.left_frames, int(batch.lengths.max())
    targets_NT = batch.chunks.targets[:, first : first + width].clamp(min=0)
    from murmur.speech.sequence.log_domain import occupancies

    scores = torch.full((len(targets_NT), width, task.targets.pdfs), -15.0)
    scores.scatter_(2, targets_NT[..., None], 0.0)
    _, gamma = occupancies(scores, batch.lengths, batch.numerators)
    found = gamma.gather(2, targets_NT[..., None])[..., 0]
    own = torch.arange(width) < batch.lengths[:, None]
    assert float(found[own].min()) > 0.99


@pytest.mark.parametrize(
    "criterion", [Mmi(acoustic_scale=0.5, cross_entropy=0.3), Smbr(acoustic_scale=0.5, cross_entropy=0.3)]
)
def test_the_gradient_of_the_network_is_that_of_the_criterion(task: HybridTask, criterion: Mmi | Smbr) -> None:
    model, exact = fresh(task).double(), replace(task, criterion=criterion)
    batch = exact.minibatch(0)
    loud = replace(batch, chunks=replace(batch.chunks, feats=batch.chunks.feats.double()))
    exact.loss(model, loud).total.backward()
    weight = model.output.bias
    step, (row,) = 1e-3, torch.argmax(weight.grad.abs(), keepdim=True).tolist()
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            weight[row] += sign * step
            values.append(float(exact.loss(model, loud).total))
            weight[row] -= sign * step
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(float(weight.grad[row]), rel=0.02)


def test_fine_tuning_raises_the_held_out_objective_of_a_network_that_cross_entropy_has_trained(
    task: HybridTask,
) -> None:
    first = replace(task, criterion=CrossEntropy())
    model = trained(first, fresh(first), 2 * task.per_epoch, 1e-2)
    before = task.evaluate(model)
    assert before["objective"] < 0 < before["frame accuracy"] < 1
    assert before["loss"] == pytest.approx(0.1 * before["cross-entropy"] - before["objective"])
    after = task.evaluate(trained(task, model, 3 * task.per_epoch, 3e-3))
    assert after["objective"] > 0.95 * before["objective"]
    assert after["frame accuracy"] > 0.6
    score = task.test(model)
    assert score.figures["network dev wer"] <= 10
    assert set(score.figures) == set(first.test(model).figures)


def test_smbr_raises_the_expected_accuracy(task: HybridTask) -> None:
    risk = replace(task, criterion=Smbr(acoustic_scale=1.0))
    model = fresh(task)
    before = risk.evaluate(model)
    after = risk.evaluate(trained(risk, model, task.per_epoch, 1e-2))
    assert risk.minibatch(0).numerators is None
    assert 0 < before["objective"] < before["objective"] + 0.1 < after["objective"] < 1
    assert after["loss"] == pytest.approx(0.1 * after["cross-entropy"] - after["objective"])


def test_settings_that_numerators_do_not_know_are_refused(task: HybridTask, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="stored speeds"):
        replace(task, front=FrontEnd(speeds=(0.9, 1.0), perturb="on_the_fly")).check()
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(SettingError, match="Gaussian alignments"):
        replace(task, realigned_by=tmp_path / "model").check()
    for wrong in ({"acoustic_scale": 0.0}, {"leak": 0.0}, {"cross_entropy": -1.0}, {"leak": math.inf}):
        with pytest.raises(ValueError, match="must be positive"):
            Mmi(**wrong)
    with pytest.raises(ValueError, match="tolerance of -1"):
        Mmi(tolerance_frames=-1)
    with pytest.raises(SettingError, match=r"^task\.front\.input\.fmllr=True: .*'hmm\.sat="):
        configure(replace(resolved("an4_mmi"), task=task), ["task.front.input.fmllr=True"])
    with pytest.raises(SettingError, match=r"^task\.supervised\.front\.input\.fmllr=True: front.*'hmm\.sat="):
        configure(resolved("pretrain"), ["task.supervised.front.input.fmllr=True"])


def test_utterances_without_room_for_their_phones_are_left_out_and_named(
    task: HybridTask, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Copies at a higher speed can lose the room; here every third utterance has phones of one frame."""
    every = task.data.train
    crushed = [i for i in range(len(every)) if i % 3 == 1]
    lengths = [int(every.lengths[i]) for i in crushed]

    def stretched(self: Aligned, frames: int) -> Aligned:
        starts = np.arange(len(self.starts)) if frames in lengths else self.starts
        return Aligned(self.places, self.arcs, np.append(starts[:-1], frames).astype(np.int32))

    monkeypatch.setattr(Aligned, "stretched", stretched)
    exact = replace(task, criterion=Mmi(tolerance_frames=0))
    data = exact.learning.data
    (lost,) = (record.getMessage() for record in caplog.records if "left out" in record.getMessage())
    kept = [i for i, length in enumerate(every.lengths.tolist()) if length not in lengths]
    assert f"train: {24 - len(kept)} of 24 utterances are left out: {every.names[crushed[0]]}" in lost
    assert 0 < len(kept) < 24
    assert data.train_lengths.tolist() == [int(every.lengths[i]) for i in kept]
    for own, i in enumerate(kept):
        length = int(every.lengths[i])
        assert np.array_equal(data.train.targets(own, 0, length), every.targets(i, 0, length))
        assert int(data.train_phones[own].starts[-1]) == length
    assert sum(exact.minibatch(n).chunks.frames for n in range(exact.per_epoch)) == exact.samples_per_epoch
    assert exact.samples_per_epoch == data.train_lengths.sum()
    assert replace(task, criterion=Smbr()).samples_per_epoch == every.lengths.sum()  # it has no numerators
    lengths[:] = every.lengths.tolist()
    with pytest.raises(ValueError, match="no utterance of train has room"):
        _ = replace(task, criterion=Mmi(tolerance_frames=0)).learning.data


@pytest.mark.parametrize("recipe", ["an4", "an4_mmi"])
def test_a_criterion_tells_if_it_continues_another_ones_training(recipe: str) -> None:
    """A run without initial weights warns then."""
    for criterion in (Mmi(), Smbr(), CrossEntropy(), ChainMmi()):
        task = replace(resolved(recipe).task, criterion=criterion)
        assert isinstance(task, ContinuesTraining)
        assert task.continues == ("the same network trained by cross-entropy" if criterion in (Mmi(), Smbr()) else None)


@pytest.mark.parametrize("kind", [CrossEntropy, Mmi, Smbr, ChainMmi])
def test_a_criterion_of_ones_own_is_trained_like_the_one_that_it_extends(kind: type) -> None:
    @dataclass(frozen=True)
    class Own(kind):  # type: ignore[misc]
        factor: float = field(default=1.0, kw_only=True)

    assert type(HybridTask(criterion=Own()).learning) is type(HybridTask(criterion=kind()).learning)


def test_another_criterion_is_named() -> None:
    with pytest.raises(ValueError, match=r"^task\.criterion = namespace\(a=1\): not one of CrossEntropy, Lat"):
        _ = HybridTask(criterion=SimpleNamespace(a=1)).learning  # type: ignore[arg-type]


def test_the_recipe_starts_from_the_network_of_an4_and_its_settings_have_names() -> None:
    tuned, first = resolved("an4_mmi"), resolved("an4")
    assert replace(tuned.task, chunks=first.task.chunks, criterion=CrossEntropy()) == first.task
    assert tuned.initial is None
    assert tuned.strategy == first.strategy
    changed = configure(tuned, ["task.criterion=Smbr(acoustic_scale=0.3)", "task.corpus=elsewhere"])
    assert changed.task.criterion == Smbr(acoustic_scale=0.3)
    assert changed.task.corpus == Path("elsewhere")
    wider = configure(tuned, ["task.criterion.tolerance_frames=8", "task.criterion.ngrams.order=3"])
    assert wider.task.criterion == Mmi(tolerance_frames=8, ngrams=PhoneNgrams(order=3))
