"""Transcription of one speaker's recordings with the speaker-adapted Gaussian system that a run has saved."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.core.errors import SettingError
from murmur.speech.features.analysis import Ready
from murmur.speech.hmm.em_loop import EmConfig
from murmur.speech.hmm.fmllr import FmllrConfig
from murmur.speech.hmm.grow import TreeConfig
from murmur.speech.hmm.sat import SatConfig
from murmur.speech.hmm.triphone import TriphoneConfig
from murmur.speech.recognition.trained_run import TransformSearch, Wanted
from murmur.speech.recognition.transcriber import adapted_transcriber
from murmur.speech.recognition.transcription import (
    Inputs,
    check_speakers,
    transcribe_with_run,
)
from murmur.speech.recognition.tuning import SearchRequest
from murmur.speech.tasks.graph_sources import Search
from murmur.speech.tasks.hybrid.config import Decoding, HmmStages
from murmur.speech.tasks.hybrid.task import HybridTask
from murmur.speech.tasks.recogniser import PortableRecogniser
from murmur.speech.tasks.word_search import WordSearch
from tests.support.speech_files import read_recording
from tests.support.tones import RATE, make_tones, tones

EM = EmConfig(gaussians=30, passes=5, grow_passes=4, align_passes=(2, 3, 4), min_gaussian_frames=3)
TREE = TreeConfig(leaves=16, min_frames=10, min_gain=1.0)
FMLLR = FmllrConfig(min_frames=50)
WORDS = [["ANNA", "BOB", "NOB"], ["NOB", "NOB", "ANNA", "BOB"]]


@pytest.fixture(scope="module")
def recogniser(tmp_path_factory):
    """The saved recogniser of a task with speaker-adaptive training, read again."""
    root = tmp_path_factory.mktemp("tones")
    task = HybridTask(
        corpus=make_tones(root / "set", {"train": 48, "dev": 4, "test": 4}),
        hmm=HmmStages(monophone=EM, triphone=TriphoneConfig(TREE, EM), sat=SatConfig((2,), FMLLR, FMLLR, TREE, EM)),
        decoding=Decoding(gmm=Search(scales=(0.1,)), network=Search(scales=(0.3,))),
        cache=root / "cache",
    )
    task.recogniser().save(root / "recogniser")
    return PortableRecogniser.open(root / "recogniser")


def opened(recogniser, folder):
    """What a trained run shows of itself to the transcriber; it was not tested, so it has no scale."""

    def search(grammar):
        return WordSearch(recogniser.graphs, grammar or recogniser.graphs.search.grammar, recogniser.cache)

    return SimpleNamespace(recogniser=recogniser, folder=folder, stem=folder / "model", search=search)


def recordings(folder):
    found = []
    for i, words in enumerate(WORDS):
        path = folder / f"said{i}.wav"
        soundfile.write(path, tones(words, 90 + i), RATE)
        found.append((read_recording(path, RATE), path.name))
    return found


def test_recordings_of_a_speaker_are_adapted_together(recogniser, tmp_path, monkeypatch):
    work = adapted_transcriber(opened(recogniser, tmp_path), request(0.1), 30.0)
    seen, estimate = [], TransformSearch.__call__

    def noted(*arguments):
        seen.append((arguments[1], estimate(*arguments)))
        return seen[-1][1]

    monkeypatch.setattr(TransformSearch, "__call__", noted)
    found = work(recordings(tmp_path))
    assert [transcript.source for transcript in found] == ["said0.wav", "said1.wav"]
    assert [[word.word for word in transcript.words] for transcript in found] == WORDS
    assert all(0 <= word.start_seconds < word.end_seconds <= t.seconds for t in found for word in t.words)
    assert len(seen) == 1  # after the first pass
    assert all(len(feats) == 2 for feats, _ in seen)  # the pieces of both recordings


def test_silence_alone_has_no_transform(recogniser, tmp_path):
    work = adapted_transcriber(opened(recogniser, tmp_path), request(0.1), 30.0)
    path = tmp_path / "short.wav"
    soundfile.write(path, np.zeros(RATE // 100, np.float32), RATE)
    (found,) = work([(read_recording(path, RATE), "short.wav")])
    assert found.words == ()
    assert work([]) == []


@pytest.mark.parametrize("silence_weight", [0.0, 0.01])
def test_a_muted_recording_is_not_adapted_to_and_ends_nothing(recogniser, tmp_path, caplog, silence_weight):
    config = FmllrConfig(min_frames=1.0, silence_weight=silence_weight)
    muted = replace(recogniser, adapted=replace(recogniser.adapted, fmllr=config))
    work = adapted_transcriber(opened(muted, tmp_path), request(0.1), 30.0)
    path = tmp_path / "mute.wav"
    soundfile.write(path, np.zeros(8 * RATE, np.float32), RATE)
    (found,) = work([(read_recording(path, RATE), "mute.wav")])
    assert found.source == "mute.wav"
    if silence_weight:
        assert "is not adapted to: " in caplog.text


def test_a_run_whose_network_knows_no_speakers_says_what_transcribes(recogniser, tmp_path, capsys, monkeypatch):
    run = opened(recogniser, tmp_path)
    run.acoustic = SimpleNamespace(speakers=None)
    for i, words in enumerate(WORDS):
        soundfile.write(tmp_path / f"said{i}.wav", tones(words, 90 + i), RATE)
    soundfile.write(tmp_path / "muted.wav", np.zeros(8 * RATE, np.float32), RATE)
    found = {}
    files = [str(tmp_path / name) for name in ("said0.wav", "muted.wav", "said1.wav", "none.wav")]

    def written(_, transcript, told):
        found[Path(transcript.source).stem] = [w.word for w in transcript.words]

    monkeypatch.setattr(Inputs, "write", written)
    inputs = Inputs(files, {})
    assert transcribe_with_run(inputs, run, Wanted(run.folder), request(0.1), 30.0) == 1
    assert [found["said0"], found["said1"]] == WORDS
    with pytest.raises(SettingError, match="--weights: --adapt transcribes with the Gaussian system"):
        transcribe_with_run(inputs, run, Wanted(run.folder, choice="best"), request(0.1), 30.0)
    said = capsys.readouterr().err
    assert "--adapt: the Gaussian system sat in place of the network" in said
    assert "muted has no sound" in said


def request(scale, dev=None):
    return SearchRequest(None, dev, {} if scale is None else {"acoustic_scale": scale})


def test_refusals(recogniser, tmp_path):
    run = opened(recogniser, tmp_path)
    with pytest.raises(SettingError, match="no speaker-adapted Gaussian system"):
        adapted_transcriber(opened(replace(recogniser, adapted=None), tmp_path), request(0.1), 30.0)
    of_corpus = replace(recogniser, adapted=replace(recogniser.adapted, front=Ready(recogniser.adapted.front.dims)))
    with pytest.raises(SettingError, match="takes features that its corpus brings"):
        adapted_transcriber(opened(of_corpus, tmp_path), request(0.1), 30.0)
    with pytest.raises(SettingError, match="tuned on dev for its system 'sat unadapted'"):
        adapted_transcriber(run, request(None), 30.0)
    with pytest.raises(SettingError, match="--dev tunes the search of the network"):
        adapted_transcriber(run, request(0.1, "dev"), 30.0)


def test_settings_of_the_network_are_not_those_of_the_gaussian_system(recogniser, tmp_path):
    run = opened(recogniser, tmp_path)
    figures = {"network dev acoustic scale": 0.3, "network dev beam": 9.0, "network dev insertion penalty": 1.5}
    (run.folder / "score.json").write_text(json.dumps({"test": figures}))
    found = adapted_transcriber(run, request(0.06), 30.0).recogniser.decoder.options
    assert (found.acoustic_scale, found.beam, found.insertion_penalty) == (0.06, 13.0, 0.0)


def test_speakers_of_recordings(tmp_path):
    file = tmp_path / "utt2spk"
    file.write_text("talk anna\n\ncall-A bob\n")
    assert check_speakers(True, file, "each") == {"talk": "anna", "call-A": "bob"}
    assert check_speakers(True, None, "average") == {}
    assert check_speakers(False, None, "each") is None
    with pytest.raises(SettingError, match="give --adapt too"):
        check_speakers(False, file, "average")
    with pytest.raises(SettingError, match="each channel has a speaker"):
        check_speakers(True, None, "each")
    with pytest.raises(SettingError, match="does not exist"):
        check_speakers(True, tmp_path / "none", "average")
    file.write_text("\ufefftalk anna\n")
    assert check_speakers(True, file, "average") == {"talk": "anna"}
    file.write_text("my talk anna\n talk  bob \n talk bob\n")
    assert check_speakers(True, file, "average") == {"my talk": "anna", "talk": "bob"}
    for content, reason in (
        (b"talk\n", "must be NAME SPEAKER"),
        (b"\n \n", "is empty"),
        (b"a anna\na bob\n", "names two speakers of 'a': anna and bob"),
        ("a Zoë\n".encode("latin-1"), "is not UTF-8"),
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=reason):
            check_speakers(True, file, "average")
