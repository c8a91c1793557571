"""Columns of a network's input that depend on the speaker: features adapted by fMLLR, and the i-vector.

    x_t = [spectrum_t, A_s P y_t + b_s, phi_u]

y: cepstra less their mean over the speaker, with deltas, warped if the vocal tract length is normalised; P: projection
of the Gaussian system; A_s, b_s: transform of the speaker; phi_u: i-vector, the same in all frames of an utterance. All
parts but the frames are in memory.

Shapes: T frames, F cepstra with deltas, D projected features, I values of an i-vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from murmur.speech.features.analysis import deltas
from murmur.speech.features.cepstral_warp import warped
from murmur.speech.features.cmvn import Pair, normalise, statistics_of_all
from murmur.speech.features.shards import FeatureStore, ShardRows
from murmur.speech.hmm.fmllr import adapt
from murmur.speech.hmm.mixtures import FloatArray
from murmur.speech.hmm.projection import Projection, project
from murmur.speech.hmm.speaker_transforms import Transforms


@dataclass(frozen=True, eq=False)
class GaussianFeatures(Mapping[str, np.ndarray]):
    """{utterance: (T, F)} cepstra less their mean, with two orders of deltas, computed as they are taken.

    Attributes:
        cepstra: cepstra, such as rows of a store.
        means: mean of the speaker, and deviation 1, of each utterance.
        warps: warp (K, K) of the vocal tract length of each utterance; utterances without one are not warped.
    """

    cepstra: Mapping[str, np.ndarray]
    means: Mapping[str, Pair]
    warps: Mapping[str, FloatArray] = field(default_factory=dict)

    @staticmethod
    def of(cepstra: Mapping[str, np.ndarray], speakers: Mapping[str, str]) -> GaussianFeatures:
        """The features of a part; the mean of a speaker is that of all their utterances in it."""
        means = statistics_of_all(cepstra, speakers, "speaker", variance=False)
        rows: Mapping[str, np.ndarray] = cepstra.rows(cepstra) if isinstance(cepstra, FeatureStore) else cepstra
        return GaussianFeatures(rows, {name: means[name] for name in rows})

    def __getitem__(self, utterance: str) -> np.ndarray:
        feats_TF = deltas(normalise(self.cepstra[utterance], *self.means[utterance]))
        return warped(feats_TF, self.warps.get(utterance))

    def __iter__(self) -> Iterator[str]:
        return iter(self.cepstra)

    def __len__(self) -> int:
        return len(self.cepstra)

    def __contains__(self, utterance: object) -> bool:
        return utterance in self.means

    def warped(self, warps: Mapping[str, FloatArray]) -> GaussianFeatures:
        """The features under warps, see `warps`."""
        return replace(self, warps=warps)

    def part(self, names: Sequence[str]) -> GaussianFeatures:
        """Some utterances, small to pickle if the cepstra are rows of a store."""
        if isinstance(self.cepstra, ShardRows):
            places = {name: self.cepstra.places[name] for name in names}
            rows: Mapping[str, np.ndarray] = ShardRows(self.cepstra.folder, places)
        else:
            rows = {name: self.cepstra[name] for name in names}
        warps = {name: self.warps[name] for name in names if name in self.warps}
        return GaussianFeatures(rows, {name: self.means[name] for name in names}, warps)


@dataclass(frozen=True, eq=False)
class SpeakerColumns:
    """The columns of some utterances.

    Attributes:
        feats: features of the Gaussian systems.
        speakers: speaker of each utterance.
        transforms: transform W (D, D + 1) of each speaker; None leaves adapted features out. Features of a speaker
            without a transform are projected only.
        projection: projection of the Gaussian system; None leaves features as they are.
        ivectors: i-vector (I,) of each utterance; None leaves it out.
    """

    feats: Mapping[str, np.ndarray]
    speakers: Mapping[str, str]
    transforms: Transforms | None = None
    projection: Projection | None = None
    ivectors: Mapping[str, np.ndarray] | None = None

    def __contains__(self, utterance: str) -> bool:
        return utterance in self.feats

    def of(self, utterance: str) -> np.ndarray:
        """(T, D + I) the columns of an utterance, float32."""
        feats_TF = self.feats[utterance]
        parts = []
        if self.transforms is not None:
            projected_TD = project(self.projection, feats_TF)
            parts.append(adapt(self.transforms.get(self.speakers[utterance]), projected_TD))
        if self.ivectors is not None:
            parts.append(repeated(self.ivectors[utterance], len(feats_TF)))
        return np.concatenate(parts, axis=1)

    def part(self, names: Sequence[str]) -> SpeakerColumns:
        """The columns of some utterances."""
        feats = self.feats.part(names) if isinstance(self.feats, GaussianFeatures) else self.feats
        speakers = {name: self.speakers[name] for name in names}
        transforms = self.transforms
        if transforms is not None:
            transforms = {s: transforms[s] for s in dict.fromkeys(speakers.values()) if s in transforms}
        ivectors = None if self.ivectors is None else {name: self.ivectors[name] for name in names}
        return replace(self, feats=feats, speakers=speakers, transforms=transforms, ivectors=ivectors)


def repeated(ivector_I: np.ndarray, frames: int) -> np.ndarray:
    """(frames, I) float32: the same i-vector in all frames."""
    return np.tile(ivector_I.astype(np.float32), (frames, 1))


def joined(utterance: str, spectrum_TS: np.ndarray | None, columns: SpeakerColumns | None) -> np.ndarray:
    """(T, S + D + I) the network's input for an utterance; None for a part that is left out.

    Raises:
        ValueError: the parts have different numbers of frames.
    """
    parts = [] if spectrum_TS is None else [spectrum_TS]
    if columns is not None:
        parts.append(columns.of(utterance))
    if len({len(part) for part in parts}) > 1:
        lengths = " and ".join(str(len(part)) for part in parts)
        raise ValueError(
            f"{utterance} has {lengths} frames of spectrum and of cepstra: the parts of an input need equal frames"
        )
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
