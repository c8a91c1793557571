"""Means and deviations of a store, computed in several processes with the same result as in one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from murmur.execution.processes import in_processes, with_bar
from murmur.speech.features.analysis import deltas
from murmur.speech.features.cmvn import Pair, Scope, statistics
from murmur.speech.features.shards import FeatureStore, ShardRows

UTTERANCES_PER_JOB = 1024  # or one speaker with any number of utterances


@dataclass(frozen=True, eq=False)
class Normalisation:
    """Assignment of means and deviations to utterances; small if many utterances share them.

    Attributes:
        group: speaker or utterance whose statistics each utterance takes.
        pairs: mean and deviation (F,) by group.
    """

    group: Mapping[str, str]
    pairs: Mapping[str, Pair]

    def of(self, utterance: str) -> Pair:
        """Mean and deviation for an utterance."""
        return self.pairs[self.group[utterance]]

    def part(self, utterances: Sequence[str]) -> Normalisation:
        """The normalisation of some utterances."""
        group = {name: self.group[name] for name in utterances}
        return Normalisation(group, {g: self.pairs[g] for g in dict.fromkeys(group.values())})


def normalisation(
    store: FeatureStore, scope: Scope, processes: int, progress: bool = False, delta_order: int = 0
) -> Normalisation | None:
    """Statistics of every speaker or utterance, of features with `delta_order` derivatives; None for scope "none"."""
    if scope == "none":
        return None
    speakers = store.corpus.speakers
    group = {name: speakers[name] if scope == "speaker" else name for name in store}
    members: dict[str, list[str]] = {}
    for name, owner in group.items():
        members.setdefault(owner, []).append(name)
    batches: list[dict[str, list[str]]] = []
    room = 0
    for owner, names in members.items():
        if room <= 0:
            batches.append({})
            room = UTTERANCES_PER_JOB
        batches[-1][owner] = names
        room -= len(names)
    jobs = [_job(store, batch, delta_order) for batch in batches]
    pairs: dict[str, Pair] = {}
    for found in with_bar(in_processes(jobs, processes), "statistics", len(jobs), progress):
        pairs |= found
    return Normalisation(group, pairs)


def _job(store: FeatureStore, members: Mapping[str, Sequence[str]], delta_order: int) -> partial[dict[str, Pair]]:
    return partial(_pairs, store.rows(name for names in members.values() for name in names), members, delta_order)


def _pairs(rows: ShardRows, members: Mapping[str, Sequence[str]], delta_order: int) -> dict[str, Pair]:
    return {
        owner: statistics(deltas(np.asarray(rows[name]), delta_order) for name in names)
        for owner, names in members.items()
    }
