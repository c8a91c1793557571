"""The result of every reader of speech data: utterances, and the problems of those left out.

A `Corpus` holds no samples and no frames, only their locations. Identifiers are ordered by their UTF-8 bytes (what
`sort` does in the C locale, as Kaldi demands), and text is NFC.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from murmur.core.counted import NAMED, are, counted
from murmur.speech.corpus.errors import CorpusError as CorpusError  # noqa: PLC0414 - of all readers
from murmur.speech.corpus.remote import mark

log = logging.getLogger(__name__)
LOST_AT_MOST = 0.01


@dataclass(frozen=True)
class Audio:
    """A stretch of a recording, or all of it if `end_seconds` is None.

    Attributes:
        path: file that libsndfile reads (FLAC, WAV, ...); for a command, a name for messages.
        start_seconds: beginning of the utterance in the recording.
        end_seconds: end of the utterance; None for the end of the recording.
        command: a shell command whose output is a WAV file, in place of `path`; readers refuse it unless it is allowed.
        channel: channel of the file, from 0; None for a file with one channel.
        side: name and channel of the recording in time-marked files (STM, CTM), e.g. ("sw_4390", "A"); None if unknown.
        declared_seconds: length of the recording by its manifest, which the file must have; None if unknown.
    """

    path: Path
    start_seconds: float = 0.0
    end_seconds: float | None = None
    command: str | None = None
    channel: int | None = None
    side: tuple[str, str] | None = None
    declared_seconds: float | None = None


@dataclass(frozen=True)
class StoredFeatures:
    """Existing features: array `key` of an .npz file, or the byte offset `key` in a Kaldi archive."""

    path: Path
    key: str


@dataclass(frozen=True)
class Utterance:
    """One piece of speech with its transcript. It has `audio`, `features` or both."""

    id: str
    speaker: str
    text: str
    audio: Audio | None = None
    features: StoredFeatures | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The transcript split at white space."""
        return tuple(self.text.split())


@dataclass(frozen=True)
class Problem:
    """The reason why one utterance was left out; `where` is the file to look at."""

    utterance: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.utterance} ({self.where}): {self.what}"


@dataclass(frozen=True)
class Corpus:
    """Utterances in byte order of their identifiers, and the problems of those left out.

    Raises:
        CorpusError: two utterances share an identifier.
    """

    utterances: tuple[Utterance, ...]
    problems: tuple[Problem, ...] = field(default=())

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.utterances, key=lambda u: u.id.encode()))
        for a, b in pairwise(ordered):
            if a.id == b.id:
                raise CorpusError(f"utterance {a.id!r} appears twice: give every utterance an identifier of its own")
        object.__setattr__(self, "utterances", ordered)

    def __len__(self) -> int:
        return len(self.utterances)

    @property
    def texts(self) -> dict[str, str]:
        """Transcripts by utterance."""
        return {u.id: u.text for u in self.utterances}

    @property
    def speakers(self) -> dict[str, str]:
        """Speakers by utterance."""
        return {u.id: u.speaker for u in self.utterances}

    def subset(self, keep: Callable[[Utterance], bool]) -> Corpus:
        """The utterances for which `keep` is true, e.g. one fold of speakers, without the problems."""
        return Corpus(tuple(u for u in self.utterances if keep(u)))

    def without(self, problems: Iterable[Problem]) -> Corpus:
        """This corpus without the utterances named in `problems`, which are added to its own problems.

        Raises:
            CorpusError: as `check_losses`.
        """
        everything = (*self.problems, *problems)
        bad = {p.utterance for p in everything}
        kept = tuple(u for u in self.utterances if u.id not in bad)
        check_losses(len(kept), everything)
        return Corpus(kept, everything)

    def digest(self) -> str:
        """Digest of the exact content: identifiers, texts, sources and the sizes and dates of their files.

        Files of a command are the words of the command that name files. Files count by their path below their common
        folder, so that the digest stays the same when all files are moved.
        """
        sources = [source for u in self.utterances for source in (u.audio, u.features) if source is not None]
        paths = sorted({source.path for source in sources})
        whole = {path: os.path.abspath(path) for path in paths}
        root = os.path.commonpath([os.path.dirname(path) for path in whole.values()]) if whole else ""
        place = {str(path): os.path.relpath(name, root) for path, name in whole.items()}
        files = {place[str(path)]: mark(path) for path in paths}
        commands = {u.audio.command for u in self.utterances if u.audio is not None and u.audio.command is not None}
        words = {word.strip("'\"") for command in commands for word in command.split()}
        files |= {word: mark(Path(word)) for word in words if Path(word).is_file()}
        rows = [_placed(asdict(u), place) for u in self.utterances]
        return hashlib.sha256(json.dumps([rows, files], default=str, sort_keys=True).encode()).hexdigest()[:16]


def _placed(row: dict[str, Any], place: Mapping[str, str]) -> dict[str, Any]:
    """The fields of an utterance that its frames depend on, with the paths of its files."""
    for source in (row["audio"], row["features"]):
        if source is not None:
            source["path"] = place[str(source["path"])]
    if row["audio"] is not None:
        del row["audio"]["side"], row["audio"]["declared_seconds"]
    return row


def check_losses(kept: int, problems: Sequence[Problem], at_most: float = LOST_AT_MOST) -> None:
    """Refuse data with too many utterances left out; a CorpusError if nothing is left, or more than a share is lost."""
    lost = len({p.utterance for p in problems})
    if kept + lost == 0:
        raise CorpusError("there are no utterances")
    if kept and lost <= at_most * (kept + lost):
        return
    limit = f", more than {100 * at_most:g} %" if at_most < 1 else ""
    listing = "".join(f"\n  {p}" for p in problems[:8])
    more = f"\n  and {len(problems) - 8} more" if len(problems) > 8 else ""
    raise CorpusError(
        f"{lost} of {counted(kept + lost, 'utterance')} cannot be used{limit} (mend or remove them):{listing}{more}"
    )


def tell_losses(name: str, kept: int, problems: Sequence[Problem]) -> None:
    """Log `losses`, if there are any."""
    if problems:
        log.warning("%s: %s", name, losses(problems, kept))


def losses(problems: Sequence[Problem], kept: int) -> str:
    """Return a message about the utterances that are left out, each with its first problem; `kept` is the rest."""
    first = {p.utterance: p for p in reversed(problems)}
    reasons = [(f"{p.utterance} ({p.where})", p.what) for p in reversed(first.values())]
    return left_out("utterance", reasons, kept + len(reasons))


def normal_text(text: str) -> str:
    """Unicode NFC with single spaces, so that equal-looking transcripts are equal."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def left_out(kind: str, reasons: Sequence[tuple[str, str]], of: int | None = None) -> str:
    """Return `2 of 40 utterances are left out: a, b: no transcript`.

    Args:
        kind: one of the things, such as "utterance".
        reasons: names and reasons of those left out.
        of: number of all of them, with those left out.
    """
    count = len(reasons)
    total = counted(count, kind) if of is None else f"{count} of {counted(of, kind)}"
    groups = [(why, [name for name, _ in own]) for why, own in groupby(reasons[:NAMED], lambda each: each[1])]
    if len({why for _, why in reasons}) == 1:
        more = f" and {count - NAMED} more" if count > NAMED else ""
        named = f"{', '.join(groups[0][1])}{more}: {groups[0][0]}"
    else:
        more = f"; and {count - NAMED} more" if count > NAMED else ""
        named = "; ".join(f"{', '.join(names)}: {why}" for why, names in groups) + more
    return f"{total} {are(count)} left out: {named}"
