"""Analysis against kaldi-native-fbank, deltas against their sum, named errors of damaged and unreadable files."""

from pathlib import Path

import kaldi_native_fbank as knf
import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.speech.corpus.corpus import Audio, Corpus, CorpusError, StoredFeatures, Utterance
from murmur.speech.features.analysis import (
    LogMel,
    Mfcc,
    Ready,
    analyse,
    check_readable,
    deltas,
    digest,
    features_of,
    read_audio,
    read_stored,
    sample_rate_hz,
)
from murmur.speech.features.cmvn import normalise_all, statistics, statistics_of_all
from tests.support.speech_files import write_archive

RATE_HZ = 8000  # of the files that are read after training
NOISE = (np.random.default_rng(0).standard_normal(24000) * 0.1).astype(np.float32)


def kaldi_frames(online, samples, rate_hz):
    online.accept_waveform(rate_hz, samples.tolist())
    online.input_finished()
    return np.stack([online.get_frame(t) for t in range(online.num_frames_ready)])


@pytest.mark.parametrize("rate_hz", [8000, 16000])
def test_log_mel_equals_kaldi_native_fbank(rate_hz):
    options = knf.FbankOptions()
    options.frame_opts.samp_freq, options.frame_opts.dither, options.frame_opts.snip_edges = rate_hz, 0, False
    options.mel_opts.num_bins, options.mel_opts.high_freq = 40, -400
    theirs = kaldi_frames(knf.OnlineFbank(options), NOISE, rate_hz)
    np.testing.assert_allclose(analyse(NOISE, LogMel(rate_hz=rate_hz, bins=40)), theirs, atol=3e-3)


def test_mfcc_equals_kaldi_native_fbank():
    options = knf.MfccOptions()
    options.frame_opts.dither, options.use_energy, options.frame_opts.snip_edges = 0, False, False
    theirs = kaldi_frames(knf.OnlineMfcc(options), NOISE, 16000)
    np.testing.assert_allclose(analyse(NOISE, Mfcc()), theirs, atol=3e-2)


@pytest.mark.parametrize("speed", [0.9, 1.1])
def test_speed_changes_length_and_pitch(speed):
    tone = np.sin(2 * np.pi * 1000 * np.arange(32000) / 16000).astype(np.float32)
    plain, changed = analyse(tone, LogMel()), analyse(tone, LogMel(speed=speed))
    assert abs(len(changed) - len(plain) / speed) <= 1
    faster_tone = np.sin(2 * np.pi * 1000 * speed * np.arange(32000) / 16000).astype(np.float32)
    assert changed[50].argmax() == analyse(faster_tone, LogMel())[50].argmax() != plain[50].argmax()


@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_deltas_are_the_stated_sum(frames, seed):
    x = np.random.default_rng(seed).standard_normal((frames, 2)).astype(np.float32)

    def at(values, t):
        return values[min(max(t, 0), frames - 1)].astype(float)

    def first(t):  # beyond the edges the filter sees repeated features, not repeated derivatives
        return sum(k * (at(x, t + k) - at(x, t - k)) for k in (1, 2)) / 10

    second = [sum(k * (first(t + k) - first(t - k)) for k in (1, 2)) / 10 for t in range(frames)]
    expected = np.concatenate([x, [first(t) for t in range(frames)], second], axis=1)
    np.testing.assert_allclose(deltas(x, 2), expected, atol=1e-5)


def test_audio_is_cut_exactly(tmp_path):
    soundfile.write(tmp_path / "a.flac", NOISE, 16000)
    written = soundfile.read(tmp_path / "a.flac", dtype="float32")[0]
    np.testing.assert_array_equal(read_audio(Audio(tmp_path / "a.flac", 0.25, 0.75), 16000), written[4000:12000])
    np.testing.assert_array_equal(read_audio(Audio(tmp_path / "a.flac", 0.25, 1.6), 16000), written[4000:])
    np.testing.assert_array_equal(read_audio(Audio(tmp_path, command=f"cat {tmp_path}/a.flac"), 16000), written)


def damaged(folder, kind):
    path = folder / ("a.wav" if kind == "truncated wav" else "a.flac")
    soundfile.write(path, np.stack([NOISE, NOISE], 1) if kind == "stereo" else NOISE, 16000)
    if kind.startswith("truncated"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    if kind == "garbage":
        path.write_bytes(b"no sound at all")
    if kind == "missing":
        path.unlink()
    return Audio(path, 1.4 if kind == "late" else 0.0, 2.1 if kind == "late" else None)


@pytest.mark.parametrize("kind", ["stereo", "truncated", "truncated wav", "garbage", "missing", "late"])
def test_damaged_audio_is_refused_by_name(tmp_path, kind):
    with pytest.raises(CorpusError, match=r"a\.(flac|wav)"):
        read_audio(damaged(tmp_path, kind), 16000)


def test_wrong_rate_command_failure_and_too_short(tmp_path):
    soundfile.write(tmp_path / "a.flac", NOISE[:200], 16000)
    with pytest.raises(CorpusError, match="is at 16000 Hz, not 8000"):
        read_audio(Audio(tmp_path / "a.flac"), 8000)
    with pytest.raises(CorpusError, match="status 3"):
        read_audio(Audio(tmp_path, command="exit 3"), 8000)
    with pytest.raises(CorpusError, match="shorter than one"):
        features_of(Utterance("u", "s", "YES", Audio(tmp_path / "a.flac")), LogMel())


def test_a_recording_without_samples_is_refused_by_name(tmp_path):
    soundfile.write(tmp_path / "nothing.wav", np.zeros(0, np.float32), 16000)
    with pytest.raises(CorpusError, match=r"nothing\.wav has a length of 0 s"):
        read_audio(Audio(tmp_path / "nothing.wav"), 16000)


def test_stored_features_from_npz_and_archive(tmp_path):
    feats = {
        "b": np.random.default_rng(0).standard_normal((5, 13)).astype(np.float32),
        "a": np.ones((2, 13), np.float32),
    }
    np.savez(tmp_path / "feats.npz", **feats)
    write_archive(feats, tmp_path / "feats.ark")
    index = dict(line.split() for line in (tmp_path / "feats.scp").read_text().splitlines())
    for name, feats_TF in feats.items():
        path, _, offset = index[name].rpartition(":")
        np.testing.assert_array_equal(read_stored(StoredFeatures(tmp_path / "feats.npz", name)), feats_TF)
        np.testing.assert_array_equal(read_stored(StoredFeatures(tmp_path / path, offset)), feats_TF)
    for bad in (StoredFeatures(tmp_path / "feats.npz", "c"), StoredFeatures(tmp_path / "gone.ark", "3")):
        with pytest.raises(CorpusError, match=r"feats.npz:c is damaged|gone.ark:3 cannot be read"):
            read_stored(bad)


@pytest.mark.parametrize(
    ("value", "message"),
    [(np.full((4, 13), np.nan), "frame 0 .*not finite"), (np.zeros((4, 12)), "shape"), (np.zeros((0, 13)), "shape")],
)
def test_unusable_stored_features_are_refused(tmp_path, value, message):
    np.savez(tmp_path / "feats.npz", u=value)
    with pytest.raises(CorpusError, match=message):
        features_of(Utterance("u", "s", "YES", features=StoredFeatures(tmp_path / "feats.npz", "u")), Ready())


def test_digest_names_the_analysis():
    assert len({digest(front) for front in (LogMel(), LogMel(bins=40), Mfcc(), Ready())}) == 4
    assert digest(LogMel()) == digest(LogMel())


@pytest.mark.parametrize("scope", ["speaker", "utterance"])
def test_cmvn_leaves_mean_zero_and_deviation_one_in_its_scope(scope):
    rng = np.random.default_rng(0)
    feats = {f"u{i}": (rng.standard_normal((50 + i, 3)) * (i + 1) + i).astype(np.float32) for i in range(6)}
    speakers = {name: f"s{i % 2}" for i, name in enumerate(feats)}
    normal = normalise_all(feats, speakers, scope)
    groups = [
        [name for name in feats if (speakers[name] if scope == "speaker" else name) == g]
        for g in {(speakers[n] if scope == "speaker" else n) for n in feats}
    ]
    for names in groups:
        mean, deviation = statistics(normal[name] for name in names)
        np.testing.assert_allclose(mean, 0, atol=1e-5)
        np.testing.assert_allclose(deviation, 1, atol=1e-5)
    assert list(normal) == list(feats)
    own_means = [abs(float(normal[name].mean())) for name in feats]
    assert (max(own_means) > 0.1) == (scope == "speaker")
    assert (statistics_of_all(feats, speakers, scope, variance=False)["u5"][1] == 1).all()
    with pytest.raises(ValueError, match="no frames"):
        statistics([])


def test_the_sample_rate_is_read_from_the_first_file(tmp_path):
    soundfile.write(tmp_path / "a.flac", NOISE, 8000)
    audio = Utterance("u", "s", "YES", Audio(tmp_path / "a.flac"))
    assert sample_rate_hz(Corpus((audio,))) == 8000
    (tmp_path / "a.flac").write_bytes(b"")
    for broken in (Corpus((audio,)), Corpus(()), Corpus((Utterance("u", "s", "YES"),))):
        with pytest.raises(CorpusError):
            sample_rate_hz(broken)


def spoken(folder: Path, name: str, rate_hz: int = RATE_HZ) -> Utterance:
    path = folder / f"{name}.wav"
    soundfile.write(path, np.zeros(rate_hz, np.float32), rate_hz)
    return Utterance(name, "speaker", "A", Audio(path))


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus(tuple(spoken(tmp_path, name) for name in "abc"))


def test_whole_files_pass(corpus: Corpus) -> None:
    check_readable(corpus, RATE_HZ)


def test_a_missing_file_is_named(corpus: Corpus) -> None:
    (path := corpus.utterances[1].audio.path).unlink()
    with pytest.raises(CorpusError, match=rf"1 of 3 .*\n.*b \({path}\).*missing"):
        check_readable(corpus, RATE_HZ)


def test_a_file_that_is_cut_short_is_named(corpus: Corpus) -> None:
    path = corpus.utterances[2].audio.path
    path.write_bytes(path.read_bytes()[:4000])
    with pytest.raises(CorpusError, match=r"c .*cut short"):
        check_readable(corpus, RATE_HZ)


def test_another_rate_is_refused(corpus: Corpus) -> None:
    with pytest.raises(CorpusError, match=r"3 of 3 .*\n.*8000 Hz, not 16000"):
        check_readable(corpus, 16000)


def test_one_lost_file_in_a_hundred_passes(tmp_path: Path) -> None:
    every = Corpus(tuple(spoken(tmp_path, f"{n:03}") for n in range(100)))
    every.utterances[5].audio.path.unlink()
    check_readable(every, RATE_HZ)


def test_a_command_is_not_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    audio = Audio(Path("a"), command=f"touch {ran}")
    check_readable(Corpus((Utterance("a", "speaker", "A", audio),)), RATE_HZ)
    assert not ran.exists()
