"""Chunks at speeds and with noise drawn on the fly equal those of whole copies made beforehand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from murmur.speech.corpus.corpus import Audio, CorpusError, Utterance
from murmur.speech.features.analysis import LogMel, analyse, features_of, read_audio
from murmur.speech.features.chunks import Chunk, ChunkTable, FramesInMemory, speed_copy
from murmur.speech.features.cmvn import normalise, statistics
from murmur.speech.features.speed_and_noise import (
    Added,
    Noise,
    NoiseSource,
    SpeedChunks,
    analyse_stretch,
    frames_at_speed,
    stretch,
)
from murmur.speech.tasks.hybrid.config import FrontEnd
from tests.support.sphere_files import from_mu_law, mu_law, write_sphere

SPEEDS = (0.8, 0.9, 1.0, 1.1, 1.07)
CLOSE = 2e-4  # natural logs; the filters of a stretch and of the whole differ by rounding


def recorded(folder: Path, rate: int, samples: int) -> Audio:
    """A segment of `samples`, with other sound before and after it."""
    path = folder / f"{rate}-{samples}.flac"
    sound = np.random.default_rng(samples).uniform(-0.5, 0.5, samples + 900)
    soundfile.write(path, sound, rate)
    return Audio(path, 500 / rate, (500 + samples) / rate)


def whole_copy(audio: Audio, front: LogMel) -> np.ndarray:
    return features_of(Utterance("u", "s", "", audio), front)


@given(st.sampled_from([8000, 11025, 16000]), st.sampled_from(SPEEDS), st.floats(0.04, 0.9), st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_stretch_is_what_the_whole_holds_there(tmp_path, rate, speed, seconds, data):
    audio, front = recorded(tmp_path, rate, int(seconds * rate)), LogMel(rate_hz=rate, bins=8, speed=speed)
    wanted = whole_copy(audio, front)
    assert frames_at_speed(audio, front) == len(wanted)
    first = data.draw(st.integers(0, len(wanted) - 1))
    last = data.draw(st.integers(first + 1, len(wanted)))
    np.testing.assert_allclose(analyse_stretch(audio, front, first, last), wanted[first:last], atol=CLOSE)


@pytest.mark.parametrize("speed", SPEEDS)
def test_one_side_of_a_call_at_8_khz(tmp_path, speed):
    rng = np.random.default_rng(3)
    sides = [0.3 * rng.uniform(-1, 1, 9000) for _ in range(2)]
    write_sphere(tmp_path / "call.sph", *sides)
    front = LogMel(rate_hz=8000, bins=8, speed=speed)
    audio = Audio(tmp_path / "call.sph", 0.125, 1.0, channel=1)
    wanted = analyse(from_mu_law(mu_law(sides[1]))[1000:8000], front)
    np.testing.assert_array_equal(whole_copy(audio, front), wanted)
    assert frames_at_speed(audio, front) == len(wanted)
    np.testing.assert_allclose(analyse_stretch(audio, front, 20, 50), wanted[20:50], atol=CLOSE)


@pytest.fixture
def corpus(tmp_path):
    """Five utterances at speed 1, normalised by two speakers, their audio, and the statistics."""
    front = LogMel(rate_hz=8000, bins=8)
    audio = [recorded(tmp_path, 8000, samples) for samples in (1700, 5000, 7900, 3333, 6000)]
    raw = [whole_copy(a, front) for a in audio]
    owners = np.array([0, 1, 0, 1, 0], np.int32)
    pairs = np.stack([statistics(raw[u] for u in np.flatnonzero(owners == g)) for g in (0, 1)])
    rng = np.random.default_rng(0)
    feats = {f"u{u}": normalise(feats_TF, *pairs[owners[u]]) for u, feats_TF in enumerate(raw)}
    stored = FramesInMemory(feats, {name: rng.integers(40, size=len(feats_TF)) for name, feats_TF in feats.items()})
    return SpeedChunks(stored, np.array(stored.lengths), audio, front, SPEEDS, owners, pairs)


def at(corpus: SpeedChunks, speed: float) -> FramesInMemory:
    """The whole corpus at one speed, made like stored copies."""
    copies = []
    for u, name in enumerate(corpus.stored.names):
        raw = whole_copy(corpus.audio[u], LogMel(rate_hz=8000, bins=8, speed=speed))
        feats = normalise(raw, *corpus.pairs[corpus.owners[u]])
        copies.append(speed_copy(name, speed, feats, corpus.stored.labels[name]))
    return FramesInMemory({c.name: c.feats for c in copies}, {c.name: c.targets for c in copies})


@pytest.mark.parametrize("speed", SPEEDS)
def test_chunks_at_one_speed_are_those_of_copies_and_cover_them(corpus, speed):
    single = SpeedChunks(**{**vars(corpus), "speeds": (speed,)})
    copies, rng = at(corpus, speed), np.random.default_rng(0)
    table = ChunkTable(corpus.lengths, 20, 7, 9, 4)
    seen = [np.zeros(length, int) for length in copies.lengths]
    for chunk in table.cut(np.arange(table.chunks)):
        source, there = single(chunk, rng)
        assert there.utterance == chunk.utterance
        seen[chunk.utterance][there.first : there.last] += 1
        mine, wanted = np.empty((40, 8), np.float32), np.empty((40, 8), np.float32)
        source.read(there.utterance, there.first - 7, mine)
        copies.read(there.utterance, there.first - 7, wanted)
        np.testing.assert_allclose(mine, wanted, atol=CLOSE if speed != 1.0 else 0)
        labels = (frames.targets(there.utterance, there.first, there.last) for frames in (source, copies))
        np.testing.assert_array_equal(*labels)
    assert all((count == 1).all() for count in seen)


def test_minibatches_draw_all_speeds_and_keep_the_rest(corpus):
    table = ChunkTable(corpus.lengths, 20, 7, 9, 4)
    drawn = set()
    for n in range(3 * table.per_epoch):
        plain, batch = table.batch(n, corpus.stored), table.batch(n, corpus.stored, versions=corpus)
        again = table.batch(n, corpus.stored, versions=corpus)
        assert (batch.feats == again.feats).all()
        assert (batch.targets == again.targets).all()
        rng = np.random.default_rng([table.seed, n, 2])
        for row, chunk in enumerate(table[n]):
            source, there = corpus(chunk, rng)
            assert int((batch.targets[row] >= 0).sum()) == there.last - there.first
            drawn.add(getattr(source, "front", corpus.front).speed)
            if source is corpus.stored:  # bit-identical to the stored frames
                assert there == chunk
                width = min(batch.feats.shape[1], plain.feats.shape[1])
                assert (batch.feats[row, :width] == plain.feats[row, :width]).all()
    assert drawn == set(SPEEDS)


def test_a_copy_too_short_to_be_analysed_stays_at_speed_1(tmp_path):
    front = LogMel(rate_hz=8000, bins=8)
    audio = recorded(tmp_path, 8000, 210)  # 26 ms; at speed 1.1 shorter than a window of 25
    stored = FramesInMemory({"u": whole_copy(audio, front)}, {"u": np.zeros(3, int)})
    none = np.empty(0, np.int32), np.empty((0, 2, 8), np.float32)
    short = SpeedChunks(stored, np.array([3]), [audio], front, (1.1,), *none)
    assert short(Chunk(0, 0, 3), np.random.default_rng(0)) == (stored, Chunk(0, 0, 3))


def test_audio_that_is_gone_is_named(corpus):
    corpus.audio[1].path.unlink()
    with pytest.raises(CorpusError, match=r"8000-5000\.flac cannot be read"):
        ChunkTable(corpus.lengths, 20, size=99).batch(0, corpus.stored, versions=corpus)


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
def speech(tmp_path):
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


def noisy(speech: SpeedChunks, **of: object) -> SpeedChunks:
    return SpeedChunks(**{**vars(speech), "noise": NoiseSource(Noise(**of), RATE)})


def test_noise_comes_into_the_audio_before_the_analysis(speech):
    """A chunk of a whole utterance with noise added by hand."""
    chunk = Chunk(1, 0, int(speech.lengths[1]))
    source, there = noisy(speech, share=1.0, snr_db=(0.0, 5.0))(chunk, np.random.default_rng(4))
    assert there == chunk
    samples = read_audio(speech.audio[1], RATE)
    wanted = normalise(analyse(source.added(samples), FRONT), *speech.pairs[0])
    found = np.empty_like(wanted)
    source.read(1, 0, found)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    np.testing.assert_array_equal(source.targets(1, 3, 9), np.arange(3, 9))
    assert np.abs(found - speech.stored.feats["u1"]).mean() > 0.01


def test_hardly_any_noise_leaves_the_features_as_they_are(speech):
    table = ChunkTable(speech.lengths, 20, 7, 9, 4)
    clean = table.batch(0, speech.stored)
    batch = table.batch(0, speech.stored, versions=noisy(speech, share=1.0, snr_db=(150.0, 150.0)))
    np.testing.assert_allclose(batch.feats, clean.feats, atol=2e-4)
    np.testing.assert_array_equal(batch.targets, clean.targets)


def test_a_minibatch_is_the_same_whenever_it_is_made_and_the_rest_is_as_stored(speech):
    table, versions = ChunkTable(speech.lengths, 20, 7, 9, 4), noisy(speech, share=0.5, snr_db=(0.0, 10.0))
    first = [table.batch(n, speech.stored, versions=versions) for n in range(6)]
    changed = kept = 0
    for n in reversed(range(6)):
        again, clean = table.batch(n, speech.stored, versions=versions), table.batch(n, speech.stored)
        assert (again.feats == first[n].feats).all()
        assert (again.targets == clean.targets).all()
        for mine, plain in zip(again.feats, clean.feats, strict=True):
            changed, kept = changed + int((mine != plain).any()), kept + int((mine == plain).all())
    assert changed > 5
    assert kept > 5


def test_without_noise_speeds_are_drawn_as_ever(speech):
    table, speeds = ChunkTable(speech.lengths, 20, 7, 9, 4), {**vars(speech), "speeds": (0.9, 1.0, 1.1)}
    plain, none = SpeedChunks(**speeds), noisy(SpeedChunks(**speeds), share=0.0)
    drawn = [[versions(c, np.random.default_rng(7))[1] for c in table[0]] for versions in (plain, none)]
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
