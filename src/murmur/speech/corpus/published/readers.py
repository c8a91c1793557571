"""Readers of unpacked published corpora, which return one `Corpus` per split.

Lhotse's recipes read LibriSpeech, yesno and AISHELL; AN4 and the digits, for which lhotse has none, are read here.
A reader takes the folder of the unpacked archive, or the one inside it, the requested parts and a number of threads. It
raises a CorpusError where a file is missing or cannot be read.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from lhotse.audio.utils import AudioLoadingError
from lhotse.recipes.aishell import prepare_aishell
from lhotse.recipes.librispeech import prepare_librispeech
from lhotse.recipes.yesno import prepare_yesno

from murmur.core.counted import counted
from murmur.core.whole_files import replacing
from murmur.speech.corpus.corpus import Audio, Corpus, CorpusError, Problem, Utterance
from murmur.speech.corpus.digits import LEXICON, WORDS
from murmur.speech.corpus.file_content import NONSENSE, text_lines
from murmur.speech.corpus.recordings import read_channels
from murmur.speech.corpus.remote import mark
from murmur.speech.corpus.sound_file import rate_and_channels, sphere_header, unpack_sphere
from murmur.speech.features.analysis import LogMel, opened

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Read:
    """The result of a reader.

    Attributes:
        splits: utterances by split, transcripts as published.
        seconds: length of every utterance, by split: two splits may hold recordings of the same name.
        files: text files that belong to the data, such as a lexicon, by name.
        absent: optional parts that are missing.
        rate_hz: sample rate of most recordings; None if the reader has not checked it.
        other_rates: recordings at other rates, of which training uses resampled copies.
        wordless: segments without words that were left out, by split.
        outside: recordings that belong to no split.
        rules: rules that were applied to the transcripts of parts with conventions of their own, by part.
    """

    splits: Mapping[str, Corpus]
    seconds: Mapping[str, Mapping[str, float]]
    files: Mapping[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    rate_hz: int | None = None
    other_rates: tuple[Path, ...] = ()
    wordless: Mapping[str, Sequence[str]] = field(default_factory=dict)
    outside: tuple[Problem, ...] = ()
    rules: Mapping[str, str] = field(default_factory=dict)


Reader = Callable[[Path, tuple[str, ...], int], Read]


def by_lhotse(root: Path, prepare: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Call a recipe of lhotse; a CorpusError names the folder if it fails."""
    try:
        return prepare()
    except (AssertionError, AudioLoadingError, OSError, *NONSENSE) as error:
        told = str(error).strip().splitlines() or [type(error).__name__]
        raise CorpusError(f"{root} cannot be read by lhotse's recipe: {told[0][:300]}") from error


def joined(corpora: Sequence[Corpus]) -> Corpus:
    """All utterances and problems of several corpora."""
    utterances = tuple(u for corpus in corpora for u in corpus.utterances)
    return Corpus(utterances, tuple(p for corpus in corpora for p in corpus.problems))


FSDD_DEV, FSDD_TEST = "nicolas", "theo"
YESNO_RECORDINGS = 60
WINDOW_SECONDS = LogMel().frame_length_seconds
BLOCK_SAMPLES = 1 << 20


def read_librispeech(folder: Path, parts: tuple[str, ...], jobs: int) -> Read:
    """LibriSpeech and its small sibling: PART/SPEAKER/CHAPTER/*.flac with one *.trans.txt per chapter."""
    root = holding(folder, "LibriSpeech", lambda at: any((at / part).is_dir() for part in parts), " or ".join(parts))
    here = tuple(part for part in parts if (root / part).is_dir())
    manifests = by_lhotse(root, lambda: prepare_librispeech(root, dataset_parts=here, num_jobs=jobs))
    found: dict[str, list[Corpus]] = {}
    seconds: dict[str, float] = {}
    for part in here:
        corpus, lengths = _of_manifests(manifests[part])
        seconds |= lengths
        lost = tuple(_without_audio(root / part, set(corpus.texts)))
        found.setdefault(_librispeech_split(part), []).append(Corpus(corpus.utterances, lost))
    absent = tuple(part for part in parts if part not in here)
    splits = {split: joined(corpora) for split, corpora in found.items()}
    return Read(splits, dict.fromkeys(splits, seconds), absent=absent)


def read_yesno(folder: Path, _parts: tuple[str, ...], _jobs: int) -> Read:
    """60 recordings named by their words; Kaldi's split replaces lhotse's."""
    root = holding(folder, "waves_yesno", lambda at: any(at.glob("[01]_*.wav")), "recordings such as 0_1_0_1_0_1_0_1")
    count = len(list(root.glob("*.wav")))
    if count != YESNO_RECORDINGS:
        raise CorpusError(f"{root} holds {count} of the {YESNO_RECORDINGS} recordings: unpack the archive again")
    manifests = by_lhotse(root, lambda: prepare_yesno(root))
    (some, seconds), (others, more) = (_of_manifests(manifests[half], "global") for half in ("train", "test"))
    every = joined([some, others])
    splits = {
        "train": every.subset(lambda u: u.id.startswith("global-0")),
        "test": every.subset(lambda u: u.id.startswith("global-1")),
    }
    return Read(splits, dict.fromkeys(splits, seconds | more), {"lexicon.txt": "NO N\nYES Y\n"})


def read_aishell(folder: Path, _parts: tuple[str, ...], _jobs: int) -> Read:
    """AISHELL-1: data_aishell/wav/{train,dev,test}/SPEAKER/*.wav and one file of transcripts."""
    transcripts = "data_aishell/transcript/aishell_transcript_v0.8.txt"
    root = holding(folder, "aishell", lambda at: (at / transcripts).is_file(), transcripts)
    manifests = by_lhotse(root, lambda: prepare_aishell(root))
    read = {split: _of_manifests(manifests[split]) for split in ("train", "dev", "test") if manifests.get(split)}
    seconds = {split: lengths for split, (_, lengths) in read.items()}
    return Read({split: corpus for split, (corpus, _) in read.items()}, seconds)


def read_an4(folder: Path, _parts: tuple[str, ...], jobs: int) -> Read:
    """AN4 in NIST SPHERE: etc/an4_{train,test}.{fileids,transcription} and wav/an4_clstk, wav/an4test_clstk."""
    root = holding(folder, "an4", lambda at: (at / "etc" / "an4_train.fileids").is_file(), "etc/an4_train.fileids")
    splits = {split: _an4_split(root, split) for split in ("train", "test")}
    lists = {name: root / "etc" / name for name in ("an4.dic", "an4.phone", "an4.filler", "an4.ug.lm")}
    files = {name: path.read_text(encoding="latin-1") for name, path in lists.items() if path.is_file()}
    return measured(splits, jobs, files)


def read_fsdd(folder: Path, _parts: tuple[str, ...], jobs: int) -> Read:
    """Free Spoken Digit Dataset: recordings/DIGIT_SPEAKER_REPETITION.wav."""
    inside = next((at for at in sorted(folder.glob("free-spoken-digit-dataset*")) if at.is_dir()), folder)
    root = holding(inside, "recordings", lambda at: any(at.glob("[0-9]_*_*.wav")), "recordings such as 7_theo_0.wav")
    utterances = []
    for path in sorted(root.glob("*.wav")):
        named = re.fullmatch(r"(\d)_(\w+)_(\d+)", path.stem)
        if named is None:
            raise CorpusError(f"{path} is not named DIGIT_SPEAKER_REPETITION: remove or rename it")
        digit, speaker, repetition = named.groups()
        name = f"{speaker}-{digit}-{int(repetition):02}"
        utterances.append(Utterance(name, speaker, WORDS[int(digit)], Audio(path.absolute())))
    splits = {
        "train": [u for u in utterances if u.speaker not in (FSDD_DEV, FSDD_TEST)],
        "dev": [u for u in utterances if u.speaker == FSDD_DEV],
        "test": [u for u in utterances if u.speaker == FSDD_TEST],
        "train_official": [u for u in utterances if int(u.id.rpartition("-")[2]) >= 5],
        "test_official": [u for u in utterances if int(u.id.rpartition("-")[2]) < 5],
    }
    lexicon = "".join(sorted(f"{word} {phones}\n" for word, ways in LEXICON.items() for phones in ways))
    return measured({s: Corpus(tuple(us)) for s, us in splits.items() if us}, jobs, {"lexicon.txt": lexicon})


def holding(folder: Path, inner: str, holds: Callable[[Path], bool], what: str) -> Path:
    """The folder that holds the corpus: the given one, or `inner` in it."""
    if not folder.is_dir():
        raise CorpusError(f"{folder} is not a folder: name the folder of the unpacked archives")
    for at in (folder, folder / inner):
        if at.is_dir() and holds(at):
            return at
    there = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
    raise CorpusError(f"neither {folder} nor {folder / inner} holds {what}; there is {there}")


def _of_manifests(manifests: Mapping[str, Any], speaker: str = "") -> tuple[Corpus, dict[str, float]]:
    """A corpus and the seconds of its utterances, from lhotse's recordings and supervisions.

    `speaker` is that of all utterances, and the beginning of their identifiers.
    """
    recordings = {recording.id: recording for recording in manifests["recordings"]}
    utterances, seconds = [], {}
    for supervision in manifests["supervisions"]:
        recording = recordings[supervision.recording_id]
        audio = Audio(Path(recording.sources[0].source).absolute())  # in all of them, an utterance is a file
        name = f"{speaker}-{supervision.id}" if speaker else supervision.id
        spoken_by = speaker or str(supervision.speaker or supervision.id)
        utterances.append(Utterance(name, spoken_by, supervision.text or "", audio))
        seconds[name] = float(supervision.duration)
    return Corpus(tuple(utterances)), seconds


def _without_audio(part: Path, read: set[str]) -> Iterable[Problem]:
    """Problems of transcripts without a recording, which lhotse skips silently."""
    for transcripts in sorted(part.rglob("*.trans.txt")):
        for line in text_lines(transcripts):
            name = line.partition(" ")[0]
            if name and name not in read:
                yield Problem(name, str(transcripts), f"its recording {transcripts.parent / name}.flac is missing")


def _librispeech_split(part: str) -> str:
    known = {"dev-clean": "dev", "test-clean": "test", "dev-clean-2": "test"}
    return "train" if part.startswith("train-") else known.get(part, part.replace("-", "_"))


def _an4_split(root: Path, split: str) -> Corpus:
    names, texts = (root / "etc" / f"an4_{split}.{kind}" for kind in ("fileids", "transcription"))
    for path in (names, texts):
        if not path.is_file():
            raise CorpusError(f"{path} is missing: unpack the archive again")
    listed = names.read_text(encoding="latin-1").split()
    said = {}
    for number, line in enumerate(texts.read_text(encoding="latin-1").split("\n"), 1):
        row = re.fullmatch(r"(.*?)\s*\(([^()\s]+)\)\s*", line)
        if row is None and line.strip():
            raise CorpusError(f"{texts}:{number}: expected WORDS (RECORDING), found {line[:80]!r}")
        if row is not None:
            said[row.group(2)] = row.group(1)
    utterances, problems = [], []
    for entry in listed:
        path = root / "wav" / f"{entry}.sph"
        speaker = path.parent.name
        name = f"{speaker}-{path.stem}"
        if path.stem not in said:
            problems.append(Problem(name, str(names), f"it is not in {texts.name}"))
        elif not path.is_file():
            problems.append(Problem(name, str(names), f"its recording {path} is missing"))
        else:
            utterances.append(Utterance(name, speaker, said[path.stem], Audio(path.absolute())))
    return Corpus(tuple(utterances), tuple(problems))


def measured(splits: Mapping[str, Corpus], jobs: int, files: Mapping[str, str]) -> Read:
    """Seconds of whole files; those that training could not use become problems.

    Those cannot be decoded, have several channels, or are shorter than a window.
    """
    paths = {split: {u.id: u.audio.path for u in corpus.utterances if u.audio} for split, corpus in splits.items()}
    every = list({path for own in paths.values() for path in own.values()})
    with ThreadPoolExecutor(jobs) as pool:
        rates = dict(zip(every, pool.map(_rate_hz, every), strict=True))
        lengths = dict(zip(every, pool.map(_seconds, every, rates.values()), strict=True))
    counts = Counter(rate for rate in rates.values() if rate is not None)
    common = counts.most_common(1)[0][0] if counts else None
    others = tuple(path for path, rate in rates.items() if rate != common and isinstance(lengths[path], float))
    kept, seconds = {}, {}
    for split, corpus in splits.items():
        found = {name: lengths[path] for name, path in paths[split].items()}
        seconds[split] = {name: length for name, length in found.items() if isinstance(length, float)}
        broken = tuple(
            Problem(name, str(paths[split][name]), reason) for name, reason in found.items() if isinstance(reason, str)
        )
        good = tuple(u for u in corpus.utterances if u.id in seconds[split])
        kept[split] = Corpus(good, (*corpus.problems, *broken))
    return Read(kept, seconds, files, rate_hz=common, other_rates=others)


def _rate_hz(path: Path) -> int | None:
    """The sample rate in a file's header; None if it cannot be read."""
    try:
        return rate_and_channels(path)[0]
    except (soundfile.SoundFileError, OSError):
        return None


def _seconds(path: Path, rate_hz: int | None) -> float | str:
    """The length of a recording after decoding it to its end, or the reason why training cannot use it."""
    try:
        with opened(Audio(path), rate_hz or 0) as recording:
            seconds = recording.samples / (rate_hz or 1)
            if seconds < WINDOW_SECONDS:
                return f"its {seconds:.3f} s are shorter than one analysis window of {WINDOW_SECONDS} s"
            for first in range(0, recording.samples, BLOCK_SAMPLES):
                if not np.isfinite(recording.read(first, min(first + BLOCK_SAMPLES, recording.samples))).all():
                    return "it holds samples that are not finite numbers: convert it again"
            return seconds
    except CorpusError as error:
        return str(error)


def _digest(path: Path, rate_hz: int | None) -> str:
    """Digest of a recording, by its name, size and date, and of the rate of its copy."""
    return hashlib.sha256(f"{path} {mark(path)} {rate_hz}".encode()).hexdigest()[:16]


def _write_resampled(path: Path, rate_hz: int, target: Path) -> None:
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        (found,) = read_channels(path, rate_hz, "average")
        with replacing(target) as part:
            soundfile.write(part, found.samples, rate_hz, subtype="PCM_24", format="FLAC")


def with_plain_audio(read: Read, folder: Path, jobs: int) -> Read:
    """Write copies that training can read into a folder, those that are not there yet, and let utterances name them.

    Shortened SPHERE files become WAV with the same samples, a byte each. Recordings at other rates than most become
    FLAC of 24 bits at that rate, resampled as `murmur transcribe` does. Other recordings stay where they are.

    Raises:
        CorpusError: sph2pipe is missing or fails.
    """
    every = {u.audio.path for corpus in read.splits.values() for u in corpus.utterances if u.audio is not None}
    packed = sorted(path for path in every if path.suffix == ".sph" and sphere_header(path).is_shortened)
    plain = {path: folder.absolute() / f"{path.stem}.wav" for path in packed}
    shortened = [path for path in packed if not plain[path].is_file()]
    if shortened:
        log.info("unpacking %s into %s", counted(len(shortened), "recording"), folder)
    copies = {path: folder.absolute() / f"{_digest(path, read.rate_hz)}.flac" for path in read.other_rates}
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda path: unpack_sphere(path, plain[path]), shortened))
        list(pool.map(lambda path: _write_resampled(path, read.rate_hz or 0, copies[path]), copies))
    plain |= copies

    def moved(u: Utterance) -> Utterance:
        return replace(u, audio=replace(u.audio, path=plain[u.audio.path])) if u.audio and u.audio.path in plain else u

    splits = {split: Corpus(tuple(map(moved, c.utterances)), c.problems) for split, c in read.splits.items()}
    return replace(read, splits=splits)
