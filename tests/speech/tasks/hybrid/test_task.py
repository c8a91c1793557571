"""The hybrid task: pure minibatches, stages that survive kills, figures, tuning without test."""

import errno
import logging
import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from murmur.core.errors import SettingError
from murmur.core.flat import Layout
from murmur.engine.checkpoints.checkpoint import write_pair
from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.corpus.digits import Digits
from murmur.speech.corpus.kaldi_dir import write_table
from murmur.speech.features.augment import MelCepstra, SpecAugment
from murmur.speech.features.chunks import IGNORED, Chunks
from murmur.speech.features.speed_and_noise import Noise
from murmur.speech.hmm.em_loop import EmConfig
from murmur.speech.hmm.grow import TreeConfig
from murmur.speech.hmm.ivector import IvectorConfig, UbmConfig, ivectors
from murmur.speech.hmm.triphone import TriphoneConfig
from murmur.speech.lexicon.lexicon import read_lexicon
from murmur.speech.models import Lstm, Tdnn
from murmur.speech.tasks.graph_sources import Search
from murmur.speech.tasks.hybrid import decode as hybrid_decode
from murmur.speech.tasks.hybrid import hmm as hybrid_hmm
from murmur.speech.tasks.hybrid.config import ChainMmi, CrossEntropy, Decoding, FrontEnd, HmmStages, NetworkInput
from murmur.speech.tasks.hybrid.data import floored
from murmur.speech.tasks.hybrid.decode import DecodeHalf
from murmur.speech.tasks.hybrid.task import HybridTask
from tests.support.tones import make_tones

LEXICON = {"ANNA": "A N A", "BOB": "B O B", "NOB": "N O B"}
SMALL = EmConfig(gaussians=40, passes=6, grow_passes=4, align_passes=(2, 3, 4, 5, 6))


def make_set(root: Path) -> Path:
    """Words of phones that are three short plateaus in 13 values each, with silence around and between them."""
    rng = np.random.default_rng(3)
    plateaus = {phone: rng.standard_normal((3, 13)) for phone in "ABNO"}
    quiet, feats = rng.standard_normal(13) * 0.2, {}

    def noisy(value, frames):
        return np.tile(value, (frames, 1)) + 0.25 * rng.standard_normal((frames, 13))

    for split, count in {"train": 40, "dev": 8, "test": 8}.items():
        texts = {}
        for i in range(count):
            name = f"{split}{i % 4}-{i:03}"
            words = [list(LEXICON)[k] for k in rng.integers(3, size=2 + i % 3)]
            parts = [noisy(quiet, 12)]
            for word in words:
                parts += [noisy(p, int(rng.integers(2, 5))) for phone in LEXICON[word].split() for p in plateaus[phone]]
                parts.append(noisy(quiet, int(rng.integers(8, 14))))
            texts[name], feats[name] = " ".join(words), np.concatenate(parts).astype(np.float32)
        folder = root / "data" / split
        write_table(folder / "text", texts)
        write_table(folder / "utt2spk", {n: n.partition("-")[0] for n in texts})
        write_table(folder / "feats.scp", {n: f"feats.npz:{n}" for n in texts})
    np.savez(root / "feats.npz", **feats)
    write_table(root / "lexicon.txt", LEXICON)
    return root


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    root = make_set(tmp_path_factory.mktemp("set"))
    return HybridTask(
        corpus=root,
        hmm=HmmStages(monophone=SMALL, triphone=None),
        network=Tdnn(hidden=32, dropout=0.0),
        chunks=Chunks(frames=20, size=8),
        augment=SpecAugment(time_frames=3, time_masks=1, bin_masks=0),
        decoding=Decoding(network=Search(scales=(0.3, 1.0))),
        cache=tmp_path_factory.mktemp("cache"),
    )


@pytest.fixture(scope="module")
def trained(task):
    torch.manual_seed(0)
    model = task.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for n in range(10 * task.per_epoch):
        loss = task.loss(model, task.minibatch(n))
        optimizer.zero_grad()
        (loss.total / loss.samples).backward()
        optimizer.step()
    return model


def test_a_minibatch_is_a_pure_function_of_its_number(task):
    fresh = pickle.loads(pickle.dumps(task))  # carries no data, reads the cache again
    for n in (2, 0, 2, task.per_epoch):
        mine, theirs = task.minibatch(n), fresh.minibatch(n)
        assert torch.equal(mine.feats, theirs.feats)
        assert torch.equal(mine.targets, theirs.targets)
    assert not torch.equal(task.minibatch(0).feats, task.minibatch(1).feats)
    assert len(pickle.dumps(task)) < 4000


def test_an_epoch_trains_every_frame_once(task):
    for epoch in range(2):
        batches = [task.minibatch(epoch * task.per_epoch + n) for n in range(task.per_epoch)]
        assert sum(batch.frames for batch in batches) == task.samples_per_epoch
        pdfs = torch.cat([batch.targets[batch.targets != IGNORED] for batch in batches]).bincount()
        expected = torch.from_numpy(np.concatenate(list(task.targets.train.values()))).long().bincount()
        assert torch.equal(pdfs, expected)


def test_figures_of_a_trained_network(task, trained):
    figures = task.evaluate(trained)
    assert figures["loss"] == -figures["logprob"]
    assert figures["frame accuracy"] > 0.75
    assert task.evaluate(task.model())["frame accuracy"] < 0.4
    score = task.test(trained)
    assert all(line.startswith("%WER") for line in score.lines)
    assert len(score.lines) == 4
    for name in ("monophone dev", "monophone test", "network dev", "network test"):
        assert score.figures[f"{name} wer"] <= 5
        assert score.figures[f"{name} low"] <= score.figures[f"{name} wer"] <= score.figures[f"{name} high"]
    assert score.figures["network test acoustic scale"] in (0.3, 1.0)
    assert (task.cache / "errors" / "network-test.txt").read_text().startswith("%WER")


def test_reports_that_cannot_be_written_do_not_end_a_test(task, trained, monkeypatch, caplog, tmp_path):
    """The cache may be read-only; the test comes after hours of training."""

    def read_only(path, *_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    task = replace(task, decoding=replace(task.decoding, scored="none"))
    monkeypatch.setattr(hybrid_decode, "write_error_report", read_only)
    assert task.test_in(trained, tmp_path).figures["network test wer"] <= 5
    for part in ("dev", "test"):
        assert f"{tmp_path}/errors/network-{part}.txt is not written: [Errno 30] Read-only" in caplog.text


def test_tuning_looks_at_dev_only(task, tmp_path):
    system = task._gaussians(task.hmms.trained[-1])

    def closed(name):
        raise AssertionError(f"tuning asked for {name} of test")

    shut = replace(system, scores={**system.scores, "test": closed})
    decoder = DecodeHalf(task.material, 1, tmp_path)
    assert decoder.tune(shut, task.material.dev).acoustic_scale in system.search.scales
    with pytest.raises(AssertionError, match="of test"):
        decoder.evaluate(shut, task.scored_parts)


def test_tuning_takes_the_insertion_penalty_with_the_fewest_errors(task, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    system = task._gaussians(task.hmms.trained[-1])
    decoder = DecodeHalf(task.material, 1, tmp_path)
    for penalties, best in (((500.0, 0.0), 0.0), ((0.0, 0.01), 0.0)):  # no words at 500; among equals, the first
        tried = replace(system, search=replace(system.search, insertion_penalties=penalties))
        assert decoder.tune(tried, task.material.dev).insertion_penalty == best
    assert "insertion penalty 500, beam 13" in caplog.text


def test_stages_are_read_and_made_again_only_where_they_are_not_whole(task, tmp_path, monkeypatch, caplog):
    own = replace(task, cache=tmp_path)
    first = own.hmms.trained[0]
    path = next(p for p in tmp_path.glob("monophone-*.npz") if "alignment" not in p.name)
    beside = path.with_name(f"{path.stem}-alignment.npz")
    (tmp_path / f".{path.name}.999").write_bytes(b"what a killed writer leaves")
    calls, train = [], hybrid_hmm.train_monophone
    monkeypatch.setattr(hybrid_hmm, "train_monophone", lambda *a: calls.append(1) or train(*a))
    again = replace(own).hmms.trained[0]
    assert not calls
    assert np.array_equal(again.model.mixtures.means, first.model.mixtures.means)
    for damage in (lambda: path.write_bytes(path.read_bytes()[:-200]), beside.unlink):
        calls.clear()
        damage()
        with caplog.at_level(logging.WARNING):
            redone = replace(own).hmms.trained[0]
        assert len(calls) == 1
        assert np.array_equal(redone.model.mixtures.means, first.model.mixtures.means)
        assert all(np.array_equal(redone.tids[u], first.tids[u]) for u in first.tids)
    assert "damaged" in caplog.text
    calls.clear()
    other = replace(own, hmm=replace(own.hmm, silence_probability=0.7))
    assert other.hmms.trained[0].key != first.key
    assert calls


def test_triphones_follow_monophones(task):
    config = TriphoneConfig(TreeConfig(leaves=30, min_frames=10.0), replace(SMALL, gaussians=60))
    more = replace(task, hmm=replace(task.hmm, triphone=config))
    mono, tri = more.hmms.trained
    assert mono.key == task.hmms.trained[0].key
    assert mono.model.num_pdfs < tri.model.num_pdfs <= 30
    assert more.targets.pdfs == tri.model.num_pdfs
    assert {u: len(t) for u, t in mono.tids.items()} == {u: len(t) for u, t in tri.tids.items()}


def test_realignment_by_the_network(task, trained, tmp_path):
    write_pair(tmp_path / "model", {"weights": Layout.trainable(trained).gather()}, {})
    second = replace(task, realigned_by=tmp_path / "model")
    old, new = task.targets, second.targets
    assert old.train.keys() == new.train.keys()
    assert old.dev.keys() == new.dev.keys()
    agree = np.mean(np.concatenate([old.train[u] == new.train[u] for u in old.train]))
    assert 0.75 < agree < 1.0
    files = set(task.cache.glob("network-*-alignment.npz"))
    other = replace(second, front=replace(task.front, cmvn="none"), absent="refuse")
    with pytest.raises(SettingError, match="the alignment network-"):  # of another input
        _ = other.targets
    assert replace(second, absent="refuse").targets.train.keys() == new.train.keys()
    assert set(task.cache.glob("network-*-alignment.npz")) == files


def test_silence_share(task):
    stage = task.hmms.trained[-1]
    texts = task.material.train.texts
    assert stage.silence_share(texts) > 0.95  # the set has a silence in every place
    assert stage.silence_share({u: f"{text} BOB BOB" for u, text in texts.items()}) < 0.75


def test_rare_pdfs_get_no_tiny_prior():
    prior = torch.tensor([0.8, 0.2 - 1e-6, 1e-6]).log()
    assert torch.allclose(floored(prior).exp(), torch.tensor([0.8, 0.2, 0.1 / 3]), atol=1e-4)


def test_refusals(task):
    with pytest.raises(ValueError, match="targets are per frame"):
        replace(task, augment=SpecAugment(tempo=0.1))
    with pytest.raises(ValueError, match="every frame has a target"):
        replace(task, network=Lstm(stack=3))
    with pytest.raises(ValueError, match=r"must hold 1\.0"):
        FrontEnd(speeds=(0.9, 1.1))
    with pytest.raises(ValueError, match="alignments of triphones"):
        HmmStages(triphone=None, lda=object())
    with pytest.raises(ValueError, match="needs audio"):
        replace(task, front=FrontEnd(speeds=(1.0, 1.1))).minibatch(0)
    with pytest.raises(SettingError, match=r"no effect with task\.front\.cmvn=none"):
        replace(task, front=FrontEnd(cmvn="none", normalised="all")).check()
    with pytest.raises(ValueError, match="no grammar 'trigram'"):
        task._words.sources.words("trigram")


def cepstral(task, **front):
    """The task with the analysis of its cepstra known."""
    changed = replace(task, front=FrontEnd(**front), cache=task.cache / "cepstral")
    changed.__dict__["material"] = replace(task.material, analysis=MelCepstra(20, 0.0, 4000.0))
    return changed


def test_derivatives_are_normalised_too(task):
    """All columns have mean 0 and deviation 1 over a speaker, in dev, in the training frames, and in a saved model."""
    plain, wide = task.hmms.network_features(task.material.dev), cepstral(task, normalised="all")
    found = wide.hmms.network_features(task.material.dev)
    speakers = task.material.dev.speakers
    for speaker in sorted(set(speakers.values())):
        columns = np.concatenate([found[u] for u in found if speakers[u] == speaker])
        np.testing.assert_allclose(columns.mean(0), 0.0, atol=1e-5)
        np.testing.assert_allclose(columns.std(0), 1.0, atol=1e-4)
    for name, feats_TF in found.items():
        np.testing.assert_allclose(feats_TF[:, :13], plain[name][:, :13], atol=1e-5)
        assert feats_TF[:, 13:].std() > 1.3 * plain[name][:, 13:].std()
    trained = wide.hmms.network_features(wide.material.train)
    store = wide.data.train
    for number, name in enumerate(store.names):
        np.testing.assert_array_equal(store.feats(number), trained[name])
    again = wide._acoustic.features(task.material.dev, wide.cache)
    assert all(np.array_equal(again[name], found[name]) for name in found)


def test_copies_of_cepstra_at_other_speeds(task):
    """Training frames hold a copy for each speed, of warped cepstra, and targets follow the tempo."""
    fast = cepstral(task, speeds=(1.0, 1.25))
    plain, copies = (fast.hmms.network_features(fast.material.train, speed) for speed in (1.0, 1.25))
    assert plain.keys() == copies.keys()
    assert all(len(copies[name]) == round(len(plain[name]) / 1.25) for name in plain)
    frames = sum(map(len, plain.values())) + sum(map(len, copies.values()))
    assert fast.samples_per_epoch == frames
    assert cepstral(task).samples_per_epoch == sum(map(len, plain.values()))
    wanted = NetworkInput(ivector=IvectorConfig(dims=2, passes=2, ubm=UbmConfig(gaussians=4, passes=2)))
    joint = cepstral(task, speeds=(1.0, 1.25), input=wanted, normalised="all").hmms
    for speed, spectrum in ((1.0, plain), (1.25, copies)):
        found, cepstra = (
            joint.network_features(joint.material.train, speed),
            joint.features(joint.material.train, speed),
        )
        assert {name: len(feats_TF) for name, feats_TF in found.items()} == {n: len(x) for n, x in spectrum.items()}
        own = ivectors(joint.extractor, cepstra, joint.material.train.speakers, wanted.ivector.scale, 2)
        assert all(np.array_equal(feats_TF[0, 39:], own[name].astype(np.float32)) for name, feats_TF in found.items())


def test_speed_copies_of_synthetic_digits(tmp_path):
    pytest.importorskip("espeakng_loader", reason="the extra synth is not installed")
    task = HybridTask(digits=Digits(train=4, dev=2, test=2), cache=tmp_path)
    plain = task.hmms.network_features(task.material.train)
    fast = task.hmms.network_features(task.material.train, 1.25)
    assert plain.keys() == fast.keys()
    for name, feats_TF in plain.items():
        assert feats_TF.shape[1] == task.hmms.network_dims == 40
        assert len(fast[name]) == pytest.approx(len(feats_TF) / 1.25, abs=1)


def test_words_of_train_that_the_lexicon_lacks_are_spelled(tmp_path):
    root = make_set(tmp_path / "set")
    lexicon = root / "lexicon.txt"
    lexicon.write_text(lexicon.read_text().replace("NOB N O B\n", "").replace("ANNA A N A", "ANNA a n o b"))
    guessing = HybridTask(corpus=root, guess="graphemes", cache=tmp_path / "cache")
    for found in (guessing.material.lexicon, guessing.hmms.lexicon):
        assert ("NOB", ("n", "o", "b")) in read_lexicon(found)
        assert "NOB\tn o b\tspelled" in (found.parent / "pronunciations.tsv").read_text(encoding="utf-8")
    assert HybridTask(corpus=root, cache=tmp_path / "cache").material.lexicon == lexicon


@pytest.mark.parametrize("kind", ["hybrid", "chain"])
def test_recordings_of_test_are_checked_before_any_training(kind, tmp_path):
    """They are read after it, hours later."""
    for part in ("train", "dev", "test"):
        audio = tmp_path / f"set/data/{part}/a-1.wav"
        audio.parent.mkdir(parents=True)
        soundfile.write(audio, np.zeros(8000, np.float32), 8000)
        for name, value in {"text": "ANNA", "utt2spk": "a", "wav.scp": str(audio)}.items():
            write_table(audio.parent / name, {"a-1": value})
    write_table(tmp_path / "set/lexicon.txt", LEXICON)
    audio.write_bytes(audio.read_bytes()[:4000])
    task = HybridTask(corpus=tmp_path / "set", cache=tmp_path / "cache")
    with pytest.raises(CorpusError, match=r"^test: 1 of 1 utterance[^\n]*\n.*cut short"):
        replace(task, criterion=CrossEntropy() if kind == "hybrid" else ChainMmi()).prepare()


@pytest.mark.parametrize("rate", [None, 16000], ids=["none", "another rate"])
def test_noise_that_cannot_be_used_is_refused_before_any_training(rate, tmp_path):
    """The Gaussian systems may take hours."""
    folder = tmp_path / "noise"
    folder.mkdir()
    root = make_tones(tmp_path / "set", {"train": 4, "dev": 4, "test": 4})
    front = FrontEnd(perturb="on_the_fly", noise=Noise(0.5, recordings=folder))
    task = HybridTask(corpus=root, cache=tmp_path / "cache", front=front)
    if rate is None:
        with pytest.raises(CorpusError, match=r"noise\.recordings: there is no \.wav"):
            task.check()
    else:
        soundfile.write(folder / "hum.wav", np.zeros(400), rate)
        task.check()
        with pytest.raises(CorpusError, match=r"hum\.wav is at 16000 Hz, not 8000"):
            task.prepare()
    assert not task.cache.exists()
