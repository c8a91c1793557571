"""Published corpora, laid out like the originals from real recordings, give the same sets as independent code."""

from __future__ import annotations

from pathlib import Path

import pytest
import soundfile

from murmur.speech.corpus.kaldi_dir import read_data_dir, read_table
from murmur.speech.corpus.published.catalogue import CORPORA
from murmur.speech.corpus.published.dataset_writer import write_set

RECORDED = Path(__file__).resolve().parents[3] / "../shared/corpora"
pytestmark = pytest.mark.skipif(not RECORDED.is_dir(), reason="the recorded corpora are not beside this checkout")


def same(name: str, original: Path, out: Path, folder: str, splits: dict[str, str]) -> None:
    """Check that `original` has the texts and speakers of `folder`, {split here: split there}."""
    corpus = CORPORA[name]
    write_set(out, name, corpus, corpus.read(original, tuple(part.name for part in corpus.parts), 2))
    for here, there in splits.items():
        ours, theirs = read_data_dir(out / "data" / here), read_data_dir(RECORDED / folder / "data" / there)
        assert ours.texts == theirs.texts
        assert ours.speakers == theirs.speakers
        mine, yours = (read_table(at / "utt2dur") for at in (out / "data" / here, RECORDED / folder / "data" / there))
        assert all(abs(float(mine[u]) - float(yours[u])) < 0.006 for u in ours.texts)


def converted(source: Path, target: Path, **how: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    samples, rate_hz = soundfile.read(source, dtype="int16")
    soundfile.write(target, samples, rate_hz, **how)


def test_yesno(tmp_path: Path) -> None:
    for flac in (RECORDED / "yesno/wav").glob("*.flac"):
        converted(flac, tmp_path / "from/waves_yesno" / f"{flac.stem}.wav")
    same("yesno", tmp_path / "from", tmp_path / "set", "yesno", {"train": "train", "test": "test"})
    assert (tmp_path / "set/lexicon.txt").read_text() == (RECORDED / "yesno/lexicon.txt").read_text()


def test_an4(tmp_path: Path) -> None:
    etc = tmp_path / "from/an4/etc"
    etc.mkdir(parents=True)
    for split, folder in (("train", "an4_clstk"), ("test", "an4test_clstk")):
        there = {flac.stem for flac in (RECORDED / "mini_an4/wav").glob("*.flac")}
        listed = (RECORDED / f"an4_mfcc/an4_{split}.fileids").read_text().split()
        said = (RECORDED / f"an4_mfcc/an4_{split}.transcription").read_text().splitlines()
        kept = [(entry, line) for entry, line in zip(listed, said, strict=True) if name_of(entry) in there]
        for entry, _ in kept:
            wav = tmp_path / "from/an4/wav" / f"{entry}.sph"
            converted(RECORDED / "mini_an4/wav" / f"{name_of(entry)}.flac", wav, format="NIST", subtype="PCM_16")
            assert entry.startswith(f"{folder}/")
        (etc / f"an4_{split}.fileids").write_text("".join(f"{entry}\n" for entry, _ in kept))
        (etc / f"an4_{split}.transcription").write_text("".join(f"{line}\n" for _, line in kept))
    same("an4", tmp_path / "from", tmp_path / "set", "mini_an4", {"train": "train", "test": "test"})


def name_of(entry: str) -> str:
    """Name of an utterance, such as fash-an251-fash-b for an4_clstk/fash/an251-fash-b."""
    return "-".join(entry.split("/")[1:])


def test_fsdd(tmp_path: Path) -> None:
    recordings = tmp_path / "from/recordings"
    recordings.mkdir(parents=True)
    for split in ("train_official", "test_official"):
        segments = read_table(RECORDED / "fsdd/data" / split / "segments")
        for name, row in segments.items():
            speaker, digit, repetition = name.rsplit("-", 2)
            recording, start, end = row.split()
            with soundfile.SoundFile(RECORDED / "fsdd/wav" / f"{recording}.flac") as file:
                file.seek(round(float(start) * file.samplerate))
                samples = file.read(round((float(end) - float(start)) * file.samplerate), dtype="int16")
            soundfile.write(recordings / f"{digit}_{speaker}_{int(repetition)}.wav", samples, file.samplerate)
    same("fsdd", tmp_path / "from", tmp_path / "set", "fsdd", {s: s for s in ("train", "dev", "test", "test_official")})


def test_librispeech(tmp_path: Path) -> None:
    for split, part in (("train", "train-clean-5"), ("test", "dev-clean-2")):
        corpus = read_data_dir(RECORDED / "librispeech_mini_s/data" / split)
        for utterance in corpus.utterances:
            speaker, chapter, _ = utterance.id.split("-")
            folder = tmp_path / "from/LibriSpeech" / part / speaker / chapter
            folder.mkdir(parents=True, exist_ok=True)
            assert utterance.audio is not None
            (folder / f"{utterance.id}.flac").symlink_to(utterance.audio.path.resolve())
            with (folder / f"{speaker}-{chapter}.trans.txt").open("a") as transcripts:
                transcripts.write(f"{utterance.id} {utterance.text}\n")
    same(
        "mini-librispeech",
        tmp_path / "from",
        tmp_path / "set",
        "librispeech_mini_s",
        {"train": "train", "test": "test"},
    )
