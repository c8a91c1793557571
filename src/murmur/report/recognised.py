"""Recognition results: recognised.jsonl of a run, the worst utterances aligned, and their audio."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from murmur.report.records import read_lines

KEYS = ("utterance", "speaker", "reference", "hypothesis")
WORST = 10
MIME = {".wav": "audio/wav", ".flac": "audio/flac", ".ogg": "audio/ogg", ".mp3": "audio/mpeg", ".m4a": "audio/mp4"}
LARGEST_FILE, LARGEST_TOGETHER = 200_000, 1_200_000  # bytes embedded in a page
LONGEST = 400  # words aligned


@dataclass(frozen=True)
class RecognisedUtterance:
    """A test utterance: reference, hypothesis, errors (ins + del + sub) and number of reference words."""

    name: str
    speaker: str
    reference: str
    hypothesis: str
    errors: int
    words: int


@dataclass(frozen=True)
class AlignedWords:
    """A reference word over a recognised word; "" if there is none. `kind` is "", "sub", "ins" or "del"."""

    said: str
    heard: str
    kind: str


@dataclass(frozen=True)
class Shown:
    """An utterance as shown on the page; `audio` is a data URI, or "" if there is none."""

    utterance: RecognisedUtterance
    pairs: tuple[AlignedWords, ...]
    audio: str = ""


def read_recognised(path: Path, problems: list[str]) -> tuple[RecognisedUtterance, ...]:
    """The utterances of recognised.jsonl; empty without such a file. Damaged lines are left out and noted."""
    if not path.is_file():
        return ()
    found: list[RecognisedUtterance] = []

    def take(row: Any) -> None:
        name, speaker, said, heard = (str(row[key]) for key in KEYS)
        found.append(RecognisedUtterance(name, speaker, said, heard, int(row["errors"]), int(row["words"])))

    read_lines(path, take, problems)
    return tuple(found)


def worst(utterances: Iterable[RecognisedUtterance], audio: Mapping[str, Path]) -> list[Shown]:
    """The utterances with the most errors, aligned, with their audio if it is small."""
    ranked = sorted((u for u in utterances if u.errors > 0), key=lambda u: (-u.errors, u.name))[:WORST]
    shown, embedded = [], 0
    for utterance in ranked:
        uri, size = embed(audio.get(utterance.name), LARGEST_TOGETHER - embedded)
        embedded += size
        shown.append(Shown(utterance, align(utterance.reference.split(), utterance.hypothesis.split()), uri))
    return shown


def align(reference: Sequence[str], hypothesis: Sequence[str]) -> tuple[AlignedWords, ...]:
    """An alignment with the fewest insertions, deletions and substitutions in total (Levenshtein), word by word.

    Only the beginning of very long utterances is aligned.
    """
    reference, hypothesis = reference[:LONGEST], hypothesis[:LONGEST]
    costs = [list(range(len(hypothesis) + 1))]
    for i, word in enumerate(reference, start=1):
        row = [i]
        for j, other in enumerate(hypothesis, start=1):
            row.append(min(costs[-1][j - 1] + (word != other), costs[-1][j] + 1, row[-1] + 1))
        costs.append(row)
    i, j, pairs = len(reference), len(hypothesis), list[AlignedWords]()
    while i or j:
        if i and j and costs[i][j] == costs[i - 1][j - 1] + (reference[i - 1] != hypothesis[j - 1]):
            i, j = i - 1, j - 1
            pairs.append(AlignedWords(reference[i], hypothesis[j], "" if reference[i] == hypothesis[j] else "sub"))
        elif i and costs[i][j] == costs[i - 1][j] + 1:
            i -= 1
            pairs.append(AlignedWords(reference[i], "", "del"))
        else:
            j -= 1
            pairs.append(AlignedWords("", hypothesis[j], "ins"))
    return tuple(reversed(pairs))


def embed(path: Path | None, room: int) -> tuple[str, int]:
    """A recording as a data URI, and its bytes; "" and 0 if it cannot be played or is too large."""
    if path is None or path.suffix.lower() not in MIME or not path.is_file():
        return "", 0
    size = path.stat().st_size
    if size > min(LARGEST_FILE, room):
        return "", 0
    return f"data:{MIME[path.suffix.lower()]};base64,{base64.b64encode(path.read_bytes()).decode()}", size


def find_audio(places: Sequence[Path], wanted: Iterable[str]) -> dict[str, Path]:
    """Recordings of the utterances in folders (UTTERANCE.wav, .flac, ..., at any depth) and Kaldi's wav.scp files.

    Relative paths of a wav.scp are below its folder, or the next two above, as readers of corpora take them, else below
    the working directory. Lines that are commands are skipped: a report runs no commands.

    Raises:
        FileNotFoundError: a given path does not exist.
    """
    names, found = set(wanted), dict[str, Path]()
    for place in places:
        if place.is_dir():
            files = sorted(f for f in place.rglob("*") if f.suffix.lower() in MIME and f.stem in names)
            found.update({f.stem: f for f in files})
        elif place.is_file():
            for line in place.read_text(encoding="utf-8", errors="replace").split("\n"):
                name, _, path = line.strip().partition(" ")
                if name in names and path and not path.rstrip().endswith("|"):
                    found[name] = _beside(place, path.strip())
        else:
            raise FileNotFoundError(f"--audio {place}: there is no such folder or wav.scp file")
    return found


def _beside(scp: Path, entry: str) -> Path:
    folders = scp.absolute().parents[:3]
    return next((folder / entry for folder in folders if (folder / entry).is_file()), Path(entry))
