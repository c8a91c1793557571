"""A user's recordings: folders of splits, what lies beside them, names that give one identifier."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.corpus.published.own import read_own
from murmur.speech.corpus.published.readers import Read


def recordings(root: Path, names: Iterable[str]) -> Path:
    """Half a second of noise and a transcript for each name."""
    samples = np.random.default_rng(0).normal(0, 0.1, 4000)
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, samples, 8000)
        path.with_suffix(".txt").write_text("yes")
    return root


def read(root: Path, names: Iterable[str]) -> Read:
    return read_own(recordings(root, names), (), 1)


def sizes(found: Read) -> dict[str, int]:
    return {split: len(corpus) for split, corpus in found.splits.items()}


@pytest.mark.parametrize("name", ["valid", "validation", "val", "dev", "development"])
def test_a_folder_for_validation_beside_train_is_dev(name: str, tmp_path: Path) -> None:
    found = read(tmp_path, ["train/a/1.wav", "train/b/1.wav", f"{name}/c/1.wav", "test/d/1.wav"])
    assert sizes(found) == {"train": 2, "dev": 1, "test": 1}
    assert found.outside == ()


def test_recordings_beside_the_splits_are_outside(tmp_path: Path) -> None:
    beside = ["other/x/1.wav", "other/x/deep/2.wav", "spk07/1.wav", "0.wav", "validation/e/1.flac", "val/1.wav"]
    found = read(tmp_path, ["train/a/1.wav", "dev/c/1.wav", "test/d/1.wav", *beside])
    assert sizes(found) == {"train": 1, "dev": 1, "test": 1}
    assert {problem.utterance for problem in found.outside} == set(beside)
    assert {problem.what for problem in found.outside} == {"outside of the folders train, dev, test"}


def test_folders_of_speakers_are_no_splits(tmp_path: Path) -> None:
    found = read(tmp_path, ["val/1.wav", "eval/1.wav", "bob/1.wav"])
    assert sizes(found) == {"train": 2, "test": 1}
    found = read(tmp_path / "x", ["train/a/1.wav", "test/b/1.wav", "val/1.wav"])  # val may be a speaker
    assert [problem.utterance for problem in found.outside] == ["val/1.wav"]


def test_recordings_beside_the_folder_wav_are_outside(tmp_path: Path) -> None:
    found = read(tmp_path, ["wav/a/1.wav", "wav/b/1.wav", "more/c/1.wav"])
    assert sizes(found) == {"train": 1, "test": 1}
    assert [problem.utterance for problem in found.outside] == ["more/c/1.wav"]


@pytest.mark.parametrize(
    ("first", "second", "identifier"),
    [
        ("train/spk/a-x.wav", "train/spk-a/x.wav", "utterance 'spk-a-x'"),
        ("train/spk/x.wav", "train/spk/x.flac", "utterance 'spk-x'"),
        ("train/spk/x.wav", "train/spk/x.WAV", "utterance 'spk-x'"),
        ("train/spk/x 1.wav", "train/spk/x_1.wav", "utterance 'spk-x_1'"),
        ("train/spk/Zo\u00eb.wav", "train/spk/Zoe\u0308.wav", "utterance 'spk-Zo\u00eb'"),
        ("train/spk 1/a.wav", "train/spk_1/b.wav", "speaker 'spk_1'"),
        ("train/Zo\u00eb/a.wav", "train/Zoe\u0308/b.wav", "speaker 'Zo\u00eb'"),
        ("train/spk 1/a.wav", "test/spk_1/b.wav", "speaker 'spk_1'"),
        ("spk\u00a01/a.wav", "spk 1/b.wav", "speaker 'spk_1'"),
    ],
)
def test_names_that_collide_are_refused_with_both(first: str, second: str, identifier: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError) as refused:
        read(
            tmp_path, ["train/o/1.wav", "test/p/1.wav", first, second] if first.startswith("train") else [first, second]
        )
    wanted = {str((tmp_path / name).parent if "speaker" in identifier else tmp_path / name) for name in (first, second)}
    assert all(name in str(refused.value) for name in wanted)
    assert f"would both be {identifier}" in str(refused.value)


def test_a_speaker_of_two_splits_and_names_in_another_case_are_no_collision(tmp_path: Path) -> None:
    found = read(tmp_path, ["train/Anna/1.wav", "train/anna/1.wav", "test/Anna/1.wav", "test/Zo\u00eb/1.wav"])
    assert sizes(found) == {"train": 2, "test": 2}
    assert set(found.splits["train"].speakers.values()) == {"Anna", "anna"}


def test_files_of_other_formats_and_names_that_cannot_be_listed_are_problems(tmp_path: Path) -> None:
    recordings(tmp_path, ["train/a/1.wav", "test/b/1.wav", "train/a/two\nlines.wav"])
    (tmp_path / "train/a/2.m4a").write_bytes(b"x")
    (tmp_path / "train/a/2.txt").write_text("yes")
    (tmp_path / "train/a/3.txt").write_bytes(b"\xff\xfea\0")
    shutil.copy(tmp_path / "train/a/1.wav", tmp_path / "train/a/3.wav")
    shutil.copy(tmp_path / "train/a/1.wav", os.fsencode(tmp_path / "train/a") + b"/\xe9.wav")
    problems = {problem.utterance: problem.what for problem in read_own(tmp_path, (), 1).splits["train"].problems}
    assert problems.keys() == {"a-2", "a-3", "a-two_lines", "a-\ufffd"}
    assert problems["a-2"].startswith(".m4a cannot be read: convert it")
    assert problems["a-3"].startswith("it is UTF-16, not UTF-8")
    assert problems["a-two_lines"] == problems["a-\ufffd"] == "its name is not UTF-8, or has a line break: rename it"
