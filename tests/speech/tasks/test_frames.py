"""Training on prepared corpora, from `murmur prepare` to frame accuracy; every frame is consumed once."""

import json
import shutil
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from murmur.cli import app
from murmur.engine.budget import Budget
from murmur.engine.trainer import Trainer
from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.corpus.kaldi_dir import write_table
from murmur.speech.features.augment import SpecAugment
from murmur.speech.features.chunks import AlignedFrames, Chunks
from murmur.speech.features.shards import make, open_store
from murmur.speech.models import Tdnn
from murmur.speech.recipes.frames import experiment
from murmur.speech.tasks.frames import FramesTask
from murmur.strategies import ADPSGD, KAVG
from murmur.tasks.toy import ToyTask
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, LognormalSeconds
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.speech_files import write_alignments
from tests.support.unscaled import Experiment

CLASSES, DIMS = 5, 6


@dataclass(frozen=True)
class Drawn:
    """Utterances of classes that show in the features, from a seed."""

    seed: int
    count: int

    def utterances(self):
        rng = np.random.default_rng(self.seed)
        shown = np.random.default_rng(1).standard_normal((CLASSES, DIMS))
        for n in range(self.count):
            classes = np.repeat(rng.integers(0, CLASSES, 8), 5)[: 30 + n % 9]
            feats = shown[classes] + 0.3 * rng.standard_normal((len(classes), DIMS))
            yield AlignedFrames(f"u{self.seed}-{n:03}", feats.astype(np.float32), classes)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    root = tmp_path_factory.mktemp("stores")
    make(root / "train", (Drawn(1, 20), Drawn(2, 20)), "uint8")
    make(root / "dev", (Drawn(3, 6),), "float16")
    chunks = Chunks(frames=10, left_frames=4, right_frames=4, size=4)
    network = Tdnn(16, ((-1, 0, 1),), dropout=0.0)
    plain = SpecAugment(time_masks=0, bin_masks=0)
    return FramesTask(root / "train", root / "dev", network=network, chunks=chunks, augment=plain)


def test_the_digest_of_the_data_is_that_of_both_corpora_wherever_they_lie(task, tmp_path):
    for part in ("train", "dev"):
        shutil.copytree(getattr(task, part), tmp_path / part)
    moved = FramesTask(tmp_path / "train", tmp_path / "dev")
    assert moved.data_digest == task.data_digest
    swapped = FramesTask(tmp_path / "dev", tmp_path / "train")
    make(tmp_path / "other", (Drawn(1, 20), Drawn(4, 20)), "uint8")
    other = FramesTask(tmp_path / "other", tmp_path / "dev")
    assert len({task.data_digest, swapped.data_digest, other.data_digest}) == 3


@pytest.mark.parametrize("made", ["task", "toy"])
@pytest.mark.parametrize("pieces", [2, 3, 5])
def test_pieces_of_a_minibatch_add_up_to_its_loss(made, pieces, request):
    task = ToyTask(samples=4) if made == "toy" else replace(request.getfixturevalue("task"), precision="float32")
    torch.manual_seed(0)
    model, minibatch = task.model().eval(), task.minibatch(1)
    cut = [task.piece(1, number, pieces) for number in range(pieces)]
    losses = [task.loss(model, piece) for piece in cut if piece is not None]
    assert len(losses) == min(pieces, 4)
    whole = task.loss(model, minibatch)
    assert sum(loss.samples for loss in losses) == whole.samples
    assert sum(float(loss.total) for loss in losses) == pytest.approx(float(whole.total), rel=1e-5)


def test_a_network_learns_what_the_frames_show(task):
    outcome = Trainer(replace(experiment(), task=task, budget=Budget(epochs=6)), ThreadWorld(1)).fit()
    assert task.outputs == CLASSES
    assert outcome.figures["frame accuracy"] > 0.95
    score = task.test(outcome.model)
    assert score.figures == outcome.figures
    assert "frame accuracy" in score.lines[0]
    with pytest.raises(ValueError, match="every frame has a target"):
        replace(task, augment=replace(task.augment, tempo=0.1))
    with pytest.raises(CorpusError, match="has no manifest"):
        replace(task, train=task.dev.parent).prepare()


@dataclass(frozen=True)
class Logged(FramesTask):
    """Records every frame of a computed gradient."""

    log: Counter = field(default_factory=Counter, repr=False)
    breaks_at: int | None = field(default=None, repr=False)

    def minibatch(self, n):
        batch = super().minibatch(n)
        return {"batch": batch, "n": n}

    def loss(self, model, minibatch):
        if minibatch["n"] == self.breaks_at:
            raise ArithmeticError("planted")
        found = super().loss(model, minibatch["batch"])
        frames = [(c.utterance, t) for c in self.order[minibatch["n"]] for t in range(c.first, c.last)]
        assert len(frames) == found.samples
        self.log.update((minibatch["n"] // self.per_epoch, *frame) for frame in frames)
        return found


def logged(task, **changes):
    return Logged(task.train, task.dev, network=task.network, chunks=replace(task.chunks, **changes))


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(
    "world",
    [VirtualWorld(1), VirtualWorld(Cluster(3, LognormalSeconds(0.1, 0.8))), VirtualWorld(7), ThreadWorld(2)],
    ids=["1", "3 uneven", "7", "2 threads"],
)
@pytest.mark.parametrize("strategy", [KAVG(3), ADPSGD()], ids=["KAVG", "ADPSGD"])
def test_every_frame_is_consumed_once_per_epoch_by_any_number_of_learners(task, world, strategy, parts):
    own = logged(task, parts=parts)
    Trainer(Experiment(own, strategy, Budget(epochs=2)), world).fit()
    lengths = own.stores[0].lengths
    assert set(own.log.values()) == {1}
    assert own.log.keys() == {(e, u, t) for e in range(2) for u, T in enumerate(lengths) for t in range(T)}


def test_every_frame_is_consumed_once_when_the_number_of_learners_changes(task, tmp_path):
    """Three learners train an epoch and are stopped in the next, then two, then four; checkpoints every half epoch."""
    own = logged(task)
    per_epoch = own.per_epoch
    half, stops = Experiment(own, KAVG(1), Budget(epochs=3), evaluate_every_epochs=0.5), []
    for learners, epochs in ((3, 1), (2, 2), (4, 3)):
        run = replace(half, budget=Budget(minibatches=epochs * per_epoch))
        stops.append(replace(run, task=replace(own, log=own.log)))
        Trainer(stops[-1], VirtualWorld(learners), tmp_path, resume=learners != 3).fit()
        assert set(own.log.values()) == {1}
        assert len(own.log) == epochs * own.samples_per_epoch


def test_prepared_from_kaldi_by_the_command(task, tmp_path):
    kio = pytest.importorskip("kaldi_native_io")
    for split in ("train", "dev"):
        root, store = tmp_path / "data" / split, open_store(getattr(task, split))
        root.mkdir(parents=True)
        with kio.FloatMatrixWriter(f"ark,scp:{root}/raw.ark,{root}/feats.scp") as writer:
            for number, name in enumerate(store.names):
                writer.write(name, store.feats(number))
        write_table(root / "text", dict.fromkeys(store.names, "A"))
        (root / "pdfs").mkdir()
        write_alignments(root / "pdfs" / "ali.1.gz", {n: store.targets(i) for i, n in enumerate(store.names)})
        words = ["prepare", root, "--alignments", root / "pdfs", "--storage", "uint8", "--cmvn", "none"]
        done = CliRunner().invoke(app, [*map(str, words), "--out", str(tmp_path / split)])
        assert done.exit_code == 0, done.output
        assert "0 skipped, uint8" in done.output
    folders = [next((tmp_path / split).glob("frames-*")) for split in ("train", "dev")]
    own = open_store(folders[0])
    for number in range(len(own)):
        original = task.stores[0]
        np.testing.assert_allclose(own.feats(number), original.feats(number), atol=0.02)
    settings = [f"task.train={folders[0]}", f"task.dev={folders[1]}", "task.chunks.size=4", "task.chunks.frames=10"]
    settings += ["budget.epochs=8", "task.network.hidden=16", "task.augment.bin_masks=0", "task.augment.time_masks=0"]
    words = ["train", "frames", "--out", str(tmp_path / "run"), "--threads", "1"]
    done = CliRunner().invoke(app, [*words, *(w for s in settings for w in ("--set", s))])
    assert done.exit_code == 0, done.output
    score = json.loads((Path(tmp_path) / "run" / "score.json").read_text())
    assert score["test"]["frame accuracy"] > 0.9
