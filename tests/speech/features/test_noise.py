"""Noise on the fly: the requested ratio, the same bits for every making of a minibatch, clean without a draw."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.speech.corpus.corpus import Audio, CorpusError, Utterance
from murmur.speech.features.analysis import LogMel, analyse, features_of, read_audio
from murmur.speech.features.chunks import Chunk, ChunkTable, FramesInMemory
from murmur.speech.features.cmvn import normalise
from murmur.speech.features.noise import Added, Noise, NoiseSource, stretch
from murmur.speech.features.speed_chunks import SpeedChunks
from murmur.tasks.hybrid.config import FrontEnd

RATE = 8000
FRONT = LogMel(rate_hz=RATE, bins=8)


def ratio_db(speech: np.ndarray, both: np.ndarray) -> float:
    noise = both.astype(np.float64) - speech
    return float(10 * np.log10(np.mean(speech.astype(np.float64) ** 2) / np.mean(noise**2)))


def sound(samples: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-0.3, 0.3, samples).astype(np.float32)


@given(st.floats(-10, 40), st.floats(0, 2), st.integers(300, 5000), st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_the_ratio_is_the_one_asked_for(snr_db, slope, samples, seed):
    speech = sound(samples)
    added = Added(snr_db, slope, seed, None, RATE)
    both = added(speech)
    assert ratio_db(speech, both) == pytest.approx(snr_db, abs=0.1)
    np.testing.assert_array_equal(both, added(speech))
    assert (replace(added, seed=seed + 1)(speech) != both).any()


def test_what_is_drawn_is_within_its_limits_and_as_frequent_as_asked():
    source = NoiseSource(Noise(0.3, (3.0, 9.0), (0.5, 1.0)), RATE)
    rng = np.random.default_rng(0)
    drawn = [source.draw(rng) for _ in range(2000)]
    noisy = [added for added in drawn if added is not None]
    assert 500 < len(noisy) < 700  # 600 expected, deviation 20
    assert {added.recording for added in noisy} == {None}
    for least, greatest, found in ((3, 9, [a.snr_db for a in noisy]), (0.5, 1, [a.slope for a in noisy])):
        assert least <= min(found) < least + 0.1 * (greatest - least)
        assert greatest >= max(found) > greatest - 0.1 * (greatest - least)
    assert len({added.seed for added in noisy}) == len(noisy)


def test_silence_stays_silence(tmp_path):
    nothing = np.zeros(400, np.float32)
    soundfile.write(tmp_path / "still.wav", nothing, RATE)
    assert not Added(10.0, 1.0, 0, None, RATE)(nothing).any()
    np.testing.assert_array_equal(Added(10.0, 0.0, 0, Audio(tmp_path / "still.wav"), RATE)(sound(400)), sound(400))


@pytest.fixture
def recordings(tmp_path):
    """A long and a short noise, one of them in a subfolder, beside a file that is not audio."""
    folder = tmp_path / "noise"
    (folder / "short").mkdir(parents=True)
    soundfile.write(folder / "long.wav", sound(9000, 1), RATE, "FLOAT")
    soundfile.write(folder / "short" / "click.flac", sound(50, 2), RATE)
    (folder / "README").write_text("noise")
    return folder


def test_a_stretch_of_a_recording_lies_in_it_and_a_short_one_goes_round(recordings):
    long, _ = soundfile.read(recordings / "long.wav", dtype="float32")
    places = set()
    for seed in range(20):
        found = stretch(Audio(recordings / "long.wav"), 700, RATE, np.random.default_rng(seed))
        (place,) = (p for p in range(len(long) - 699) if long[p] == found[0] and (long[p : p + 700] == found).all())
        places.add(place)
    assert len(places) > 15
    short, _ = soundfile.read(recordings / "short" / "click.flac", dtype="float32")
    found = stretch(Audio(recordings / "short" / "click.flac"), 175, RATE, np.random.default_rng(0))
    first = next(p for p in range(50) if (np.roll(short, -p) == found[:50]).all())
    np.testing.assert_array_equal(found, np.tile(short, 5)[first : first + 175])


def test_recordings_are_all_drawn_and_mistakes_are_named(recordings, tmp_path):
    source = NoiseSource(Noise(1.0, recordings=recordings), RATE)
    rng = np.random.default_rng(0)
    assert {source.draw(rng).recording.path.name for _ in range(40)} == {"long.wav", "click.flac"}
    other = replace(source, rate_hz=16000)
    with pytest.raises(CorpusError, match="is at 8000 Hz, not 16000"):
        other.draw(rng)(sound(400))
    with pytest.raises(CorpusError, match=r"noise\.recordings: there is no \.wav, \.flac, \.ogg file in"):
        NoiseSource(Noise(1.0, recordings=tmp_path / "nowhere"), RATE).draw(rng)


def test_recordings_have_one_order_whatever_the_folder_says(recordings, monkeypatch):
    names = [path.name for path in NoiseSource(Noise(1.0, recordings=recordings), RATE).files]
    there = list(recordings.rglob("*"))
    for order in (there, there[::-1]):
        monkeypatch.setattr(Path, "rglob", lambda *_, order=order: iter(order))
        assert [path.name for path in NoiseSource(Noise(1.0, recordings=recordings), RATE).files] == names


@pytest.fixture
def corpus(tmp_path):
    """Three utterances, normalised by one mean and deviation."""
    audio = []
    for number, samples in enumerate((4000, 7000, 2600)):
        soundfile.write(tmp_path / f"{number}.wav", sound(samples, number), RATE, "FLOAT")
        audio.append(Audio(tmp_path / f"{number}.wav"))
    raw = [features_of(Utterance("u", "s", "", a), FRONT) for a in audio]
    pair = np.stack([np.full(8, -3.0), np.full(8, 2.0)]).astype(np.float32)
    feats = {f"u{u}": normalise(feats_TF, *pair) for u, feats_TF in enumerate(raw)}
    stored = FramesInMemory(feats, {name: np.arange(len(feats_TF)) for name, feats_TF in feats.items()})
    owners = np.zeros(3, np.int32)
    return SpeedChunks(stored, np.array(stored.lengths), audio, FRONT, (1.0,), owners, pair[None])


def noisy(corpus: SpeedChunks, **of: object) -> SpeedChunks:
    return SpeedChunks(**{**vars(corpus), "noise": NoiseSource(Noise(**of), RATE)})


def test_noise_comes_into_the_audio_before_the_analysis(corpus):
    """A chunk of a whole utterance with noise added by hand."""
    chunk = Chunk(1, 0, int(corpus.lengths[1]))
    source, there = noisy(corpus, share=1.0, snr_db=(0.0, 5.0)).draw(chunk, np.random.default_rng(4))
    assert there == chunk
    samples = read_audio(corpus.audio[1], RATE)
    wanted = normalise(analyse(source.added(samples), FRONT), *corpus.pairs[0])
    found = np.empty_like(wanted)
    source.read(1, 0, found)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    np.testing.assert_array_equal(source.targets(1, 3, 9), np.arange(3, 9))
    assert np.abs(found - corpus.stored.feats["u1"]).mean() > 0.01


def test_hardly_any_noise_leaves_the_features_as_they_are(corpus):
    table = ChunkTable(corpus.lengths, 20, 7, 9, 4)
    clean = table.batch(0, corpus.stored)
    batch = table.batch(0, corpus.stored, versions=noisy(corpus, share=1.0, snr_db=(150.0, 150.0)))
    np.testing.assert_allclose(batch.feats, clean.feats, atol=2e-4)
    np.testing.assert_array_equal(batch.targets, clean.targets)


def test_a_minibatch_is_the_same_whenever_it_is_made_and_the_rest_is_as_stored(corpus):
    table, versions = ChunkTable(corpus.lengths, 20, 7, 9, 4), noisy(corpus, share=0.5, snr_db=(0.0, 10.0))
    first = [table.batch(n, corpus.stored, versions=versions) for n in range(6)]
    changed = kept = 0
    for n in reversed(range(6)):
        again, clean = table.batch(n, corpus.stored, versions=versions), table.batch(n, corpus.stored)
        assert (again.feats == first[n].feats).all()
        assert (again.targets == clean.targets).all()
        for mine, plain in zip(again.feats, clean.feats, strict=True):
            changed, kept = changed + int((mine != plain).any()), kept + int((mine == plain).all())
    assert changed > 5
    assert kept > 5


def test_without_noise_speeds_are_drawn_as_ever(corpus):
    table, speeds = ChunkTable(corpus.lengths, 20, 7, 9, 4), {**vars(corpus), "speeds": (0.9, 1.0, 1.1)}
    plain, none = SpeedChunks(**speeds), noisy(SpeedChunks(**speeds), share=0.0)
    drawn = [[versions.draw(c, np.random.default_rng(7))[1] for c in table[0]] for versions in (plain, none)]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"share": 1.5}, "share of the chunks that get noise, 0 to 1"),
        ({"snr_db": (20.0, 5.0)}, r"noise\.snr_db = \(20\.0, 5\.0\)"),
        ({"slope": (0.0, float("nan"))}, r"noise\.slope"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        Noise(**settings)


def test_noise_on_stored_copies_is_refused_and_none_is_stored():
    with pytest.raises(ValueError, match=r"set task\.front\.perturb=on_the_fly"):
        _ = FrontEnd(noise=Noise(0.5)).draws
    assert not FrontEnd().draws
    front = FrontEnd(noise=Noise(0.5, recordings=Path("noise")), perturb="on_the_fly")
    assert front.draws
    assert front.stored == FrontEnd()


@pytest.mark.parametrize(("rate", "channels", "told"), [(44100, 1, "44100 Hz"), (RATE, 2, "2 channels")])
def test_a_recording_that_does_not_fit_is_refused_before_a_chunk_draws_it(tmp_path, rate, channels, told):
    for n in range(9):
        soundfile.write(tmp_path / f"{n}.wav", sound(800), RATE)
    soundfile.write(tmp_path / "x.wav", np.zeros((800, channels)), rate)
    with pytest.raises(CorpusError, match=rf"x\.wav .*{told}"):
        _ = NoiseSource(Noise(1.0, recordings=tmp_path), RATE).files
