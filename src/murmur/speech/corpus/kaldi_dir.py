"""Kaldi data directories: text, utt2spk, wav.scp, segments, reco2file_and_channel, feats.scp, alignments in ali.*.gz.

Format: https://kaldi-asr.org/doc/data_prep.html. Paths that are not absolute are looked for beside the directory's
own files first, then in its parent and its grandparent (a set with `data/<split>/` and `wav/` beside each other).
"""

from __future__ import annotations

import gzip
import shutil
import tempfile
import unicodedata
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import kaldi_native_io as kio
import numpy as np
import soundfile

from murmur.speech.corpus.atomic_file import write_text_whole
from murmur.speech.corpus.corpus import Audio, Corpus, CorpusError, Problem, StoredFeatures, Utterance, check_losses
from murmur.speech.corpus.file_errors import making_sense_of

CHANNELS = {"A": 0, "B": 1, "1": 0, "2": 1}


def read_data_dir(folder: Path, *, commands_allowed: bool = False) -> Corpus:
    """The utterances of one Kaldi data directory.

    Needs `text`, and `wav.scp` (with `segments` if recordings hold several utterances) or `feats.scp`. A recording
    whose file has several channels needs a line in `reco2file_and_channel` (RECORDING FILE CHANNEL, the channel as A, B
    or 1, 2), which also names it in time-marked files; commands must write one channel. Without
    `utt2spk` every utterance is its own speaker, as in Kaldi. Utterances with an empty transcript, without audio or
    features, or with a missing file become problems.

    Args:
        folder: the directory.
        commands_allowed: accept wav.scp entries that end in `|`. They are run by a shell, so allow them only for
                directories that you wrote or read yourself.

    Raises:
        CorpusError: a file is malformed or missing, an entry is a command, or more than 1 % of the utterances is lost.
    """
    folder = Path(folder)
    check_data_dir(folder)
    texts = read_table(folder / "text", values_required=False)
    if not texts:
        raise CorpusError(f"{folder / 'text'} holds no utterance: name a data directory with transcripts")
    speakers = read_table(folder / "utt2spk") if (folder / "utt2spk").exists() else {u: u for u in texts}
    audio = _audio(folder, commands_allowed)
    features = _stored_features(folder)
    if not audio and not features:
        raise CorpusError(f"{folder}: wav.scp and feats.scp are empty: one must name audio or features")
    utterances, problems = [], []
    for name, text in texts.items():
        utterance = Utterance(name, speakers.get(name, name), text, audio.get(name), features.get(name))
        what = _trouble(utterance)
        if what is None:
            utterances.append(utterance)
        else:
            problems.append(Problem(name, str(folder / "text") if not text else str(folder), what))
    check_losses(len(utterances), problems)
    return Corpus(tuple(utterances), tuple(problems))


def check_data_dir(folder: Path) -> None:
    """Check that a data directory has the files that it needs, without reading them.

    Raises:
        CorpusError: a file is missing.
    """
    if not (folder / "text").is_file():
        raise CorpusError(f"{folder} has no file 'text': name a Kaldi data directory, e.g. SET/data/train")
    if not any((folder / name).is_file() for name in ("wav.scp", "feats.scp")):
        raise CorpusError(f"{folder} has neither wav.scp nor feats.scp: one must name audio or features")


def read_table(path: Path, *, values_required: bool = True) -> dict[str, str]:
    """A file of lines `key value...`, in NFC; blank lines are skipped.

    Raises:
        CorpusError: not UTF-8, a duplicate key, or a key without a required value.
    """
    try:
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path} is not UTF-8 (byte {error.start}): convert it, e.g. with iconv") from error
    table: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        key, _, value = unicodedata.normalize("NFC", line).strip().replace("\t", " ").partition(" ")
        if not key:
            continue
        if key in table:
            raise CorpusError(f"{path}:{number}: {key!r} appears twice: remove one line")
        if values_required and not value.strip():
            raise CorpusError(f"{path}:{number}: {key!r} has no value: complete or remove the line")
        table[key] = value.strip() if "|" in value else " ".join(value.split())
    return table


def write_table(path: Path, table: Mapping[str, str]) -> None:
    """Write lines `key value` in byte order of the keys, so that Kaldi's tools accept the file."""
    rows = sorted(table.items(), key=lambda row: row[0].encode())
    text = "".join(f"{unicodedata.normalize('NFC', f'{key} {value}').rstrip()}\n" for key, value in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_whole(path, text)


def resolve(folder: Path, entry: str) -> Path:
    """The file of an scp entry: absolute, or relative to the directory, its parent or its grandparent."""
    path = Path(entry)
    if path.is_absolute():
        return path
    bases = (folder, *folder.absolute().parents[:2])
    return next((base / path for base in bases if (base / path).exists()), folder / path)


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


def write_alignments(path: Path, alignments: Mapping[str, np.ndarray]) -> None:
    """Write {utterance: integers (frames,)} as one gzipped Kaldi archive, e.g. `ali.1.gz`, in byte order."""
    with tempfile.TemporaryDirectory() as scratch:
        plain = Path(scratch) / "ali"
        with kio.Int32VectorWriter(f"ark:{plain}") as writer:
            for name in sorted(alignments, key=str.encode):
                writer.write(name, [int(v) for v in alignments[name]])
        with plain.open("rb") as source, gzip.GzipFile(path, "wb", mtime=0) as target:
            shutil.copyfileobj(source, target)


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
    if not (folder / "wav.scp").exists():
        return {}
    recordings, sides = {}, _sides(folder)
    for name, entry in read_table(folder / "wav.scp").items():
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
    if not (folder / "segments").exists():
        return recordings
    return {u: _segment(folder, u, row, recordings) for u, row in read_table(folder / "segments").items()}


def _sides(folder: Path) -> dict[str, tuple[str, str]]:
    """File and channel of each recording, as time-marked files name them."""
    path = folder / "reco2file_and_channel"
    if not path.exists():
        return {}
    found = {}
    for recording, row in read_table(path).items():
        fields = row.split()
        if len(fields) != 2 or fields[1] not in CHANNELS:
            raise CorpusError(f"{path}: {recording!r} has {row!r}; it takes FILE CHANNEL, the channel as A, B or 1, 2")
        found[recording] = (fields[0], fields[1])
    return found


def _channel(path: Path, name: str) -> int | None:
    """Index of a channel of a file, None if the file has one: a side that was extracted keeps the name of its channel.

    Files that cannot be read are reported by the reader of their samples.
    """
    try:
        return None if soundfile.info(path).channels == 1 else CHANNELS[name]
    except (soundfile.SoundFileError, OSError):
        return CHANNELS[name]


def _segment(folder: Path, name: str, row: str, recordings: Mapping[str, Audio]) -> Audio:
    try:
        recording, start, end = row.split()[:3]
        begin, stop = float(start), float(end)
    except ValueError as error:
        raise CorpusError(
            f"{folder / 'segments'}: {name!r} has {row!r}; it takes RECORDING START END in seconds"
        ) from error
    if recording not in recordings:
        raise CorpusError(f"{folder / 'segments'}: {name!r} is cut from {recording!r}, which wav.scp does not list")
    stop_or_end = None if stop < 0 else stop  # Kaldi writes -1 for "to the end of the recording"
    if begin < 0 or (stop_or_end is not None and stop_or_end <= begin):
        raise CorpusError(f"{folder / 'segments'}: {name!r} goes from {start} to {end} s: correct the times")
    return replace(recordings[recording], start_seconds=begin, end_seconds=stop_or_end)


def _stored_features(folder: Path) -> dict[str, StoredFeatures]:
    if not (folder / "feats.scp").exists():
        return {}
    found = {}
    for name, entry in read_table(folder / "feats.scp").items():
        path, colon, key = entry.rpartition(":")
        if not colon or entry.endswith("|") or not (key.isdecimal() or path.endswith(".npz")):
            raise CorpusError(
                f"{folder / 'feats.scp'}: {name!r} has {entry!r}; it takes FILE.ark:OFFSET or FILE.npz:KEY"
            )
        found[name] = StoredFeatures(resolve(folder, path), key)
    return found


def _trouble(utterance: Utterance) -> str | None:
    if not utterance.text:
        return "its transcript is empty"
    source = utterance.features or utterance.audio
    if source is None:
        return "it has a transcript but neither audio nor features"
    if not source.path.exists():
        return f"its file {source.path} is missing"
    return None
