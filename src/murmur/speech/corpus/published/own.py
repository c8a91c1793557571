"""The user's recordings: SPEAKER/NAME.wav (or .flac, ...) with NAME.txt beside each, and no deeper folders."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import chain
from pathlib import Path

import soundfile

from murmur.core.counted import counted
from murmur.speech.corpus.corpus import Audio, Corpus, CorpusError, Problem, Utterance
from murmur.speech.corpus.file_content import nfc, text_of
from murmur.speech.corpus.published.readers import Read, holding, measured

DEV_EVERY = 8  # speaker; a separate split keeps its words out of a language model of data/train
SOUNDS = {name.lower() for name in soundfile.available_formats()} | {"oga", "opus", "sph", "aif", "aifc", "wave"}
OTHER_SOUNDS = {"3gp", "aac", "amr", "m4a", "m4b", "mka", "mkv", "mov", "mp4", "webm", "wma"}
SPLITS: Mapping[str, tuple[str, ...]] = {  # names of the folder of each split, the usual one first
    "train": ("train", "training"),
    "dev": ("dev", "valid", "validation", "val", "development"),
    "test": ("test", "eval", "evaluation"),
}


def read_own(folder: Path, _parts: tuple[str, ...], jobs: int) -> Read:
    """One `Corpus` per split of the user's recordings.

    Folders train, dev and test above the speakers are the splits; valid, validation or val beside train is dev.
    Recordings elsewhere are outside. Without such folders the last tenth of the speakers in byte order, at least one,
    is test, and every eighth of the others is dev.

    Raises:
        CorpusError: no recording, fewer than two speakers to split, or two names that give one identifier.
    """
    places = _split_folders(folder)
    if places:
        splits = {split: _split(place) for split, place in places.items()}
        _check_speakers(chain.from_iterable(corpus.utterances for corpus in splits.values()))
        names = ", ".join(place.name for place in places.values())
        outside = _outside(folder, set(places.values()), f"outside of the folders {names}")
        return replace(measured(splits, jobs, {}), outside=outside)
    place = holding(folder, "wav", lambda at: any(at.glob("*/*.txt")), "SPEAKER/NAME.txt beside recordings")
    outside = () if place == folder else _outside(folder, {place}, f"outside of {place}")
    whole = _split(place)
    speakers = sorted(set(whole.speakers.values()), key=str.encode)
    if len(speakers) < 2:
        raise CorpusError(
            f"{folder} has {counted(len(speakers), 'speaker')}. Without folders of splits the last tenth of the"
            f" speakers, at least one, is test, and of the others every {DEV_EVERY}th is dev, so {DEV_EVERY + 1} are"
            " needed. Add speakers, or make folders train, dev and test with SPEAKER/NAME.wav in each; a speaker may be"
            " in all of them, and the error rate is then of known voices only"
        )
    first = len(speakers) - max(1, len(speakers) // 10)
    held_out = {"dev": set(speakers[:first][DEV_EVERY - 1 :: DEV_EVERY]), "test": set(speakers[first:])}
    parts = {part: _of_speakers(whole, theirs) for part, theirs in held_out.items() if theirs}
    elsewhere = held_out["dev"] | held_out["test"]
    train = _of_speakers(whole, {_speaker(Path(p.where)) for p in whole.problems}.union(speakers) - elsewhere)
    return replace(measured({"train": train, **parts}, jobs, {}), outside=outside)


def _split_folders(folder: Path) -> dict[str, Path]:
    """The folder of each split. Other names than train, dev and test count beside a split, for folders of speakers."""
    found = {}
    for split, (usual, *others) in SPLITS.items():
        of_speakers = (folder / name for name in others if (folder / name).is_dir() and not _sounds(folder / name, "*"))
        place = folder / usual if (folder / usual).is_dir() else next(of_speakers, None)
        if place is not None:
            found[split] = place
    usual_names = any(place.name == split for split, place in found.items())
    return found if usual_names or "train" in found else {}


def _sounds(folder: Path, pattern: str) -> list[Path]:
    return sorted(p for p in folder.glob(pattern) if p.suffix.lower().lstrip(".") in SOUNDS and p.is_file())


def _outside(folder: Path, inside: AbstractSet[Path], why: str) -> tuple[Problem, ...]:
    """Recordings in none of some folders."""
    there = (path for path in _sounds(folder, "**/*") if inside.isdisjoint(path.parents))
    return tuple(Problem(_shown(path.relative_to(folder)), _shown(path), why) for path in there)


def _of_speakers(whole: Corpus, speakers: AbstractSet[str]) -> Corpus:
    problems = tuple(problem for problem in whole.problems if _speaker(Path(problem.where)) in speakers)
    return Corpus(whole.subset(lambda u: u.speaker in speakers).utterances, problems)


def _speaker(path: Path) -> str:
    return _identifier(path.parent.name)


def _identifier(name: str) -> str:
    """A name of files as an identifier of Kaldi's tables: NFC, without white space."""
    return re.sub(r"\s", "_", nfc(os.fsencode(name).decode("utf-8", "replace")))


def _name(path: Path) -> str:
    return _identifier(f"{path.parent.name}-{path.stem}")


def _split(folder: Path) -> Corpus:
    sounds = _sounds(folder, "*/*")
    utterances, problems = [], list(_unusable(folder, sounds))
    for path in sounds:
        if not _can_be_listed(path):
            continue
        text = path.with_suffix(".txt")
        try:
            utterances.append(Utterance(_name(path), _speaker(path), text_of(text), Audio(path.absolute())))
        except FileNotFoundError:
            problems.append(Problem(_name(path), str(path), f"{text.name} is missing beside it"))
        except CorpusError as error:
            problems.append(Problem(_name(path), str(text), f"it {str(error).removeprefix(str(text)).lstrip()}"))
    _check_names(utterances)
    _check_speakers(utterances)
    return Corpus(tuple(utterances), tuple(problems))


def _can_be_listed(path: Path) -> bool:
    """True if a name can stand on a line of wav.scp."""
    return "\n" not in str(path) and _shown(path) == str(path)


def _shown(path: Path) -> str:
    """A name as UTF-8: other bytes are written as escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _unusable(folder: Path, sounds: list[Path]) -> Iterator[Problem]:
    """Problems of files that are no recording with a transcript in the folder of a speaker."""
    for path in sounds:
        if not _can_be_listed(path):
            yield Problem(_name(path), _shown(path), "its name is not UTF-8, or has a line break: rename it")
    others = sorted(p for p in folder.glob("*/*") if p.suffix.lower().lstrip(".") in OTHER_SOUNDS)
    for path in others:
        yield Problem(_name(path), str(path), f"{path.suffix} cannot be read: convert it (ffmpeg -i FILE NAME.flac)")
    stems = {path.with_suffix("") for path in (*sounds, *others)}
    for text in sorted(folder.glob("*/*.txt")):
        if text.with_suffix("") not in stems:
            yield Problem(_name(text), str(text), "there is no recording beside it")
    for path in _sounds(folder, "*/*/**/*"):
        name = _identifier("-".join(path.relative_to(folder).with_suffix("").parts))
        yield Problem(name, str(path), "it is in a folder below that of its speaker: move it up")
    for path in _sounds(folder, "*"):
        yield Problem(_identifier(path.stem), str(path), "it is in no folder of a speaker: move it down")


def _check_names(utterances: Iterable[Utterance]) -> None:
    """Refuse two recordings with one identifier."""
    first: dict[str, Path] = {}
    for utterance in utterances:
        path = _path(utterance)
        if first.setdefault(utterance.id, path) != path:
            both = f"{first[utterance.id]} and {path}"
            raise CorpusError(f"{both} would both be utterance {utterance.id!r}: rename or remove one")


def _check_speakers(utterances: Iterable[Utterance]) -> None:
    """Refuse two names of folders that give one speaker; a folder of the same name in two splits is one speaker."""
    first: dict[str, Path] = {}
    for utterance in utterances:
        folder = _path(utterance).parent
        other = first.setdefault(utterance.speaker, folder)
        beside = other != folder and other.parent == folder.parent
        if beside or nfc(other.name) != nfc(folder.name):
            raise CorpusError(f"{other} and {folder} would both be speaker {utterance.speaker!r}: rename or join them")


def _path(utterance: Utterance) -> Path:
    assert utterance.audio is not None  # all are made from recordings
    return utterance.audio.path
