"""Two-channel SPHERE and WAV files, channels chosen by Kaldi directories and by lhotse manifests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import lhotse
import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from murmur.cli import app
from murmur.speech.corpus.corpus import Audio, Corpus, CorpusError, Utterance
from murmur.speech.corpus.kaldi_dir import read_data_dir
from murmur.speech.corpus.lhotse_cuts import read_cuts
from murmur.speech.corpus.sound_file import sphere_header, unpack_sphere
from murmur.speech.features.analysis import LogMel, analyse, features_of, read_audio, sample_rate_hz
from tests.support.speech_files import write_cuts
from tests.support.sphere_files import RATE, from_mu_law, install_unpacker, mu_law, tone, write_sphere

LEFT, RIGHT = tone(500.0, 2.0), tone(1500.0, 2.0)
SIDES = {"A": LEFT, "B": RIGHT}


def same(read: np.ndarray, wanted: np.ndarray) -> None:
    """Check samples against mu-law's steps, a thirtieth of the sample at most."""
    assert len(read) == len(wanted)
    np.testing.assert_allclose(read, wanted, rtol=1 / 30, atol=1e-3)


@pytest.fixture
def call(tmp_path: Path) -> Path:
    write_sphere(tmp_path / "sph" / "sw02001.sph", LEFT, RIGHT)
    return tmp_path / "sph" / "sw02001.sph"


def data_dir(folder: Path, wav_scp: str, channels: str | None, segments: str | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "wav.scp").write_text(wav_scp)
    segments = segments or "A-1 sw02001-A 0.25 1.5\nB-1 sw02001-B 0.5 -1\n"
    (folder / "segments").write_text(segments)
    names = [line.split()[0] for line in segments.splitlines()]
    (folder / "text").write_text("".join(f"{name} hello\n" for name in names))
    (folder / "utt2spk").write_text("".join(f"{name} {name[0]}\n" for name in names))
    if channels is not None:
        (folder / "reco2file_and_channel").write_text(channels)
    return folder


def audio_of(corpus: Corpus) -> dict[str, Audio]:
    return {u.id: u.audio for u in corpus.utterances if u.audio is not None}


def test_the_tables_of_mu_law() -> None:
    every = np.arange(256, dtype=np.uint8)
    again = mu_law(from_mu_law(every) * 32768 / 32767)
    assert (again[every != 0x7F] == every[every != 0x7F]).all()  # 0x7F is minus zero


def test_sphere_is_read_exactly(call: Path) -> None:
    for channel, samples in enumerate((LEFT, RIGHT)):
        read = read_audio(Audio(call, channel=channel), RATE)
        np.testing.assert_array_equal(read, from_mu_law(mu_law(samples)))
        same(read, samples)
    header = sphere_header(call)
    assert (header.channels, header.samples, header.rate_hz, header.coding) == (2, 16000, RATE, "ulaw")
    with pytest.raises(CorpusError, match=r"sw02001\.sph has no channel 3, it has 2"):
        read_audio(Audio(call, channel=2), RATE)
    call.write_bytes(call.read_bytes()[:9000])
    with pytest.raises(CorpusError, match=r"sw02001\.sph is shorter than its header says"):
        read_audio(Audio(call, channel=0), RATE)


@pytest.mark.parametrize("names", ["AB", "12"])
@pytest.mark.parametrize("kind", ["sph", "wav"])
def test_kaldis_table_of_channels(call: Path, tmp_path: Path, names: str, kind: str) -> None:
    if kind == "wav":
        soundfile.write(call.with_suffix(".wav"), np.stack([LEFT, RIGHT], 1), RATE)
    scp = "".join(f"sw02001-{side} sph/sw02001.{kind}\n" for side in "AB")
    channels = "".join(f"sw02001-{side} sw02001 {name}\n" for side, name in zip("AB", names, strict=True))
    corpus = read_data_dir(data_dir(tmp_path / "data" / "train", scp, channels))
    found = audio_of(corpus)
    same(read_audio(found["A-1"], RATE), LEFT[2000:12000])
    same(read_audio(found["B-1"], RATE), RIGHT[4000:])
    assert [found[u].side for u in ("A-1", "B-1")] == [("sw02001", names[0]), ("sw02001", names[1])]
    assert sample_rate_hz(corpus) == RATE


def test_a_side_that_was_extracted_needs_no_channel(tmp_path: Path) -> None:
    for side, samples in SIDES.items():
        soundfile.write(tmp_path / f"{side}.wav", samples, RATE)
    scp = "".join(f"sw02001-{side} {tmp_path / side}.wav\n" for side in "AB")
    channels = "".join(f"sw02001-{side} sw02001 {side}\n" for side in "AB")
    found = audio_of(read_data_dir(data_dir(tmp_path / "data", scp, channels)))
    same(read_audio(found["B-1"], RATE), RIGHT[4000:])
    assert found["B-1"].side == ("sw02001", "B")
    scp = "".join(f"sw02001-{side} cat {tmp_path / side}.wav |\n" for side in "AB")
    found = audio_of(read_data_dir(data_dir(tmp_path / "commands", scp, channels), commands_allowed=True))
    same(read_audio(found["B-1"], RATE), RIGHT[4000:])


def test_two_channels_without_a_choice_are_an_error_with_a_remedy(call: Path, tmp_path: Path) -> None:
    scp = "".join(f"sw02001-{side} {call}\n" for side in "AB")
    folder = data_dir(tmp_path / "data", scp, None)
    with pytest.raises(CorpusError, match=r"sw02001\.sph has 2 channels and none is chosen.*reco2file_and_channel"):
        features_of(read_data_dir(folder).utterances[0], LogMel(RATE))
    for row in ("sw02001-A sw02001", "sw02001-A sw02001 C", "sw02001-A sw 02001 A"):
        data_dir(folder, scp, f"{row}\n")
        with pytest.raises(CorpusError, match=r"reco2file_and_channel:1: 'sw02001-A' has .*; it takes FILE CHANNEL"):
            read_data_dir(folder)


def test_the_command_prepares_a_directory_with_two_channels(call: Path, tmp_path: Path) -> None:
    scp = "".join(f"sw02001-{side} {call}\n" for side in "AB")
    channels = "".join(f"sw02001-{side} sw02001 {side}\n" for side in "AB")
    folder = data_dir(tmp_path / "data", scp, channels)
    done = CliRunner().invoke(app, ["prepare", str(folder), "--bins", "12", "--out", str(tmp_path / "cache")])
    assert done.exit_code == 0, done.output
    for utterance, first, end in zip(read_data_dir(folder).utterances, (2000, 4000), (12000, 16000), strict=True):
        decoded = from_mu_law(mu_law(SIDES[utterance.speaker]))[first:end]
        np.testing.assert_array_equal(features_of(utterance, LogMel(RATE, 12)), analyse(decoded, LogMel(RATE, 12)))
    (folder / "reco2file_and_channel").unlink()
    done = CliRunner().invoke(app, ["prepare", str(folder), "--bins", "12", "--out", str(tmp_path / "other")])
    assert done.exit_code == 1
    assert "sw02001.sph has 2 channels and none is chosen" in done.output


def test_the_channel_counts_in_the_digest_and_its_name_does_not(call: Path) -> None:
    def digest(audio: Audio) -> str:
        return Corpus((Utterance("a", "s", "hello", audio),)).digest()

    audio = Audio(call, channel=0)
    assert digest(audio) == digest(replace(audio, side=("sw02001", "A")))
    assert len({digest(audio), digest(replace(audio, channel=1)), digest(replace(audio, channel=None))}) == 3


def supervision(name: str, channel: int | list[int]) -> lhotse.SupervisionSegment:
    return lhotse.SupervisionSegment(name, "sw02001", 0.25, 1.0, channel=channel, text="hello", speaker="s")


def cuts(call: Path, manifest: Path, *made: lhotse.SupervisionSegment, mono: int | None = None) -> Path:
    with lhotse.audio_backend("LibsndfileBackend"):
        recording = lhotse.Recording.from_file(call)
    kind, channel = (lhotse.MultiCut, [0, 1]) if mono is None else (lhotse.MonoCut, mono)
    cut = kind("cut", 0.5, 1.5, channel, supervisions=list(made), recording=recording)  # type: ignore[arg-type]
    lhotse.CutSet.from_cuts([cut]).to_file(manifest)
    return manifest


def test_lhotses_cuts_of_one_and_of_both_channels(call: Path, tmp_path: Path) -> None:
    both = read_cuts(cuts(call, tmp_path / "m.jsonl", supervision("a", 0), supervision("b", [1])))
    for name, samples, side in (("a", LEFT, "A"), ("b", RIGHT, "B")):
        same(read_audio(audio_of(both)[name], RATE), samples[6000:14000])
        assert audio_of(both)[name].side == ("sw02001", side)
    one = read_cuts(cuts(call, tmp_path / "o.jsonl", supervision("b", 1), mono=1))
    same(read_audio(audio_of(one)["b"], RATE), RIGHT[6000:14000])
    with lhotse.audio_backend("LibsndfileBackend"):
        write_cuts(both, tmp_path / "again.jsonl")
    again = audio_of(read_cuts(tmp_path / "again.jsonl"))
    same(read_audio(again["b"], RATE), RIGHT[6000:14000])


@pytest.mark.parametrize(
    ("channel", "mono", "what"),
    [
        ([0, 1], None, "supervision for each channel"),
        (0, 1, "its cut of channel 1"),
        (2, None, "none of its recording"),
    ],
)
def test_lhotses_channels_that_do_not_fit(
    call: Path, tmp_path: Path, channel: int | list[int], mono: int | None, what: str
) -> None:
    with pytest.raises(CorpusError, match=what):
        read_cuts(cuts(call, tmp_path / "m.jsonl", supervision("a", channel), mono=mono))


def test_lhotses_recordings_of_a_file_for_each_side(tmp_path: Path) -> None:
    for side, samples in SIDES.items():
        soundfile.write(tmp_path / f"{side}.wav", samples, RATE)
    files = [lhotse.AudioSource("file", [n], str(tmp_path / f"{side}.wav")) for n, side in enumerate("AB")]
    recording = lhotse.Recording("sw02001", files, RATE, 16000, 2.0)
    cut = lhotse.MultiCut("cut", 0.0, 2.0, [0, 1], supervisions=[supervision("b", 1)], recording=recording)
    lhotse.CutSet.from_cuts([cut]).to_file(tmp_path / "m.jsonl")
    same(read_audio(audio_of(read_cuts(tmp_path / "m.jsonl"))["b"], RATE), RIGHT[2000:10000])


def test_shortened_samples_need_sph2pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "a b.sph"
    write_sphere(packed, LEFT, RIGHT, shortened=True)
    with pytest.raises(CorpusError, match=r"a b\.sph cannot be read: .*shorten.*sph2pipe"):
        read_audio(Audio(packed, channel=0), RATE)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CorpusError, match=r"a b\.sph: .*install-sph2pipe"):
        unpack_sphere(packed, tmp_path / "a.wav")
    monkeypatch.setenv("PATH", str(install_unpacker(tmp_path / "bin")))
    unpack_sphere(packed, tmp_path / "a.wav")
    np.testing.assert_array_equal(read_audio(Audio(tmp_path / "a.wav", channel=1), RATE), from_mu_law(mu_law(RIGHT)))
    (tmp_path / "bin" / "sph2pipe").write_text("#!/bin/sh\necho no such codec >&2\nexit 3\n")
    with pytest.raises(CorpusError, match="sph2pipe failed with status 3: no such codec"):
        unpack_sphere(packed, tmp_path / "b.wav")
    assert not (tmp_path / "b.wav").exists()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"RIFF", "no NIST SPHERE file"),
        (b"NIST_1A\n   1024\nsample_rate -i 8000\nend_head\n", "damaged SPHERE header"),
        (b"NIST_1A\n   1024\nsample_rate -i 8k\nsample_count -i 3\nend_head\n", "damaged SPHERE header"),
        (b"NIST_1A\n   1024\nsample_rate -i 0\nsample_count -i 3\nend_head\n", "without samples, channels or rate"),
    ],
)
def test_damaged_headers(content: bytes, what: str, tmp_path: Path) -> None:
    (tmp_path / "x.sph").write_bytes(content)
    with pytest.raises(CorpusError, match=what):
        sphere_header(tmp_path / "x.sph")
