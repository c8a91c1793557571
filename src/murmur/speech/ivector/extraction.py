"""i-vectors of utterances: one for each, for all of a speaker, or for a few of a speaker at a time.

Shapes: T frames, F features, D values of an i-vector.
"""

from __future__ import annotations

from collections.abc import Mapping

from numpy.typing import NDArray

from murmur.speech.ivector.extractor import Extractor, IvectorConfig, train_extractor
from murmur.speech.ivector.statistics import Sums
from murmur.speech.ivector.ubm import FloatArray, Ubm, train_ubm

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
    ubm: Ubm, feats: Features, groups: list[tuple[str, ...]], scale: float, weights: Features | None = None
) -> list[Sums]:
    """The sums of each group; `weights` has the weights (T,) of the frames of each utterance, all 1 if it is None."""
    found = []
    for group in groups:
        total = Sums.none(ubm)
        for name in group:
            total += Sums.of(ubm, feats[name], scale, None if weights is None else weights[name])
        found.append(total)
    return found


def train(
    feats: Features, speakers: Mapping[str, str], config: IvectorConfig, weights: Features | None = None
) -> Extractor:
    """A background model and an extractor from the frames of training utterances.

    Raises:
        ValueError: there are too few frames, or no utterance.
    """
    ubm, _ = train_ubm([feats[name] for name in sorted(feats, key=str.encode)], config.ubm)
    sums = summed(ubm, feats, groups_of(speakers, config.utterances), config.scale, weights)
    return train_extractor(ubm, sums, config)[0]


def ivectors(
    extractor: Extractor,
    feats: Features,
    speakers: Mapping[str, str],
    scale: float,
    utterances: int = 0,
    weights: Features | None = None,
) -> dict[str, FloatArray]:
    """The i-vector (D,) of each utterance: that of its group, see `groups_of`."""
    groups = groups_of({name: speakers[name] for name in feats}, utterances)
    sums = summed(extractor.ubm, feats, groups, scale, weights)
    found: dict[str, FloatArray] = {}
    for group, total in zip(groups, sums, strict=True):
        found |= dict.fromkeys(group, extractor.ivector(total))
    return {name: found[name] for name in feats}
