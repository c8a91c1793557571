"""Folders in the layouts of published corpora, with noise in place of speech."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile

CHAPTERS = {"84": ("121123", "121550"), "174": ("50561",)}


def noise(path: Path, seconds: float = 0.6, rate_hz: int = 16000, **how: str) -> None:
    """Write a sound file whose content depends on its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(list(path.name.encode()))
    soundfile.write(path, rng.uniform(-0.3, 0.3, int(seconds * rate_hz)), rate_hz, **how)


def librispeech(root: Path, parts: Sequence[str], utterances: int = 3, speakers: int = 2) -> Path:
    """Make LibriSpeech/PART/SPEAKER/CHAPTER with recordings and one file of transcripts; return `root`."""
    for at, part in enumerate(parts):
        for speaker in range(speakers):
            spk, chapter = f"{100 * (at + 1) + speaker}", f"{2000 + speaker}"
            folder = root / "LibriSpeech" / part / spk / chapter
            lines = []
            for n in range(utterances):
                name = f"{spk}-{chapter}-{n:04}"
                noise(folder / f"{name}.flac", 1.2)
                lines.append(f"{name} {('GO ON', 'IT IS A GIRL', 'NO GOOD')[n % 3]}\n")
            (folder / f"{spk}-{chapter}.trans.txt").write_text("".join(lines))
    return root


def yesno(root: Path, count: int = 60) -> Path:
    """Make waves_yesno/*.wav, half of them beginning with 0."""
    for n in range(count):
        said = f"{n % 2}{n:07b}"
        noise(root / "waves_yesno" / f"{'_'.join(said[:8])}.wav", 1.5, 8000)
    (root / "waves_yesno" / "README").write_text("free")
    return root


def an4(root: Path) -> Path:
    """Make lists in an4/etc and NIST SPHERE files in an4/wav, nine speakers for training, one for test."""
    etc = root / "an4" / "etc"
    etc.mkdir(parents=True)
    for split, folder, speakers in (("train", "an4_clstk", "abcdefghi"), ("test", "an4test_clstk", "z")):
        ids, said = [], []
        for speaker in speakers:
            for n, words in enumerate(("GO", "ENTER  SIX")):
                stem = f"an{n}-f{speaker}-b"
                entry = f"{folder}/f{speaker}/{stem}"
                noise(root / "an4" / "wav" / f"{entry}.sph", 1.0, format="NIST", subtype="PCM_16")
                ids.append(f"{entry}\n")
                said.append(f"<s> {words} </s> ({stem})\n" if split == "train" else f"{words} ({stem})\n")
        (etc / f"an4_{split}.fileids").write_text("".join(ids))
        (etc / f"an4_{split}.transcription").write_text("".join(said))
    (etc / "an4.dic").write_text("ENTER EH N T ER\nGO G OW\nSIX S IH K S\n")
    return root


def fsdd(root: Path) -> Path:
    """Make recordings/DIGIT_SPEAKER_REPETITION.wav of three speakers, repetitions 3 to 7."""
    for speaker in ("george", "nicolas", "theo"):
        for digit in range(3):
            for repetition in range(3, 8):
                noise(
                    root / "free-spoken-digit-dataset-1/recordings" / f"{digit}_{speaker}_{repetition}.wav", 0.5, 8000
                )
    return root


def aishell(root: Path) -> Path:
    """Make data_aishell/wav/SPLIT/SPEAKER/*.wav and the file of transcripts."""
    lines = []
    for split, speaker in (("train", "S0002"), ("dev", "S0724"), ("test", "S0764")):
        for n in range(2):
            name = f"BAC009{speaker}W{n:04}"
            noise(root / "data_aishell" / "wav" / split / speaker / f"{name}.wav", 1.0)
            lines.append(f"{name} 而 对 楼市 \uff54 v 成交\n")
    transcripts = root / "data_aishell" / "transcript" / "aishell_transcript_v0.8.txt"
    transcripts.parent.mkdir(parents=True)
    transcripts.write_text("".join(lines), encoding="utf-8")
    return root


def archive(path: Path, root: Path, *names: str) -> bytes:
    """Make a .tar.gz of the files below `root` at `names`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            tar.add(root / name, arcname=name)
    return path.read_bytes()


def hostile(path: Path, **members: bytes | str) -> None:
    """Make a .tar.gz whose members have these contents; a text is the target of a symbolic link."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
