"""Dataset writer: data/<split>/ in Kaldi's format, the text files of the corpus, and manifest.json, its description.

Audio stays where it is: wav.scp holds absolute paths. Utterances that are stretches of recordings have `segments` and
`reco2file_and_channel` too.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import lhotse

from murmur.core.whole_files import write_text_whole
from murmur.speech.corpus.corpus import LOST_AT_MOST, Audio, Corpus, CorpusError, Problem, Utterance, check_losses
from murmur.speech.corpus.file_content import read_object
from murmur.speech.corpus.kaldi_dir import write_scp, write_table
from murmur.speech.corpus.published.catalogue import Published
from murmur.speech.corpus.published.readers import Read
from murmur.speech.corpus.published.transcripts import TranscriptRule

MANIFEST = "manifest.json"
SCRATCH = ".splits."  # beginning of the name of a folder that holds splits until all of them are written


def write_set(
    out: Path, name: str, corpus: Published, read: Read, lost_at_most: float = LOST_AT_MOST
) -> dict[str, Any]:
    """Write the result of a reader as a set for training, replacing an earlier copy of the corpus; return the manifest.

    All splits are written before the first one is replaced; other files in the folder stay. While splits are replaced,
    the manifest says that the set is not finished, and training refuses it.

    Raises:
        CorpusError: nothing of a split can be used, more than `lost_at_most` of it cannot, or the folder holds others.
    """
    before = earlier_splits(out, name)
    worded = {split: _worded(found, corpus.rule) for split, found in read.splits.items()}
    for split, found in worded.items():
        try:
            check_losses(len(found), found.problems, lost_at_most)
        except CorpusError as error:
            way = "\n--skip leaves them out" if len(found) else ""
            raise CorpusError(f"{split}: {error}{way}") from error
    with _scratch(out) as scratch:
        for split, found in worded.items():
            _write_split(scratch / split, found, read.seconds[split])
        _write_manifest(out, {"corpus": name, "finished": False, "splits": {s: {} for s in (*before, *worded)}})
        _replace_splits(out / "data", scratch, before, worded)
        for file, text in read.files.items():
            write_text_whole(out / file, text)
        manifest = _manifest(name, corpus, read, worded)
        _write_manifest(out, manifest)
    return manifest


def _manifest(name: str, corpus: Published, read: Read, worded: Mapping[str, Corpus]) -> dict[str, Any]:
    return {
        "corpus": name,
        "finished": True,
        "about": corpus.about,
        "licence": corpus.licence,
        "page": corpus.page,
        "transcripts": dict(read.rules) or corpus.rule.words,
        "assignment": corpus.splits,
        "absent": list(read.absent),
        "outside": [asdict(problem) for problem in read.outside],
        "rate_hz": read.rate_hz,
        "resampled": len(read.other_rates),
        "lhotse": lhotse.__version__,
        "splits": {split: _facts(found, read, split) for split, found in worded.items()},
        "trained_speakers": _trained_speakers(worded),
    }


def earlier_splits(out: Path, name: str) -> tuple[str, ...]:
    """Splits that an earlier call wrote for this corpus; a CorpusError if the folder holds other data."""
    path = out / MANIFEST
    if not path.is_file():
        if (out / "data").exists():
            raise CorpusError(f"{out} holds data without {MANIFEST}, so it came from elsewhere: choose another --out")
        return ()
    found = read_object(path, f"choose another --out, or remove {out}")
    if found.get("corpus") != name:
        raise CorpusError(f"{out} holds the corpus {found.get('corpus')!r}: choose another --out for {name!r}")
    # The names become paths that are removed: only plain ones count.
    return tuple(s for s in found.get("splits", {}) if isinstance(s, str) and s.isidentifier())


def _worded(corpus: Corpus, rule: TranscriptRule) -> Corpus:
    kept, problems = [], list(corpus.problems)
    for u in corpus.utterances:
        text = rule.apply(u.text)
        if text:
            kept.append(Utterance(u.id, u.speaker, text, u.audio))
        else:
            problems.append(Problem(u.id, str(u.audio.path if u.audio else ""), f"no word is left of {u.text[:80]!r}"))
    return Corpus(tuple(kept), tuple(problems))


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """A folder for splits, removed at the end, as are those of killed commands: `out` is locked."""
    out.mkdir(parents=True, exist_ok=True)
    for left in out.glob(f"{SCRATCH}*"):
        shutil.rmtree(left, ignore_errors=True)
    scratch = out / f"{SCRATCH}{secrets.token_hex(4)}"
    scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _replace_splits(data: Path, scratch: Path, before: Iterable[str], new: Iterable[str]) -> None:
    data.mkdir(exist_ok=True)
    for split in dict.fromkeys((*before, *new)):
        if (data / split).exists():
            (data / split).rename(scratch / f".{split}")  # removed later: that takes longer
        if (scratch / split).exists():
            (scratch / split).rename(data / split)


def _write_split(folder: Path, corpus: Corpus, seconds: Mapping[str, float]) -> None:
    write_table(folder / "text", corpus.texts)
    write_table(folder / "utt2spk", corpus.speakers)
    of_speaker = groupby(sorted(corpus.speakers.items(), key=lambda p: (p[1].encode(), p[0].encode())), lambda p: p[1])
    write_table(folder / "spk2utt", {speaker: " ".join(u for u, _ in pairs) for speaker, pairs in of_speaker})
    write_table(folder / "utt2dur", {u.id: f"{seconds[u.id]:.3f}" for u in corpus.utterances})
    _write_audio(folder, {u.id: u.audio for u in corpus.utterances if u.audio is not None})


def _write_audio(folder: Path, audio: Mapping[str, Audio]) -> None:
    sides = {name: each.side for name, each in audio.items() if each.side is not None}
    if not sides:
        write_scp(folder / "wav.scp", {name: str(each.path) for name, each in audio.items()})
        return
    recording = {name: "-".join(side) for name, side in sides.items()}
    write_scp(folder / "wav.scp", {recording[name]: str(each.path) for name, each in audio.items()})
    write_table(folder / "reco2file_and_channel", {recording[name]: " ".join(side) for name, side in sides.items()})
    spans = {name: f"{each.start_seconds:.6f} {each.end_seconds:.6f}" for name, each in audio.items()}
    write_table(folder / "segments", {name: f"{recording[name]} {span}" for name, span in spans.items()})


def _facts(corpus: Corpus, read: Read, split: str) -> dict[str, Any]:
    return {
        "utterances": len(corpus),
        "speakers": len(set(corpus.speakers.values())),
        "words": sum(len(u.words) for u in corpus.utterances),
        "hours": sum(read.seconds[split][u.id] for u in corpus.utterances) / 3600,
        "characters": "".join(sorted({c for text in corpus.texts.values() for c in text})),
        "wordless": list(read.wordless.get(split, ())),
        "skipped": [asdict(problem) for problem in corpus.problems],
    }


def _trained_speakers(splits: Mapping[str, Corpus]) -> dict[str, list[str]]:
    """Speakers of each other split who are in train too."""
    trained = set(splits["train"].speakers.values()) if "train" in splits else set()
    shared = {split: sorted(trained & set(found.speakers.values())) for split, found in splits.items()}
    return {split: speakers for split, speakers in shared.items() if speakers and split != "train"}


def _write_manifest(out: Path, manifest: Mapping[str, Any]) -> None:
    write_text_whole(out / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
