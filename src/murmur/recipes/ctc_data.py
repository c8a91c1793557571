"""Data of the CTC recipe: three splits of features and transcripts, read, normalised, held in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from murmur.speech import ctc
from murmur.speech.cmvn import Scope, normalise_all
from murmur.speech.corpus import Corpus, CorpusError, Problem
from murmur.speech.features import Front, LogMel, Ready, deltas, sample_rate_hz
from murmur.speech.kaldi_dir import read_data_dir
from murmur.speech.shards import FeatureStore, prepare

DEV_SPEAKERS = 8  # every eighth speaker of a training set that comes without a dev set


@dataclass(frozen=True)
class Split:
    """One part of the data: utterance names in byte order, normalised feats_TF, transcripts, label columns."""

    names: tuple[str, ...]
    feats: Mapping[str, np.ndarray]
    texts: Mapping[str, str]
    targets: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Data:
    """The output units and the three splits; `train` holds only utterances that CTC can align."""

    units: ctc.Units
    train: Split
    dev: Split
    test: Split


def load(root: Path, kind: ctc.Kind, stack: int, cmvn: Scope, cache: Path) -> Data:
    """Read `root`/data/{train,dev,test}, computing or finding the features in `cache`.

    Corpora that bring features (feats.scp) get two orders of deltas; from audio 40 log-mel bins are computed.

    Raises:
        CorpusError: a split is missing or malformed, or more than 1 % of it cannot be used.
    """
    train, dev, test = corpora(root)
    first = train.utterances[0]
    front: Front = Ready() if first.features else LogMel(rate_hz=sample_rate_hz(train), bins=40)
    units = ctc.Units.of(train.texts.values(), kind)
    splits = [_split(prepare(part, front, cache), units, stack, cmvn) for part in (train, dev, test)]
    usable = set(splits[0].targets)
    problems = [
        Problem(name, str(root), f"its transcript needs more frames than its {len(splits[0].feats[name])} / {stack}")
        for name in splits[0].names
        if name not in usable
    ]
    train = train.without(problems)
    aligned = replace(splits[0], names=tuple(name for name in splits[0].names if name in usable))
    return Data(units, aligned, splits[1], splits[2])


def corpora(root: Path) -> tuple[Corpus, Corpus, Corpus]:
    """Train, dev and test of a folder; without data/dev every eighth training speaker becomes dev.

    Raises:
        CorpusError: no data/train or data/test, or too few speakers to set some aside.
    """
    train, test = (read_data_dir(root / "data" / part) for part in ("train", "test"))
    if (root / "data" / "dev").is_dir():
        return train, read_data_dir(root / "data" / "dev"), test
    speakers = sorted(set(train.speakers.values()), key=str.encode)
    held_out = set(speakers[DEV_SPEAKERS - 1 :: DEV_SPEAKERS])
    if not held_out:
        raise CorpusError(f"{root} has no data/dev and only {len(speakers)} training speakers: add a dev set")
    return train.subset(lambda u: u.speaker not in held_out), train.subset(lambda u: u.speaker in held_out), test


def _split(store: FeatureStore, units: ctc.Units, stack: int, cmvn: Scope) -> Split:
    feats = normalise_all(store, store.corpus.speakers, cmvn)
    if isinstance(store.front, Ready):
        feats = {name: deltas(feats_TF) for name, feats_TF in feats.items()}
    texts = store.corpus.texts
    targets = {}
    for name, text in texts.items():
        labels = units.encode(text) if units.covers(text) else None
        if labels is not None and ctc.frames_needed(labels) <= -(-len(feats[name]) // stack):
            targets[name] = labels
    return Split(tuple(texts), feats, texts, targets)
