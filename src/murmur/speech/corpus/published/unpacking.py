"""Unpacked copies of the recordings of a corpus that are compressed by shorten."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from murmur.core.counted import counted
from murmur.speech.corpus.corpus import Corpus, Utterance
from murmur.speech.corpus.published.reading import Read
from murmur.speech.corpus.sphere import read_header, unpack

log = logging.getLogger(__name__)


def with_plain_audio(read: Read, folder: Path, jobs: int) -> Read:
    """Write shortened SPHERE files as WAV into a folder, those that are not there yet, and let utterances name them.

    The copies have the same samples, a byte each. Other recordings stay where they are.

    Raises:
        CorpusError: sph2pipe is missing or fails.
    """
    every = {u.audio.path for corpus in read.splits.values() for u in corpus.utterances if u.audio is not None}
    packed = sorted(path for path in every if path.suffix == ".sph" and read_header(path).is_shortened)
    plain = {path: folder.absolute() / f"{path.stem}.wav" for path in packed}
    shortened = [path for path in packed if not plain[path].is_file()]
    if shortened:
        log.info("unpacking %s into %s", counted(len(shortened), "recording"), folder)
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda path: unpack(path, plain[path]), shortened))
    return replace(read, splits={split: _moved(corpus, plain) for split, corpus in read.splits.items()})


def _moved(corpus: Corpus, plain: Mapping[Path, Path]) -> Corpus:
    return Corpus(tuple(_of(u, plain) for u in corpus.utterances), corpus.problems)


def _of(utterance: Utterance, plain: Mapping[Path, Path]) -> Utterance:
    audio = utterance.audio
    return (
        utterance if audio is None else replace(utterance, audio=replace(audio, path=plain.get(audio.path, audio.path)))
    )
