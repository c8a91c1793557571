"""i-vectors of utterances: one for each, for all of a speaker, or for a few of a speaker at a time.

Shapes: T frames, F features, D values of an i-vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from numpy.typing import NDArray

from murmur.speech.ivector.extractor import Extractor, IvectorConfig, train_extractor
from murmur.speech.ivector.statistics import Sums
from murmur.speech.ivector.ubm import FloatArray, Progress, Ubm, ignore_progress, train_ubm

Features = Mapping[str, NDArray]


def groups_of(speakers: Mapping[str, str], utterances: int) -> list[tuple[str, ...]]:
    """Groups of utterances of one speaker, in byte order of their names.

    Args:
        speakers: {utterance: speaker}.
        utterances: largest number in a group; 0: all of the speaker.
    """
    own: dict[str, list[str]] = {}
    for name in sorted(speakers, key=str.encode):
        own.setdefault(speakers[name], []).append(name)
    groups = []
    for names in own.values():
        size = utterances or len(names)
        groups += [tuple(names[begin : begin + size]) for begin in range(0, len(names), size)]
    return groups


def summed(
    ubm: Ubm, feats: Features, groups: Sequence[tuple[str, ...]], scale: float, weights: Features | None = None
) -> list[Sums]:
    """The sums of each group; `weights` has the weights (T,) of the frames of each utterance, all 1 if it is None."""
    return [_summed(ubm, feats, group, scale, weights) for group in groups]


def _summed(ubm: Ubm, feats: Features, group: tuple[str, ...], scale: float, weights: Features | None) -> Sums:
    total = Sums.none(ubm)
    for name in group:
        total += Sums.of(ubm, feats[name], scale, None if weights is None else weights[name])
    return total


def train(
    feats: Features,
    speakers: Mapping[str, str],
    config: IvectorConfig,
    weights: Features | None = None,
    ubm: Ubm | None = None,
    progress: Progress = ignore_progress,
) -> Extractor:
    """An extractor from the frames of training utterances.

    Args:
        feats: {utterance: (T, F) features}.
        speakers: {utterance: speaker}; those without features are left out.
        config: settings.
        weights: {utterance: (T,) weights of the frames}; None: all 1.
        ubm: background model; None trains one on the same frames.
        progress: function called after each pass.

    Raises:
        ValueError: there are too few frames, or no utterance.
    """
    if ubm is None:
        ubm, _ = train_ubm([feats[name] for name in sorted(feats, key=str.encode)], config.ubm, progress)
    groups = groups_of({name: speakers[name] for name in feats}, config.utterances)
    sums = summed(ubm, feats, groups, config.scale, weights)
    return train_extractor(ubm, sums, config, progress)[0]


def ivectors(
    extractor: Extractor,
    feats: Features,
    speakers: Mapping[str, str],
    scale: float,
    utterances: int = 0,
    weights: Features | None = None,
) -> dict[str, FloatArray]:
    """The i-vector (D,) of each utterance: that of its group, see `groups_of`."""
    found: dict[str, FloatArray] = {}
    for group in groups_of({name: speakers[name] for name in feats}, utterances):
        total = _summed(extractor.ubm, feats, group, scale, weights)
        found |= dict.fromkeys(group, extractor.ivector(total))
    return {name: found[name] for name in feats}
