"""A task of declared size: generated frames, joined frames, criteria, prepared corpora, scales."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from murmur.core.errors import SettingError
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import Adam
from murmur.engine.trainer import Trainer
from murmur.speech.features.chunks import IGNORED, AlignedFrames, Chunks
from murmur.speech.features.shards import make
from murmur.speech.models import Blstm, Dnn, Lstm, Tdnn
from murmur.strategies import KAVG
from murmur.tasks.generated_frames import GeneratedFrames
from murmur.worlds.threads import ThreadWorld
from murmur_papers.tasks.declared import CrossEntropy, Ctc, DeclaredTask

SMALL = DeclaredTask(
    hours=0.02, inputs=3, classes=6, network=Dnn(12, 2, context=0), chunks=Chunks(10, 0, 0, size=4), joined=2
)


def test_generated_frames_are_their_classes_means_with_noise():
    frames = GeneratedFrames(50, 203, dims=4, classes=7, noise=0.25, seed=3)
    feats, classes = [], []
    for u in range(frames.count):
        out = np.empty((203, 4), np.float32)
        frames.read(u, 0, out)
        feats.append(out)
        classes.append(frames.targets(u, 0, 203))
        part = np.empty((30, 4), np.float32)
        frames.read(u, -5, part)
        assert (part[5:] == out[:25]).all()
        assert (part[:5] == out[0]).all()
        assert (frames.targets(u, 40, 60) == classes[-1][40:60]).all()
    assert not (feats[0] == feats[1]).any()
    x, y = np.concatenate(feats), np.concatenate(classes)
    for c in range(7):
        share = np.log((c + 2) / (c + 1)) / np.log(8)
        assert abs((y == c).mean() - share) < 0.05
        assert abs(x[y == c].std(0) - 0.25).max() < 0.03
    assert (np.diff(classes[0].reshape(-1)[:200].reshape(-1, 5), axis=1) == 0).all()


def test_two_corpora_with_other_numbers_share_means_and_no_frame():
    train, dev = replace(SMALL, seed=1).stores
    assert (train._means == dev._means).all()
    held = np.empty((10, 3), np.float32)
    dev.read(0, 0, held)
    for u in range(train.count):
        read = np.empty((200, 3), np.float32)
        train.read(u, 0, read)
        assert not np.isin(read, held).any()


def test_a_pass_has_the_declared_frames_and_each_once():
    assert SMALL.samples_per_epoch == 7200
    assert SMALL.per_epoch == 180
    assert sum(SMALL.minibatch(n).frames for n in range(SMALL.per_epoch)) == 7200
    seen = Counter(tuple(row.flatten().tolist()) for n in range(SMALL.per_epoch) for row in SMALL.minibatch(n).feats)
    assert set(seen.values()) == {1}


def test_joined_frames_are_neighbours_in_order():
    apart = replace(SMALL, joined=0, chunks=Chunks(10, 2, 2, size=4))
    joined, whole = SMALL.minibatch(5), apart.minibatch(5)
    assert joined.feats.shape == (4, 10, 15)
    for t in range(10):
        assert torch.equal(joined.feats[:, t], whole.feats[:, t : t + 5].flatten(1))
    assert torch.equal(joined.targets, whole.targets[:, 2:-2])


def test_joined_frames_give_a_network_with_context_its_inputs():
    """The network on joined frames equals one that splices its own context, with the same weights."""
    own = Dnn(12, 2, context=2).build(3, 6)
    given = SMALL.model()
    given.load_state_dict(own.state_dict())
    whole = replace(SMALL, joined=0, chunks=Chunks(10, 2, 2, size=4)).minibatch(3)
    assert torch.allclose(own(whole.feats)[:, 2:-2], given(SMALL.minibatch(3).feats), atol=1e-6)


def test_cross_entropy_leaves_context_out():
    logits, targets = torch.randn(2, 5, 3), torch.tensor([[IGNORED, 1, 2, 0, IGNORED], [IGNORED, 2, 2, IGNORED, 0]])
    own = targets != IGNORED
    expected = -logits.log_softmax(-1)[own].gather(1, targets[own][:, None]).sum()
    assert torch.allclose(CrossEntropy().total(logits, targets), expected)


def alignments(frames: int, labels: tuple[int, ...]):
    """All paths of columns over the frames that collapse to the labels; column 0 is the blank."""
    for path in np.ndindex(*[1 + max(labels)] * frames):
        merged = [c for c, before in zip(path, (-1, *path), strict=False) if c != before]
        if tuple(c for c in merged if c) == labels:
            yield path


def test_ctc_sums_over_all_paths_of_the_order_of_classes():
    torch.manual_seed(0)
    logits = torch.randn(2, 6, 4, dtype=torch.float64)
    targets = torch.tensor([[IGNORED, 2, 2, 0, 0, 0], [IGNORED, 1, 1, 1, 1, IGNORED]])
    total = 0.0
    for n, labels in ((0, (3, 1)), (1, (2,))):
        own = logits[n, 1 : 1 + int((targets[n] != IGNORED).sum())].log_softmax(-1)
        paths = [sum(own[t, c] for t, c in enumerate(path)) for path in alignments(len(own), labels)]
        total -= float(torch.logsumexp(torch.stack(paths), 0))
    assert float(Ctc().total(logits, targets)) == pytest.approx(total)
    assert (Ctc().columns(5), CrossEntropy().columns(5)) == (6, 5)


@pytest.mark.parametrize("criterion", [CrossEntropy(), Ctc()], ids=["frames", "ctc"])
def test_training_on_generated_frames_holds_on_others(criterion):
    task = replace(SMALL, criterion=criterion, network=Lstm(16, 1), joined=0, chunks=Chunks(20, 5, 0, size=6))
    before = task.evaluate(task.model())["loss"]
    run = Experiment(task, KAVG(4), Budget(epochs=5), Adam(lr=1e-2), averaged_checkpoints=0)
    outcome = Trainer(run, ThreadWorld(1)).fit()
    assert outcome.figures["loss"] < 0.7 * before
    assert task.test(outcome.model).figures["logprob"] == -outcome.figures["loss"]


@dataclass(frozen=True)
class Drawn:
    """Utterances of four classes with five values a frame."""

    count: int

    def utterances(self):
        rng = np.random.default_rng(self.count)
        for n in range(self.count):
            classes = np.repeat(rng.permutation(4), 6)
            yield AlignedFrames(f"u{n}", rng.standard_normal((24, 5)).astype(np.float32), classes)


def test_a_prepared_corpus_replaces_what_is_declared(tmp_path):
    for name, count in (("train", 9), ("dev", 3)):
        make(tmp_path / name, (Drawn(count),), "float32")
    task = replace(SMALL, data=tmp_path / "train", dev=tmp_path / "dev")
    task.check()
    assert task.samples_per_epoch == 9 * 24
    assert sum(task.minibatch(n).frames for n in range(task.per_epoch)) == 9 * 24
    assert task.model()(task.minibatch(0).feats).shape == (4, 8, 4)  # chunks of 8 frames, four classes
    assert task.minibatch(0).feats.shape == (4, 8, 25)
    assert task.evaluate(task.model())["loss"] > 0
    with pytest.raises(SettingError, match=r"task.data: there is no folder .*nowhere"):
        replace(task, data=tmp_path / "nowhere").check()
    with pytest.raises(ValueError, match="give both or none"):
        replace(SMALL, data=tmp_path / "train")


def test_sizes_of_a_scale():
    whole = DeclaredTask(
        hours=40.0,
        classes=1000,
        network=Blstm(hidden=100, layers=3, projection=50, bottleneck=20),
        chunks=Chunks(size=64),
    )
    part = whole.at(0.1)
    assert part.network == Blstm(hidden=10, layers=3, projection=8, bottleneck=8)
    assert (part.classes, part.chunks, part.inputs) == (100, Chunks(size=6), whole.inputs)
    assert part.hours == pytest.approx(0.4)
    assert whole.at(1.0) == whole
    assert whole.at(1e-3).chunks.size == 1
    assert replace(whole, network=Tdnn(4)).at(0.5).network.hidden == 4  # already below the least width
    for scale in (0.0, 1.01, float("nan")):
        with pytest.raises(ValueError, match="above 0 and at most 1"):
            whole.at(scale)


def test_operations_of_a_gradient():
    task = replace(SMALL, chunks=Chunks(10, 3, 2, size=4))
    weights = sum(p.numel() for p in task.model().parameters())
    assert task.weights == weights
    assert task.gradient_flops == 6 * weights * 4 * 15
    assert task.message_bytes == 4 * weights


def test_impossible_sizes_are_refused():
    for wrong in ({"hours": 0.0}, {"classes": 0}, {"inputs": 0}, {"joined": -1}):
        with pytest.raises(ValueError, match="must be positive and finite"):
            replace(SMALL, **wrong)
    with pytest.raises(ValueError, match="every frame has a class"):
        replace(SMALL, network=Lstm(8, stack=3))
