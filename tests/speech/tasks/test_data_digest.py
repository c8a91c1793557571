"""The digest of a task's data: of utterances, texts and lengths; not of folders, dates or settings of training."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")


from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.task import IdentifiesData, data_of
from murmur.engine.trainer import Trainer
from murmur.speech.features.augment import SpecAugment
from murmur.speech.features.chunks import Chunks
from murmur.speech.hmm.em_loop import EmConfig
from murmur.speech.models import Blstm, Dnn, Tdnn
from murmur.speech.tasks.ctc import CtcTask
from murmur.speech.tasks.hybrid.config import ChainMmi, HmmStages, Mmi
from murmur.speech.tasks.hybrid.pretrain import PretrainTask
from murmur.speech.tasks.hybrid.task import HybridTask
from murmur.speech.tasks.language_model import LanguageModelTask
from murmur.speech.tasks.prepared import digest_of
from murmur.strategies import SyncSGD
from murmur.worlds.virtual.world import VirtualWorld
from murmur_papers.tasks.random_frames import FrameTask
from tests.support.plateaus import make_set
from tests.support.unscaled import Experiment

SMALL = EmConfig(gaussians=20, passes=3, grow_passes=2, align_passes=(2, 3))


def hybrid(root: Path) -> HybridTask:
    return HybridTask(
        corpus=root,
        hmm=HmmStages(monophone=SMALL, triphone=None),
        network=Tdnn(hidden=8, dropout=0.0),
        chunks=Chunks(frames=20, size=8),
        augment=SpecAugment(bin_masks=0),
        cache=root / "cache",
    )


def chain(root: Path) -> HybridTask:
    network = Tdnn(8, ((-1, 0, 1), (0,)), dropout=0.0, stack=3)
    return replace(hybrid(root), network=network, criterion=ChainMmi())


def ctc(root: Path) -> CtcTask:
    return CtcTask(corpus=root, units="word", network=Blstm(8, 1, 0.1, 3), minibatch_size=4, cache=root / "cache")


def language_model(root: Path) -> LanguageModelTask:
    return LanguageModelTask(corpus=root, min_count=1, minibatch_size=4)


TASKS = [hybrid, chain, ctc, language_model]
Make = Callable[[Path], Any]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_set(tmp_path / "set", {"train": 24, "dev": 6, "test": 4})


def copied(root: Path, name: str) -> Path:
    """A copy in another folder, with other dates and without the cache."""
    copy = shutil.copytree(root, root.parent / "elsewhere" / name, ignore=shutil.ignore_patterns("cache"))
    for path in copy.rglob("*"):
        os.utime(path, (1e9, 1e9))
    return copy


def other_text(folder: Path) -> None:
    """Give one utterance another word, which sounds alike, so that it can still be aligned."""
    text = (folder / "text").read_text()
    (folder / "text").write_text(text.replace("BOB", "NOB", 1))


def one_less(folder: Path) -> None:
    for file in ("text", "utt2spk", "feats.scp"):
        lines = (folder / file).read_text().splitlines()
        (folder / file).write_text("".join(f"{line}\n" for line in lines[:-1]))


@pytest.mark.parametrize("make", TASKS)
def test_it_follows_the_data_and_nothing_else(make: Make, root: Path) -> None:
    task = make(root)
    assert isinstance(task, IdentifiesData)
    digest = task.data_digest
    assert len(digest) >= 16
    assert pickle.loads(pickle.dumps(task)).data_digest == digest  # of another learner
    assert make(copied(root, "moved")).data_digest == digest
    found = {digest}
    for part in ("train", "dev"):
        for number, change in enumerate((other_text, one_less)):
            copy = copied(root, f"{part}{number}")
            change(copy / "data" / part)
            found.add(make(copy).data_digest)
    assert len(found) == 5


def test_tasks_on_a_hybrid_task_have_its_data(root: Path) -> None:
    task = hybrid(root)
    digest = task.data_digest
    assert replace(task, criterion=Mmi()).data_digest == digest
    of_frames = replace(task, network=Dnn(hidden=8, layers=1))
    assert FrameTask(of_frames).data_digest == PretrainTask(of_frames).data_digest == digest


def test_rows_do_not_run_together() -> None:
    """An utterance that moves from train to dev is a change too, and names may hold anything."""
    rows = [("a", "b"), ("c", "\udcff")]
    assert (
        len({digest_of(rows, []), digest_of([], rows), digest_of([("a",), ("b", "c", "\udcff")], []), digest_of()}) == 4
    )


def test_a_moved_corpus_is_resumed_in_silence_and_a_changed_one_is_told(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def run(corpus: Path, minibatches: int, resume: bool) -> None:
        made = Experiment(ctc(corpus), SyncSGD(), Budget(minibatches=minibatches), SGD(0.01))
        Trainer(made, VirtualWorld(2), tmp_path / "run", resume=resume).fit()

    run(root, 6, resume=False)
    caplog.clear()
    run(root, 12, resume=True)
    moved = copied(root, "moved")
    run(moved, 18, resume=True)
    assert "other data" not in caplog.text
    one_less(moved / "data" / "train")
    frames = ctc(root).samples_per_epoch, ctc(moved).samples_per_epoch
    run(moved, 24, resume=True)
    assert "it was made on other data ({:,.0f} samples an epoch then, {:,.0f} now)".format(*frames) in caplog.text
    assert data_of(ctc(moved))["minibatches"] == 6
