"""Kaldi data directories: text, utt2spk, wav.scp, segments, reco2file_and_channel, feats.scp, alignments in ali.*.gz.

Format: https://kaldi-asr.org/doc/data_prep.html. Paths that are not absolute are looked for beside the directory's
own files first, then in its parent and its grandparent (a set with `data/<split>/` and `wav/` beside each other).
"""

from __future__ import annotations

import gzip
import math
import shutil
import tempfile
import unicodedata
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import kaldi_native_io as kio
import numpy as np
import soundfile

from murmur.core.whole_files import write_text_whole
from murmur.speech.corpus.corpus import (
    Audio,
    Corpus,
    CorpusError,
    Problem,
    StoredFeatures,
    Utterance,
    check_losses,
    normal_text,
)
from murmur.speech.corpus.file_content import columns, making_sense_of, nfc, written_lines
from murmur.speech.corpus.remote import exists, is_remote, location, sound_source
from murmur.speech.corpus.sound_file import rate_and_channels

CHANNELS = {"A": 0, "B": 1, "1": 0, "2": 1}


class _Row(NamedTuple):
    """A line of a table: file and number, and its text behind the key."""

    place: str
    value: str


def read_data_dir(folder: Path, *, commands_allowed: bool = False) -> Corpus:
    """The utterances of one Kaldi data directory.

    Needs `text`, and `wav.scp` (with `segments` if recordings hold several utterances) or `feats.scp`. A recording
    whose file has several channels needs a line in `reco2file_and_channel` (RECORDING FILE CHANNEL, the channel as A, B
    or 1, 2), which also names it in time-marked files. Without `utt2spk` every utterance is its own speaker, as in
    Kaldi. Utterances without a transcript, without audio or features, or with a missing file become problems.

    Args:
        folder: the directory.
        commands_allowed: accept wav.scp entries that end in `|`. They are run by a shell, so allow them only for
                directories that you wrote or read yourself.

    Raises:
        CorpusError: a file is malformed or missing, utt2spk lacks an utterance, an entry is a command, or more than 1 %
            of the utterances is lost.
    """
    folder = location(folder)
    check_data_dir(folder)
    texts = read_table(folder / "text")
    if not texts:
        raise CorpusError(f"{folder / 'text'} holds no utterance: name a data directory with transcripts")
    speakers = _speakers(folder, texts)
    audio = _audio(folder, commands_allowed)
    features = _stored_features(folder)
    if not audio and not features:
        raise CorpusError(f"{folder}: wav.scp and feats.scp are empty: one must name audio or features")
    utterances, problems = [], []
    for name, text in texts.items():
        utterance = Utterance(name, speakers[name], text, audio.get(name), features.get(name))
        what = _trouble(utterance)
        if what is None:
            utterances.append(utterance)
        else:
            problems.append(Problem(name, str(folder / "text") if not text else str(folder), what))
    without_text = sorted((audio.keys() | features.keys()) - texts.keys(), key=str.encode)
    problems += [Problem(name, str(folder / "text"), "it has no transcript") for name in without_text]
    check_losses(len(utterances), problems)
    return Corpus(tuple(utterances), tuple(problems))


def _speakers(folder: Path, utterances: Iterable[str]) -> dict[str, str]:
    path = folder / "utt2spk"
    if not exists(path):
        return {name: name for name in utterances}
    table = read_pairs(path)
    missing = [name for name in utterances if name not in table]
    if missing:
        raise CorpusError(
            f"{path} has no speaker of {missing[0]!r} ({len(missing)} missing): complete it, or remove it"
        )
    return table


def check_data_dir(folder: Path) -> None:
    """Check that a data directory has the files that it needs, without reading them.

    Raises:
        CorpusError: a file is missing.
    """
    if not _is_file(folder / "text"):
        raise CorpusError(f"{folder} has no file 'text': name a Kaldi data directory, e.g. SET/data/train")
    if not any(_is_file(folder / name) for name in ("wav.scp", "feats.scp")):
        raise CorpusError(f"{folder} has neither wav.scp nor feats.scp: one must name audio or features")


def _is_file(path: Path) -> bool:
    return exists(path) if is_remote(path) else path.is_file()


def read_table(path: Path) -> dict[str, str]:
    """A file of lines `key value...`, in NFC with single spaces; blank lines are skipped.

    Raises:
        CorpusError: not UTF-8, or a duplicate key.
    """
    return {key: normal_text(row.value) for key, row in _read_rows(path).items()}


def read_pairs(path: Path) -> dict[str, str]:
    """A file of lines UTTERANCE SPEAKER.

    Raises:
        CorpusError: not UTF-8, a duplicate key, or a line with more or fewer columns; names the line.
    """
    table = {}
    for key, row in _read_rows(path).items():
        fields = columns(nfc(row.value), row.place)
        if len(fields) != 1:
            raise CorpusError(f"{row.place}: {key!r} has {1 + len(fields)} columns, not two: write UTTERANCE SPEAKER")
        table[key] = fields[0]
    return table


def read_scp(path: Path) -> dict[str, str]:
    """A file of lines `key entry`, such as wav.scp. Entries stay as they are, since they hold names of files."""
    table = _read_rows(path)
    for key, row in table.items():
        if not row.value:
            raise CorpusError(f"{row.place}: {key!r} has no value: complete or remove the line")
    return {key: row.value for key, row in table.items()}


def _read_rows(path: Path) -> dict[str, _Row]:
    """The rest of each line by its first field, which is NFC."""
    table: dict[str, _Row] = {}
    for number, line in enumerate(written_lines(path), 1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        fields = columns(line, place, 2)
        key = nfc(fields[0])
        if key in table:
            raise CorpusError(f"{place}: {key!r} appears twice: remove one line")
        table[key] = _Row(place, fields[1].strip() if len(fields) > 1 else "")
    return table


def write_table(path: Path, table: Mapping[str, str]) -> None:
    """Write lines `key value`, in NFC, in byte order of the keys, so that Kaldi's tools accept the file."""
    write_scp(path, {key: nfc(value) for key, value in table.items()})


def write_scp(path: Path, table: Mapping[str, str]) -> None:
    """Write lines `key entry` in byte order of the keys; the keys are NFC, and entries stay as they are."""
    rows = sorted((nfc(key).encode(), value) for key, value in table.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_whole(path, "".join(f"{key.decode()} {value}".rstrip() + "\n" for key, value in rows))


def resolve(folder: Path, entry: str) -> Path:
    """The file of an scp entry: a URL, absolute, or relative to the directory, its parent or its grandparent.

    A name that does not exist is looked for in NFC and NFD too: copies between systems may change it.
    """
    place = location(entry)
    if is_remote(place) or (is_remote(folder) and place.is_absolute()):
        return place
    bases: Sequence[Path] = (folder, *folder.absolute().parents[:2])
    if is_remote(folder):
        bases = [base for base in (folder, *folder.parents[:2]) if len(base.parts) > 1]
    for name in (entry, nfc(entry), unicodedata.normalize("NFD", entry)):
        found = next((base / name for base in bases if exists(base / name)), None)  # an absolute name has no base
        if found is not None:
            return found
    return folder / entry


def read_alignments(folder: Path) -> dict[str, np.ndarray]:
    """Integer alignments {utterance: int32 (frames,)} from all `ali.*.gz` of a folder (Kaldi integer vectors).

    Raises:
        CorpusError: a file is missing or damaged, or an utterance appears in two files.
    """
    archives = sorted(Path(folder).glob("ali.*.gz"))
    if not archives:
        raise CorpusError(f"{folder} holds no ali.*.gz: name the folder of the alignment")
    found: dict[str, np.ndarray] = {}
    for archive in archives:
        for name, values in _int_vectors(archive):
            if name in found:
                raise CorpusError(f"{archive}: utterance {name!r} appears in two archives: remove stale ali.*.gz files")
            found[name] = values
    return found


def _int_vectors(archive: Path) -> list[tuple[str, np.ndarray]]:
    # Unpacked here: kaldi-native-io would read a .gz through a shell pipe.
    with tempfile.TemporaryDirectory() as scratch:
        plain = Path(scratch) / "ali"
        try:
            with gzip.open(archive) as source, plain.open("wb") as target:
                shutil.copyfileobj(source, target)
        except (EOFError, OSError, zlib.error) as error:
            raise CorpusError(f"{archive} is damaged ({error}): align again") from error
        if plain.stat().st_size == 0:
            raise CorpusError(f"{archive} is empty: align again")
        with making_sense_of(archive, "align again"), kio.SequentialInt32VectorReader(f"ark:{plain}") as reader:
            return [(name, np.asarray(values, np.int32)) for name, values in reader]


def _audio(folder: Path, commands_allowed: bool) -> dict[str, Audio]:
    if not exists(folder / "wav.scp"):
        return {}
    recordings, sides = {}, _sides(folder)
    for name, entry in read_scp(folder / "wav.scp").items():
        side = sides.get(name)
        if not entry.endswith("|"):
            path = resolve(folder, entry)
            recordings[name] = Audio(path, channel=None if side is None else _channel(path, side[1]), side=side)
        elif commands_allowed:
            recordings[name] = Audio(folder / "wav.scp", command=entry[:-1].strip(), side=side)
        else:
            raise CorpusError(
                f"{folder / 'wav.scp'}: {name!r} is the command {entry!r}, and commands are not run from data: "
                "convert the audio to files, or allow commands explicitly if you trust this directory"
            )
    if not exists(folder / "segments"):
        return recordings
    return {u: _segment(u, row, recordings) for u, row in _read_rows(folder / "segments").items()}


def _sides(folder: Path) -> dict[str, tuple[str, str]]:
    """File and channel of each recording, as time-marked files name them."""
    path = folder / "reco2file_and_channel"
    if not exists(path):
        return {}
    found = {}
    for recording, row in _read_rows(path).items():
        fields = columns(nfc(row.value), row.place)
        if len(fields) != 2 or fields[1] not in CHANNELS:
            raise CorpusError(
                f"{row.place}: {recording!r} has {row.value!r}; it takes FILE CHANNEL, the channel as A, B or 1, 2"
            )
        found[recording] = (fields[0], fields[1])
    return found


def _channel(path: Path, name: str) -> int | None:
    """Index of a channel of a file; None if the file has one, such as a side that was extracted."""
    try:
        return None if rate_and_channels(sound_source(path))[1] == 1 else CHANNELS[name]
    except (soundfile.SoundFileError, OSError):  # reported by the reader of its samples
        return CHANNELS[name]


def _segment(name: str, row: _Row, recordings: Mapping[str, Audio]) -> Audio:
    """The stretch of a recording; a fifth column is Kaldi's number of the channel, from 0, or -1."""
    try:
        recording, start, end, *channel = columns(nfc(row.value), row.place)
        begin, stop, chosen = float(start), float(end), int(*channel) if channel else -1
        if not (math.isfinite(begin) and math.isfinite(stop)) or chosen < -1:
            raise ValueError("a time is not finite, or there is no such channel")
    except (ValueError, TypeError) as error:
        if isinstance(error, CorpusError):
            raise
        raise CorpusError(
            f"{row.place}: {name!r} has {row.value!r}; it takes RECORDING START END in seconds, perhaps a CHANNEL from"
            " 0, and no more"
        ) from error
    if recording not in recordings:
        raise CorpusError(f"{row.place}: {name!r} is cut from {recording!r}, which wav.scp does not list")
    stop_or_end = None if stop < 0 else stop  # Kaldi writes -1 for "to the end of the recording"
    if begin < 0 or (stop_or_end is not None and stop_or_end <= begin):
        raise CorpusError(f"{row.place}: {name!r} goes from {start} to {end} s: correct the times")
    cut = replace(recordings[recording], start_seconds=begin, end_seconds=stop_or_end)
    return cut if chosen < 0 else replace(cut, channel=chosen)


def _stored_features(folder: Path) -> dict[str, StoredFeatures]:
    if not exists(folder / "feats.scp"):
        return {}
    found = {}
    for name, entry in read_scp(folder / "feats.scp").items():
        path, colon, key = entry.rpartition(":")
        if not colon or entry.endswith("|") or not (key.isdecimal() or path.endswith(".npz")):
            raise CorpusError(
                f"{folder / 'feats.scp'}: {name!r} has {entry!r}; it takes FILE.ark:OFFSET or FILE.npz:KEY"
            )
        found[name] = StoredFeatures(resolve(folder, path), key)
        if is_remote(found[name].path):
            raise CorpusError(
                f"{folder / 'feats.scp'}: {found[name].path} is remote: copy stored features to this host"
            )
    return found


def _trouble(utterance: Utterance) -> str | None:
    if not utterance.text:
        return "its transcript is empty"
    source = utterance.features or utterance.audio
    if source is None:
        return "it has a transcript but neither audio nor features"
    if not is_remote(source.path) and not source.path.exists():
        return f"its file {source.path} is missing"
    return None
