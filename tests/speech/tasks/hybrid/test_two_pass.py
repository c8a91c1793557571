"""Speaker-adapted Gaussian systems of the hybrid task: stages on disk, two passes of decoding, targets, refusals."""

import errno
import os
from dataclasses import replace

import numpy as np
import pytest

from murmur.core.errors import SettingError
from murmur.speech.features.analysis import Ready
from murmur.speech.features.augment import SpecAugment
from murmur.speech.features.chunks import Chunks
from murmur.speech.hmm.em_loop import EmConfig
from murmur.speech.hmm.fmllr import FmllrConfig, identity
from murmur.speech.hmm.grow import TreeConfig
from murmur.speech.hmm.sat import SatConfig
from murmur.speech.hmm.storage import load_transforms
from murmur.speech.hmm.triphone import TriphoneConfig
from murmur.speech.models import Tdnn
from murmur.speech.recognition.trained_run import TransformSearch
from murmur.speech.tasks import speaker_inputs
from murmur.speech.tasks.graph_sources import Search
from murmur.speech.tasks.hybrid import decode
from murmur.speech.tasks.hybrid import hmm as hybrid_hmm
from murmur.speech.tasks.hybrid.config import Decoding, HmmStages, NetworkInput
from murmur.speech.tasks.hybrid.data import _folder
from murmur.speech.tasks.hybrid.decode import DecodeHalf
from murmur.speech.tasks.hybrid.task import HybridTask
from murmur.speech.tasks.recogniser import PortableRecogniser
from murmur.speech.tasks.word_search import WordSearch
from tests.support.plateaus import make_set

SIZES = {"train": 48, "dev": 24, "test": 24}
EM = EmConfig(gaussians=40, passes=5, grow_passes=4, align_passes=(2, 3, 4), min_gaussian_frames=3)
TREE = TreeConfig(leaves=16, min_frames=10, min_gain=1.0)
FMLLR = FmllrConfig(min_frames=100)
SAT = SatConfig((2, 4), FMLLR, replace(FMLLR, silence_weight=0.01), TREE, EM)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return HybridTask(
        corpus=make_set(tmp_path_factory.mktemp("set"), SIZES, noise=0.8, speaker=0.4),  # a linear map for each speaker
        hmm=HmmStages(monophone=EM, triphone=TriphoneConfig(TREE, EM), sat=SAT),
        network=Tdnn(hidden=16, dropout=0.0),
        decoding=Decoding(gmm=Search(scales=(0.05, 0.1, 0.2)), network=Search(scales=(0.3,))),
        cache=tmp_path_factory.mktemp("cache"),
    )


@pytest.fixture(scope="module")
def results(task):
    decoder = DecodeHalf(task.material, 1, task.cache)
    stage = task.hmms.trained[-1]
    return {(r.system, r.part): r for r in task._results_of(stage, decoder, task.scored_parts)}


def test_adaptation_lowers_the_error_rate_of_unseen_speakers(results):
    assert set(results) == {(system, part) for system in ("sat unadapted", "sat") for part in ("dev", "test")}
    for part in ("dev", "test"):
        assert results["sat", part].rate.errors < results["sat unadapted", part].rate.errors


def test_a_read_only_cache_ends_no_test(task, results, monkeypatch, caplog):
    def read_only(*words):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(decode, "save_transforms", read_only)
    monkeypatch.setattr(speaker_inputs, "write_whole", read_only)
    decoder, stage = DecodeHalf(task.material, 1, task.cache), task.hmms.trained[-1]
    again = {(r.system, r.part): r for r in task._results_of(stage, decoder, {"test": task.material.test})}
    assert {key: found.rate for key, found in again.items()} == {key: results[key].rate for key in again}
    assert caplog.text.count("is not written: [Errno 30]") == 3  # the settings, and the transforms of dev and test


def test_transforms_of_each_part_lie_beside_the_model(task, results):
    stage = task.hmms.trained[-1]
    files = {path.name for path in task.cache.glob(f"sat-{stage.key}*")}
    assert {f"sat-{stage.key}{end}.npz" for end in ("", "-alignment", "-unadapted", "-transforms")} < files
    speakers = [set(load_transforms(path)) for path in task.cache.glob(f"sat-{stage.key}-transforms*.npz")]
    assert {"train0", "train1", "train2", "train3"} in speakers
    assert {"dev0", "dev1", "dev2", "dev3"} in speakers
    assert {"test0", "test1", "test2", "test3"} in speakers


def test_the_stage_is_read_again_and_made_again_without_its_transforms(task, monkeypatch):
    first, calls, train = task.hmms.trained[-1], [], hybrid_hmm.train_sat
    monkeypatch.setattr(hybrid_hmm, "train_sat", lambda *a: calls.append(1) or train(*a))
    read = replace(task).hmms.trained[-1]
    assert not calls
    assert not replace(task).hmms.untrained()
    for speaker, transform in first.adaptation.transforms.items():
        assert np.array_equal(read.adaptation.transforms[speaker], transform)
    (task.cache / f"sat-{first.key}-transforms.npz").unlink()
    assert replace(task).hmms.untrained() == ["sat"]
    again = replace(task).hmms.trained[-1]
    assert calls == [1]
    assert np.array_equal(again.model.mixtures.means, first.model.mixtures.means)


def test_only_parts_in_use_are_analysed_and_narrow_searches_give_transforms(task, results, monkeypatch):
    analysed, features = [], hybrid_hmm.HmmHalf.features
    monkeypatch.setattr(
        hybrid_hmm.HmmHalf, "features", lambda half, part, *a: analysed.append(part) or features(half, part, *a)
    )
    fresh = replace(task)
    settings = fresh.two_pass.first_pass
    assert (settings.options.beam, settings.options.max_active) == (10.0, 2000)
    fresh.two_pass.transforms("dev", fresh.material.dev)
    assert not analysed
    narrower = Search(scales=(0.1,), beams=((8.0, 500),))
    other = replace(task, decoding=replace(task.decoding, gmm=narrower)).two_pass
    settings = other.first_pass
    assert (settings.options.beam, settings.options.max_active) == (8.0, 500)
    assert analysed == [other.decoder.material.dev]


def test_targets_come_from_the_adapted_alignments(task):
    stage = task.hmms.trained[-1]
    assert stage.name == "sat"
    assert task.targets.pdfs == stage.model.num_pdfs
    assert task.targets.train.keys() == stage.tids.keys()
    assert task.targets.dev.keys() == task.material.dev.texts.keys()
    assert not any(np.array_equal(w, identity(39)) for w in stage.adaptation.transforms.values())


def test_earlier_stages_are_those_of_a_task_without_adaptation(task):
    plain = replace(task, hmm=replace(task.hmm, sat=None))
    assert plain.hmm.names == ["monophone", "triphone"]
    assert [s.key for s in plain.hmms.trained] == [s.key for s in task.hmms.trained[:2]]
    assert all(stage.adaptation is None for stage in plain.hmms.trained)
    with pytest.raises(ValueError, match="speaker-adaptive training starts from the alignments of triphones"):
        HmmStages(triphone=None, sat=SAT)


@pytest.fixture(scope="module")
def adapted(task):
    """The task with a network on adapted features; it shares the Gaussian systems of `task`."""
    front = replace(task.front, input=NetworkInput(spectrum=False, fmllr=True))
    augment = SpecAugment(time_masks=1, time_frames=3, bin_masks=0)
    return replace(task, front=front, augment=augment, chunks=Chunks(frames=20, size=8))


def test_a_network_sees_features_adapted_by_the_transforms_of_each_part(adapted, results):
    stage = adapted.hmms.trained[-1]
    assert adapted.hmms.network_dims == stage.model.mixtures.dim == 39
    for part in ("train", "test"):
        corpus = adapted.utterances(part)
        found, plain = adapted.hmms.network_features(corpus), adapted.hmms.features(corpus)
        transforms = adapted.hmms.transforms(corpus, 1.0)
        assert set(transforms) == set(corpus.speakers.values())
        for name, feats in found.items():
            transform = transforms[corpus.speakers[name]]
            expected = plain[name] @ transform[:, :-1].T + transform[:, -1]
            np.testing.assert_allclose(feats, expected, atol=1e-3)
    frames = adapted.minibatch(0).feats
    assert frames.shape[-1] == 39
    assert np.isfinite(adapted.evaluate(adapted.model())["loss"])


def test_frames_of_adapted_features_have_a_folder_of_their_own(task, adapted):
    assert _folder(adapted.hmms, adapted.targets) != _folder(task.hmms, task.targets)


def test_transforms_are_not_decoded_for_where_nothing_may_be_made(adapted, tmp_path):
    refusing = replace(adapted, absent="refuse", decoding=replace(adapted.decoding, gmm=Search(scales=(0.3,))))
    with pytest.raises(SettingError, match="transforms of the speakers of dev"):
        refusing.hmms.transforms(refusing.material.dev, 1.0)
    with pytest.raises(SettingError, match="settings of the first pass"):
        refusing.recogniser()


def test_damaged_files_are_not_made_again_where_nothing_may_be_made(adapted):
    two, dev = adapted.two_pass, adapted.material.dev
    two.transforms("dev", dev)  # makes the files where no earlier test has
    refusing = replace(adapted, absent="refuse").two_pass
    for path, read in ((two._first_pass_file, lambda: refusing.first_pass), (two.transforms_file(dev), None)):
        whole = path.read_bytes()
        path.write_bytes(whole[:-20])
        with pytest.raises(SettingError, match="damaged"):
            refusing.transforms("dev", dev) if read is None else read()
        path.write_bytes(whole)


def test_a_saved_recogniser_of_a_set_with_features_adapts_other_speech_alike(adapted, tmp_path):
    expected = adapted.hmms.network_features(adapted.material.test)
    adapted.recogniser().save(tmp_path / "recogniser")
    recogniser = PortableRecogniser.open(tmp_path / "recogniser")
    speakers = recogniser.acoustic.speakers
    assert isinstance(speakers.front, Ready)
    assert speakers.first_pass == adapted.two_pass.first_pass
    search = WordSearch(recogniser.graphs, speakers.first_pass.grammar, recogniser.cache)
    passes = TransformSearch(speakers.gaussians, search, speakers.first_pass.options)
    found = recogniser.acoustic.features(adapted.material.test, tmp_path / "features", passes)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], feats) for name, feats in expected.items())


def test_refusals(task, adapted):
    with pytest.raises(ValueError, match="needs transforms"):
        replace(adapted, hmm=replace(task.hmm, sat=None))
    with pytest.raises(ValueError, match="are not frequencies"):
        replace(adapted, augment=SpecAugment(bin_masks=1))
