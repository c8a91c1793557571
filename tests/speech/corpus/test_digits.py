"""The embedded corpus: repeatable bytes, disjoint voices, the documented conditions."""

import os

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.speech.corpus import digits, synth
from murmur.speech.corpus import room_acoustics as room
from murmur.speech.corpus.digits import ACCENTS, LEXICON, TEST_ACCENT, VARIANTS, WORDS, Digits, make_digits, plan
from murmur.speech.corpus.kaldi_dir import read_data_dir

SMALL = Digits(train=6, dev=3, test=4)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    pytest.importorskip("espeakng_loader", reason="the extra synth is not installed")
    return make_digits(tmp_path_factory.mktemp("digits"), SMALL)


def test_the_default_plan_keeps_its_promises():
    lines = plan(Digits())
    everyone = [line for split in lines.values() for line in split]
    assert len({line.voice.variant for line in everyone}) >= 40
    assert len(lines["test"]) >= 400
    assert sum(len(line.words) for line in lines["test"]) >= 2000
    voices = {split: {line.voice.variant for line in of_split} for split, of_split in lines.items()}
    assert not voices["test"] & (voices["train"] | voices["dev"])
    assert not voices["dev"] & voices["train"]
    accents = {split: {line.voice.accent for line in of_split} for split, of_split in lines.items()}
    assert accents["test"] - accents["train"] - accents["dev"] == {TEST_ACCENT}
    assert {w for line in lines["train"] for w in line.words} == set(WORDS)
    assert all(5 <= line.snr_db <= 20 for line in everyone)
    assert 0.15 <= np.mean([line.rt60_seconds > 0 for line in everyone]) <= 0.25
    assert len({line.voice.words_per_minute for line in everyone}) > 50
    assert len({line.voice.pitch for line in everyone}) > 30
    assert len({line.id for line in everyone}) == len(everyone)


def test_the_plan_depends_on_the_seed_and_not_on_the_size():
    assert plan(Digits(seed=1)) == plan(Digits(seed=1))
    assert plan(Digits(seed=1))["train"] != plan(Digits(seed=2))["train"]
    assert plan(Digits(train=9))["train"] == plan(Digits())["train"][:9]
    assert Digits(seed=1).digest() != Digits(seed=2).digest()


def test_the_corpus_is_a_kaldi_directory(made):
    for split, lines in plan(SMALL).items():
        corpus = read_data_dir(made / "data" / split)
        assert corpus.texts == {line.id: " ".join(line.words) for line in lines}
        for utterance in corpus.utterances:
            info = soundfile.info(utterance.audio.path)
            assert (info.samplerate, info.channels, info.subtype) == (16000, 1, "PCM_16")
            assert 0.5 < info.duration < 6
    lexicon = [line.split() for line in (made / "lexicon.txt").read_text().splitlines()]
    assert {row[0] for row in lexicon} == set(LEXICON)


def test_the_bytes_repeat_whatever_the_number_of_processes(made, tmp_path, monkeypatch):
    again = make_digits(tmp_path, SMALL, processes=1)
    files = sorted(path.relative_to(made) for path in made.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(again) for path in again.rglob("*") if path.is_file())
    assert len(files) == 13 + 3 * 3 + 1
    assert all((made / file).read_bytes() == (again / file).read_bytes() for file in files)
    monkeypatch.setattr(digits, "render", None)  # existing files are found, not made
    assert make_digits(tmp_path, SMALL) == again


def test_a_failed_shard_says_why_and_leaves_no_corpus(tmp_path, monkeypatch):
    pytest.importorskip("espeakng_loader", reason="the extra synth is not installed")
    monkeypatch.setitem(VARIANTS, "train", ("nobody\0",))
    monkeypatch.setattr(digits, "ACCENTS", ("xx-nowhere",))
    with pytest.raises(synth.SynthesisError, match="no voice 'xx-nowhere"):
        make_digits(tmp_path, SMALL)
    assert not (tmp_path / f"digits-{SMALL.digest()}").exists()


def test_all_voices_are_known_to_espeak():
    synth = pytest.importorskip("murmur.speech.corpus.synth")
    pytest.importorskip("espeakng_loader", reason="the extra synth is not installed")
    engine = synth.Synthesizer()
    for accent in (*ACCENTS, TEST_ACCENT):
        assert len(engine.say("one", synth.Voice(accent, "f2"))) > 2000
    for variant in {v for names in VARIANTS.values() for v in names}:
        assert np.abs(engine.say("one", synth.Voice("en", variant))).max() > 300
    with pytest.raises(synth.SynthesisError, match="no voice 'zz"):
        engine.say("one", synth.Voice("zz", "f2"))


@given(st.floats(0, 2), st.floats(-5, 30), st.integers(0, 99))
@settings(deadline=None)
def test_noise_has_the_promised_power(slope, snr_db, seed):
    rng = np.random.default_rng(seed)
    speech = np.sin(np.arange(4000) / 5).astype(np.float32) * 0.1
    noise = room.coloured_noise(4000, slope, rng)
    added = room.add_noise(speech, noise, snr_db).astype(float) - speech
    assert 10 * np.log10(np.mean(speech.astype(float) ** 2) / np.mean(added**2)) == pytest.approx(snr_db, abs=0.1)


def test_noise_colour_is_the_slope_of_its_spectrum():
    for slope in (0.0, 1.0, 2.0):
        power = np.abs(np.fft.rfft(room.coloured_noise(1 << 16, slope, np.random.default_rng(0)))) ** 2
        frequency = np.arange(64, 16384)
        fitted = np.polyfit(np.log(frequency), np.log(power[64:16384]), 1)[0]
        assert fitted == pytest.approx(-slope, abs=0.05)


def test_reverberation_decays_by_sixty_decibels_in_rt60():
    click = np.zeros(16000, np.float32)
    click[0] = 1.0
    wet = room.reverberate(click, 16000, 0.5, np.random.default_rng(0)).astype(float)
    assert wet[0] == pytest.approx(1.0)
    energy_db = 10 * np.log10(np.add.reduceat(wet[100:8000] ** 2, np.arange(0, 7900, 500)))
    assert np.polyfit(np.arange(len(energy_db)) * 500 / 16000, energy_db, 1)[0] == pytest.approx(-120, abs=12)
    assert np.max(np.abs(room.at_level(wet, -6.0))) == pytest.approx(10 ** (-6 / 20), rel=1e-5)


@pytest.mark.parametrize("umask", [0o022, 0o007])
def test_the_folder_has_the_permissions_of_any_new_folder(umask, tmp_path, monkeypatch):
    monkeypatch.setattr(digits, "_speak", lambda scratch, *_: (scratch / "lexicon.txt").touch())
    before = os.umask(umask)
    try:
        made = make_digits(tmp_path, SMALL)
    finally:
        os.umask(before)
    assert made.stat().st_mode & 0o777 == 0o777 & ~umask
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".{made.name}.lock", made.name]
