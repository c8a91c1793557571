"""The CTC task: pure minibatches, losses that add up, learning, and no leak from transcripts to figures."""

import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.corpus.digits import Digits
from murmur.speech.corpus.kaldi_dir import write_table
from murmur.speech.features.augment import SpecAugment
from murmur.speech.models import Blstm
from murmur.speech.tasks.corpora import splits
from murmur.speech.tasks.ctc import CtcTask
from murmur.speech.tasks.ctc_data import SplitData

pytest.importorskip("espeakng_loader", reason="the extra synth is not installed")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return CtcTask(digits=Digits(train=30, dev=6, test=6), network=Blstm(16, 1, 0.1, 3), minibatch_size=4, cache=cache)


def make_feature_set(root: Path, splits: Mapping[str, int], *, speakers: int = 4) -> Path:
    """Three words, each a distinct pattern of 12 frames in 13 values."""
    rng, feats = np.random.default_rng(0), {}
    patterns = rng.standard_normal((3, 12, 13)).astype(np.float32)
    for split, count in splits.items():
        words = {f"{split}{i:03}": rng.integers(3, size=1 + i % 3) for i in range(count)}
        for name, said in words.items():
            feats[name] = np.concatenate([patterns[w] for w in said]) + 0.1 * rng.standard_normal((12 * len(said), 13))
        folder = root / "data" / split
        write_table(folder / "text", {n: " ".join(["AN", "BO", "CI"][w] for w in said) for n, said in words.items()})
        write_table(folder / "utt2spk", {n: f"{split}-s{i % speakers}" for i, n in enumerate(words)})
        write_table(folder / "feats.scp", {n: f"feats.npz:{n}" for n in words})
    np.savez(root / "feats.npz", **feats)
    return root


def train(task: CtcTask, epochs: int, rate: float = 3e-3) -> torch.nn.Module:
    torch.manual_seed(0)
    model = task.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    for n in range(epochs * task.per_epoch):
        loss = task.loss(model, task.minibatch(n))
        optimizer.zero_grad()
        (loss.total / loss.samples).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    return model


@pytest.mark.parametrize("pieces", [2, 3, 5])
def test_pieces_of_a_minibatch_add_up_to_its_loss(task, pieces):
    task = replace(task, augment=SpecAugment(time_masks=0, bin_masks=0))
    torch.manual_seed(0)
    model, minibatch = task.model().eval(), task.minibatch(1)
    cut = [task.piece(1, number, pieces) for number in range(pieces)]
    losses = [task.loss(model, piece) for piece in cut if piece is not None]
    assert len(losses) == min(pieces, len(minibatch.names))
    whole = task.loss(model, minibatch)
    assert sum(loss.samples for loss in losses) == whole.samples
    assert sum(float(loss.total) for loss in losses) == pytest.approx(float(whole.total), rel=1e-5)


def test_a_minibatch_is_a_pure_function_of_its_number(task):
    fresh = pickle.loads(pickle.dumps(task))  # carries no data, reads the cache again
    for n in (3, 0, 3, task.per_epoch):
        mine, theirs = task.minibatch(n), fresh.minibatch(n)
        assert mine.names == theirs.names
        assert mine.targets == theirs.targets
        assert torch.equal(mine.feats, theirs.feats)
    assert len(pickle.dumps(task)) < 2000


def test_an_epoch_covers_every_training_utterance_once(task):
    for epoch in range(2):
        numbers = range(epoch * task.per_epoch, (epoch + 1) * task.per_epoch)
        assert sorted(name for n in numbers for name in task.minibatch(n).names) == sorted(task.data.train.names)


def test_the_loss_is_a_sum_over_utterances(task):
    plain = replace(task, augment=SpecAugment(time_masks=0, bin_masks=0))
    model = plain.model().eval()
    batch = plain.minibatch(1)
    single = replace(plain, minibatch_size=1)
    numbers = [n for n in range(single.per_epoch) if single.minibatch(n).names[0] in batch.names]
    with torch.no_grad():
        together = plain.loss(model, batch)
        apart = [single.loss(model, single.minibatch(n)) for n in numbers]
    assert together.samples == sum(loss.samples for loss in apart) == batch.frames
    assert len(apart) == 4
    assert float(together.total) == pytest.approx(sum(float(loss.total) for loss in apart), rel=1e-4)


def test_figures_and_lines(task):
    model = task.model().train()
    figures, score = task.evaluate(model), task.test(model)
    assert model.training
    assert set(figures) == {"loss", "logprob", "wer", "cer"}
    assert figures["logprob"] == -figures["loss"] < 0
    assert score.lines[0].startswith("%WER")
    assert score.lines[1].startswith("%CER")
    assert set(score.figures) == {"wer", "cer", "low", "high"}
    assert score.figures["low"] <= score.figures["wer"] <= score.figures["high"]
    assert len(score.recognised) == 6


@pytest.mark.parametrize(("units", "columns"), [("word", 4), ("char", 8), ("grapheme", 7)])
def test_a_folder_of_features_is_learnt(tmp_path, units, columns):
    root = make_feature_set(tmp_path, {"train": 60, "dev": 12, "test": 12})
    easy = CtcTask(corpus=root, units=units, network=Blstm(32, 1, 0.1, 2), minibatch_size=4, cache=tmp_path / "cache")
    assert easy.data.units.columns == columns
    model = train(easy, 8, rate=2e-2)
    assert easy.test(model).figures["wer"] <= 10
    assert easy.evaluate(model)["loss"] < 0.1


def test_a_set_without_dev_gives_every_eighth_speaker(tmp_path):
    root = make_feature_set(tmp_path, {"train": 40, "test": 4}, speakers=20)
    train_part, dev, _ = splits(root)
    assert len(set(dev.speakers.values())) == 2
    assert not set(dev.speakers.values()) & set(train_part.speakers.values())
    assert len(train_part) + len(dev) == 40
    with pytest.raises(CorpusError, match="only 4 training speakers"):
        splits(make_feature_set(tmp_path / "few", {"train": 8, "test": 4}))


def test_training_utterances_too_short_for_their_text_are_named_and_left_out(tmp_path, caplog):
    root = make_feature_set(tmp_path, {"train": 120, "dev": 4, "test": 4})
    text = root / "data/train/text"
    text.write_text(text.read_text().replace("train000 ", "train000 " + "AN BO " * 20))
    names = CtcTask(corpus=root, cache=tmp_path / "cache").data.train.names
    assert "train000" not in names
    assert len(names) == 119
    assert "train, for the criterion: 1 utterance is left out: train000" in caplog.text


def test_too_many_short_utterances_are_an_error_and_short_ones_of_dev_count_in_no_loss(tmp_path, caplog):
    root = make_feature_set(tmp_path, {"train": 20, "dev": 4, "test": 4})
    dev = root / "data/dev/text"
    dev.write_text(dev.read_text().replace("dev000 ", "dev000 " + "AN BO " * 20))
    task = CtcTask(corpus=root, network=Blstm(4, 1, 0.1, 3), cache=tmp_path / "cache")
    assert np.isfinite(task.evaluate(task.model())["loss"])
    assert "dev, for the criterion: 1 utterance is left out: dev000" in caplog.text
    text = root / "data/train/text"
    text.write_text(text.read_text().replace("train000 ", "train000 " + "AN BO " * 20))
    with pytest.raises(CorpusError, match=r"1 of 20 utterances cannot be used[^$]*train000"):
        _ = CtcTask(corpus=root, cache=tmp_path / "cache").data


def shuffled(split: SplitData) -> SplitData:
    """The same split with transcripts exchanged between utterances."""
    order = np.random.default_rng(0).permutation(len(split.names))
    other = {name: split.names[i] for name, i in zip(split.names, order, strict=True)}
    return replace(split, targets={name: split.targets[other[name]] for name in split.names})


@pytest.mark.slow
def test_shuffled_transcripts_ruin_the_word_error_rate(tmp_path):
    honest = CtcTask(
        digits=Digits(train=400, dev=60, test=60), network=Blstm(64, 2, 0.1, 3), minibatch_size=8, cache=tmp_path
    )
    assert honest.test(train(honest, 8)).figures["wer"] < 30
    leaky = replace(honest)
    object.__setattr__(leaky, "data", replace(honest.data, train=shuffled(honest.data.train)))
    assert leaky.test(train(leaky, 8)).figures["wer"] > 60


def test_only_mel_bins_are_warped(tmp_path, task):
    warp = SpecAugment(warp=0.3, time_masks=0, bin_masks=0)
    brought = CtcTask(
        corpus=make_feature_set(tmp_path, {"train": 8, "dev": 4, "test": 4}), cache=tmp_path, augment=warp
    )
    for some, same in ((brought, True), (replace(task, augment=warp), False)):
        batch = some.minibatch(0)
        frames = int(batch.lengths[0])
        assert np.array_equal(batch.feats[0, :frames].numpy(), some.data.train.feats[batch.names[0]]) == same
