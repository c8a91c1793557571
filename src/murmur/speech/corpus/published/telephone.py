"""Readers of the LDC's telephone corpora: Switchboard-1, Fisher English, Hub5'00, CallHome American English.

A reader takes a folder that holds the LDC's packages, each under its catalogue number. Lhotse's recipes find recordings
and transcripts, with these corrections:

* Lhotse runs sph2pipe, by a shell, for the length of every SPHERE file; here the lengths come from the headers.
* Its recipe for Switchboard gives both channels of a call the speaker of channel A; here each channel has its own.
* Its recipe for Hub5'00 reads whole transcripts without the evaluation's segments (PEM) and its reference (STM), so its
  utterances are not those that are scored. Here they are the PEM's, with the words of the STM.
* Its recipes skip what has no counterpart in silence; here recordings and transcripts are compared first.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lhotse.audio.backend import (
    AudioBackend,
    LibsndfileCompatibleAudioInfo,
    get_current_audio_backend,
    set_current_audio_backend,
)
from lhotse.recipes.callhome_english import prepare_callhome_english
from lhotse.recipes.eval2000 import prepare_eval2000
from lhotse.recipes.fisher_english import prepare_fisher_english
from lhotse.recipes.switchboard import prepare_switchboard

from murmur.core.counted import counted
from murmur.speech.corpus.corpus import Audio, Corpus, CorpusError, Problem, Utterance
from murmur.speech.corpus.file_content import making_sense_of
from murmur.speech.corpus.published.readers import Read, by_lhotse, joined
from murmur.speech.corpus.published.transcripts import CALLHOME, FISHER, STM, SWITCHBOARD, TranscriptRule
from murmur.speech.corpus.sound_file import REMEDY, sphere_header
from murmur.speech.scoring.time_marked import Segment, read_stm

SIDES = "AB"
DEV_EVERY = 50  # calls of Switchboard and Fisher: about 5 hours each of 260 and of 1,000
LOST_CALLS = 0.01
MS98 = "swb_ms98_transcriptions"


class _Stretch(NamedTuple):
    """A stretch of a channel with its transcript as published; seconds."""

    id: str
    speaker: str
    call: str
    channel: int
    begin: float
    end: float
    text: str


@dataclass(frozen=True)
class Material:
    """The content of one part: stretches and missing recordings by split, files of the calls and of the set by name."""

    splits: Mapping[str, Sequence[_Stretch]]
    files: Mapping[str, Path]
    problems: Mapping[str, Sequence[Problem]] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """A part of a corpus: folders of its packages, rule of its transcripts, reader of the folder above them."""

    packages: tuple[str, ...]
    rule: TranscriptRule
    read: Callable[[Path, int], Material]


def read_telephone(folder: Path, parts: tuple[str, ...], jobs: int) -> Read:
    """Read those of the parts whose packages are in a folder.

    Segments without a word (noise, laughter, unintelligible speech) are left out and counted.

    Raises:
        CorpusError: no part is complete, a package has another layout, or shortened files meet no sph2pipe.
    """
    if not folder.is_dir():
        raise CorpusError(f"{folder} is not a folder: name the folder that holds the packages of the LDC")
    here = [name for name in parts if _is_there(folder, name)]
    if not here:
        wanted = "; ".join(f"{name} needs {', '.join(PARTS[name].packages)}" for name in parts)
        there = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
        raise CorpusError(f"{folder} holds no part ({wanted}); there is {there}. The LDC licenses these packages")
    found: dict[str, list[Corpus]] = {}
    seconds: dict[str, float] = {}
    wordless: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    rates: set[int] = set()
    for name in here:
        material = PARTS[name].read(folder, jobs)
        rates |= {_checked_rate_hz(path) for path in material.files.values()}
        texts |= material.texts
        for split, stretches in material.splits.items():
            corpus = _corpus(stretches, material, split, PARTS[name].rule)
            found.setdefault(split, []).append(corpus)
            seconds |= {s.id: s.end - s.begin for s in stretches}
            kept = corpus.texts
            wordless.setdefault(split, []).extend(s.id for s in stretches if s.id not in kept)
    return Read(
        {split: joined(corpora) for split, corpora in found.items()},
        dict.fromkeys(found, seconds),
        texts,
        absent=tuple(name for name in parts if name not in here),
        rate_hz=rates.pop() if len(rates) == 1 else None,
        wordless={split: names for split, names in wordless.items() if names},
        rules={name: PARTS[name].rule.words for name in here},
    )


def _is_there(folder: Path, part: str) -> bool:
    missing = [package for package in PARTS[part].packages if not (folder / package).is_dir()]
    if missing and len(missing) < len(PARTS[part].packages):
        raise CorpusError(f"{folder} lacks {' and '.join(missing)}, which {part} needs too: get it from the LDC")
    return not missing


def _checked_rate_hz(path: Path) -> int:
    header = sphere_header(path)
    if header.is_shortened and shutil.which("sph2pipe") is None:
        raise CorpusError(f"{path}: {REMEDY}")
    return header.rate_hz


def _corpus(stretches: Sequence[_Stretch], material: Material, split: str, rule: TranscriptRule) -> Corpus:
    utterances = []
    for s in stretches:
        words = rule.apply(s.text)
        if words:
            side = (s.call, SIDES[s.channel])
            audio = Audio(material.files[s.call].absolute(), s.begin, s.end, channel=s.channel, side=side)
            utterances.append(Utterance(s.id, s.speaker, words, audio))
    return Corpus(tuple(utterances), tuple(material.problems.get(split, ())))


class _SphereHeaders(AudioBackend):  # type: ignore[misc]  # lhotse has no types
    """Lengths of SPHERE files for lhotse, from their headers, so that nothing is unpacked to measure it."""

    def supports_info(self) -> bool:
        return True

    def info(self, path_or_fd: Any, force_opus_sampling_rate: int | None = None) -> LibsndfileCompatibleAudioInfo:
        del force_opus_sampling_rate
        head = sphere_header(Path(path_or_fd))
        return LibsndfileCompatibleAudioInfo(head.channels, head.samples, head.rate_hz, head.samples / head.rate_hz)


def _prepared(root: Path, prepare: Callable[[Path], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Manifests of a recipe, which gets a folder of its own for files: recipes reuse files of earlier runs."""
    before = get_current_audio_backend()
    set_current_audio_backend(_SphereHeaders())  # lhotse's context manager does not restore it after an error
    try:
        with tempfile.TemporaryDirectory() as scratch:
            return by_lhotse(root, lambda: _eager(prepare(Path(scratch))))
    finally:
        set_current_audio_backend(before)


def _eager(manifests: Mapping[str, Any]) -> dict[str, Any]:
    """Manifests in memory: some are read lazily from the recipe's files."""
    return {
        name: _eager(m) if isinstance(m, Mapping) and not hasattr(m, "to_eager") else m.to_eager()
        for name, m in manifests.items()
    }


def _files(manifests: Mapping[str, Any]) -> dict[str, Path]:
    return {recording.id: Path(recording.sources[0].source) for recording in manifests["recordings"]}


def _stretches(manifests: Mapping[str, Any], speaker_of: Callable[[Any], str]) -> list[_Stretch]:
    found = []
    for s in manifests["supervisions"]:
        speaker, begin = speaker_of(s), float(s.start)
        end = begin + float(s.duration)
        found.append(_Stretch(f"{speaker}-{s.id}", speaker, s.recording_id, int(s.channel), begin, end, s.text or ""))
    return found


def _train_and_dev(stretches: Sequence[_Stretch]) -> dict[str, list[_Stretch]]:
    """Every 50th call is dev, if there are two calls."""
    calls = sorted({s.call for s in stretches})
    held_out = set(calls[::DEV_EVERY]) if len(calls) > 1 else set[str]()
    train, dev = ([s for s in stretches if (s.call in held_out) is held] for held in (False, True))
    return {split: found for split, found in (("train", train), ("dev", dev)) if found}


def _unpaired(recordings: Mapping[str, Path], transcripts: Mapping[str, Path]) -> list[Problem]:
    """Transcripts without a recording, as problems, of which there may be 1 %; every recording needs a transcript."""
    for call in sorted(set(recordings) - set(transcripts)):
        raise CorpusError(f"{recordings[call]} has no transcript: copy the packages again, or move the file away")
    lost = sorted(set(transcripts) - set(recordings))
    if len(lost) > LOST_CALLS * len(transcripts):
        raise CorpusError(
            f"{len(lost)} of {len(transcripts)} transcripts have no recording, first {transcripts[lost[0]]}: copy the"
            " package of the recordings again"
        )
    return [Problem(call, str(transcripts[call]), "its recording is missing") for call in lost]


def _switchboard(folder: Path, _jobs: int) -> Material:
    """LDC97S62, and the transcripts of Mississippi State beside it or inside it."""
    audio = folder / "LDC97S62"
    places = (folder / MS98, audio / MS98, *sorted(audio.glob(f"*/{MS98}")))
    transcripts = next((place for place in places if place.is_dir()), None)
    if transcripts is None:
        raise CorpusError(
            f"{folder} has no {MS98}: unpack switchboard_word_alignments.tar.gz (transcripts of 1998 by Mississippi"
            " State, from ISIP or openslr.org/5) there"
        )
    sph = {path.stem: path for path in audio.rglob("*.sph")}
    written = {f"sw0{path.name[2:6]}": path for path in sorted(transcripts.rglob("sw*-trans.text"))}
    if not sph or not written:
        raise CorpusError(
            f"{audio} holds {counted(len(sph), 'file')} *.sph, {transcripts} {len(written)} sw*-trans.text: both need"
        )
    problems = _unpaired(sph, written)
    made = _prepared(audio, lambda _: prepare_switchboard(audio, transcripts, absolute_paths=True))
    stretches = _stretches(made, lambda s: f"{s.recording_id}-{SIDES[s.channel]}")
    return Material(_train_and_dev(stretches), _files(made), {"train": problems})


def _fisher(speech: str, transcripts: str, inner: str) -> Callable[[Path, int], Material]:
    """Reader of one part of Fisher; its transcripts are in the package's folder or in `inner` there."""

    def read(folder: Path, jobs: int) -> Material:
        inside = f"{transcripts}/{inner}" if (folder / transcripts / inner).is_dir() else transcripts
        sph = {path.stem: path for path in (folder / speech).rglob("*.sph")}
        problems = _unpaired(sph, {path.stem: path for path in (folder / inside / "data" / "trans").rglob("*.txt")})
        if problems:  # the recipe takes complete packages only
            raise CorpusError(str(problems[0]))
        made = _prepared(folder, lambda at: prepare_fisher_english(folder, at, [speech], [inside], True, jobs))
        return Material(_train_and_dev(_stretches(made, lambda s: f"fisher-{s.speaker}")), _files(made))

    return read


def _callhome(folder: Path, _jobs: int) -> Material:
    """LDC97S42 and LDC97T14; train, devtest and evaltest become train, dev and test."""
    audio, transcripts = folder / "LDC97S42", folder / "LDC97T14"
    names, problems = {"train": "train", "dev": "devtest", "test": "evaltest"}, dict[str, list[Problem]]()
    for split, name in names.items():
        sph = {p.stem: p for p in (audio / "data" / name.replace("evaltest", "evltest")).rglob("*.sph")}
        problems[split] = _unpaired(sph, {p.stem: p for p in (transcripts / "transcrpt" / name).rglob("*.txt")})
    made = _prepared(folder, lambda _: prepare_callhome_english(audio, transcript_dir=transcripts, absolute_paths=True))
    splits = {split: _stretches(made[name], lambda s: str(s.speaker)) for split, name in names.items()}
    files = {call: path for name in names.values() for call, path in _files(made[name]).items()}
    return Material(splits, files, problems)


def _hub5(folder: Path, jobs: int) -> Material:
    """LDC2002S09 and LDC2002T43: the segments of the PEM with the words of the STM, which the set keeps, as the GLM."""
    made = _prepared(folder, lambda scratch: prepare_eval2000(folder, scratch, absolute_paths=True, num_jobs=jobs))
    files = {name.lower(): path for name, path in _files(made).items()}
    stm = _only(folder / "LDC2002T43", "hub5e*00*.stm")
    pem = _only(folder / "LDC2002S09" / "hub5e_00" / "english", "*.pem")
    glm = _only(folder / "LDC2002T43", "*.glm")
    with making_sense_of(stm, "copy it again"):
        reference = read_stm(stm).segments
    stretches = []
    for call, channel, begin, end in _pem_rows(pem):
        if call not in files or (call, channel) not in reference:
            raise CorpusError(f"{pem} has channel {channel.upper()} of {call}, which has no recording or no reference")
        said = [s for s in reference[call, channel] if begin <= (s.begin + s.end) / 2 < end]
        speaker = f"{call}_{channel.upper()}"
        name = f"{speaker}-{round(begin * 100):06}-{round(end * 100):06}"
        words = " ".join(s.text for s in said)
        stretches.append(_Stretch(name, speaker, call, SIDES.index(channel.upper()), begin, end, words))
    _all_covered(pem, stretches, reference)
    return Material({"test": stretches}, files, texts={"hub5e00.stm": _latin(stm), "hub5e00.glm": _latin(glm)})


def _all_covered(
    pem: Path, stretches: Sequence[_Stretch], reference: Mapping[tuple[str, str], Sequence[Segment]]
) -> None:
    """Check that every scored segment lies in a stretch: words outside could never be recognised."""
    spans: dict[tuple[str, str], list[_Stretch]] = {}
    for s in stretches:
        spans.setdefault((s.call, SIDES[s.channel].lower()), []).append(s)
    for recording, segments in reference.items():
        for segment in segments:
            middle = (segment.begin + segment.end) / 2
            inside = any(s.begin <= middle < s.end for s in spans.get(recording, ()))
            if segment.network is not None and not inside:
                where = f"{' '.join(recording)} at {segment.begin:g} s"
                raise CorpusError(f"{pem} leaves out {where}, which the STM scores: are both of the same release?")


def _pem_rows(path: Path) -> Iterator[tuple[str, str, float, float]]:
    """FILE CHANNEL SPEAKER BEGIN END of a partitioned evaluation map, file and channel in lower case."""
    for number, line in enumerate(_latin(path).split("\n"), 1):
        row = line.partition(";;")[0].split()
        if not row:
            continue
        try:
            begin, end = float(row[3]), float(row[4])
        except (IndexError, ValueError) as error:
            raise CorpusError(f"{path}:{number}: expected FILE CHANNEL SPEAKER BEGIN END, found {line!r}") from error
        if row[1].upper() not in SIDES or not 0 <= begin < end:
            raise CorpusError(f"{path}:{number}: expected channel A or B and a length above 0 s, found {line!r}")
        yield row[0].lower(), row[1].lower(), begin, end


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.rglob(pattern))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise CorpusError(f"{folder} needs one file {pattern}, it has {names}: is it the package of the LDC?")
    return found[0]


def _latin(path: Path) -> str:
    return path.read_text(encoding="latin-1")


PARTS: Mapping[str, Part] = {
    "swbd1": Part(("LDC97S62",), SWITCHBOARD, _switchboard),
    "fisher1": Part(("LDC2004S13", "LDC2004T19"), FISHER, _fisher("LDC2004S13", "LDC2004T19", "fe_03_p1_tran")),
    "fisher2": Part(("LDC2005S13", "LDC2005T19"), FISHER, _fisher("LDC2005S13", "LDC2005T19", "fe_03_p2_tran")),
    "hub5-00": Part(("LDC2002S09", "LDC2002T43"), STM, _hub5),
    "callhome": Part(("LDC97S42", "LDC97T14"), CALLHOME, _callhome),
}
