"""Digest of the data of a task: utterances, their texts and lengths, wherever their files lie and whatever their dates.

A resumed run warns if it has changed (`murmur.engine.task.IdentifiesData`). Samples and features are not read: another
recording of the same length under the same name and text goes unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from hashlib import blake2b

from murmur.speech.corpus.corpus import Corpus


def digest_of(*parts: Iterable[Sequence[object]]) -> str:
    """Return sixteen hexadecimal digits that depend on the rows of each part and on their order."""
    content = blake2b(digest_size=8)
    for part in parts:
        for row in part:
            content.update("\x1f".join(map(str, row)).encode(errors="backslashreplace") + b"\x1e")
        content.update(b"\x1d")
    return content.hexdigest()


def rows_of(corpus: Corpus, frames: Mapping[str, Sized] | None = None) -> Iterator[tuple[object, ...]]:
    """Identifier, speaker and text of utterances; with `frames`, those of utterances that have some, and how many."""
    for u in corpus.utterances:
        if frames is None:
            yield u.id, u.speaker, u.text
        elif u.id in frames:
            yield u.id, u.speaker, u.text, len(frames[u.id])
