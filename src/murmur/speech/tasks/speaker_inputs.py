"""Inputs of a network that depend on the speaker: features adapted by fMLLR, and the i-vector.

    x_t = [spectrum_t, A_s P y_t + b_s, phi_u]

y: cepstra less their mean over the speaker, with deltas; P: projection of the Gaussian system; A_s, b_s: transform of
the speaker; phi_u: i-vector, the same in all frames of an utterance. i-vectors are estimated from the features alone;
transforms come from a decoding pass with the Gaussian system.

Shapes: T frames, F cepstra with deltas, D projected features, I values of an i-vector, P pdfs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from murmur.core.errors import SettingError
from murmur.core.whole_files import write_whole
from murmur.speech.corpus.file_content import making_sense_of, read_object
from murmur.speech.decoding.decoder import DecodeOptions
from murmur.speech.features.analysis import LogMel, Mfcc, Ready
from murmur.speech.features.by_utterance import part_of
from murmur.speech.features.derived import ChangedArrays, DerivedFeatures
from murmur.speech.hmm.fmllr import AdaptedPair, FmllrConfig, Transforms
from murmur.speech.hmm.ivector import Extractor, ivectors, load_extractor, save_extractor
from murmur.speech.hmm.model import Projection, adapt, project
from murmur.speech.hmm.storage import load_model, save_model

ADAPTED, UNADAPTED = "adapted.npz", "unadapted.npz"
EXTRACTOR = "ivector.npz"
FrontKind = TypeVar("FrontKind", bound=LogMel | Mfcc | Ready)
CEPSTRA: Mapping[str, type[Mfcc | Ready]] = {"Mfcc": Mfcc, "Ready": Ready}
Estimate = Callable[[Mapping[str, np.ndarray], Mapping[str, str]], Transforms]  # of features and speakers
FIRST_BEAM, FIRST_STATES = 10.0, 2000  # widest search of a pass whose paths only give transforms; Kaldi's


def front_to_json(front: LogMel | Mfcc | Ready) -> dict[str, Any]:
    return {"type": type(front).__name__, **asdict(front)}


def front_of_json(content: Mapping[str, Any], kinds: Mapping[str, type[FrontKind]]) -> FrontKind:
    kind, types = kinds[content["type"]], {"int": int, "float": float, "bool": bool}
    return kind(**{field.name: types[str(field.type)](content[field.name]) for field in fields(kind)})


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
        return self.of_features(utterance, self.feats[utterance])

    def of_features(self, utterance: str, feats_TF: np.ndarray) -> np.ndarray:
        """`of`, from the utterance's features of the Gaussian systems."""
        parts = []
        if self.transforms is not None:
            projected_TD = project(self.projection, feats_TF)
            parts.append(adapt(self.transforms.get(self.speakers[utterance]), projected_TD))
        if self.ivectors is not None:
            parts.append(np.tile(self.ivectors[utterance].astype(np.float32), (len(feats_TF), 1)))
        return np.concatenate(parts, axis=1)

    def part(self, names: Sequence[str]) -> SpeakerColumns:
        speakers = {name: self.speakers[name] for name in names}
        transforms = self.transforms
        if transforms is not None:
            transforms = {s: transforms[s] for s in dict.fromkeys(speakers.values()) if s in transforms}
        ivectors = None if self.ivectors is None else {name: self.ivectors[name] for name in names}
        return replace(
            self, feats=part_of(self.feats, names), speakers=speakers, transforms=transforms, ivectors=ivectors
        )


def joined(utterance: str, spectrum_TS: np.ndarray | None, columns: SpeakerColumns | None) -> np.ndarray:
    """(T, S + D + I) the network's input for an utterance; None for a part that is left out."""
    parts = [] if spectrum_TS is None else [spectrum_TS]
    if columns is not None:
        parts.append(columns.of(utterance))
    if len({len(part) for part in parts}) > 1:
        lengths = " and ".join(str(len(part)) for part in parts)
        raise ValueError(
            f"{utterance} has {lengths} frames of spectrum and of cepstra: the parts of an input need equal frames"
        )
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def all_joined(spectrum: Mapping[str, np.ndarray] | None, columns: SpeakerColumns | None) -> Mapping[str, np.ndarray]:
    """`joined` of the utterances that have all parts of the input, computed as they are taken."""
    if columns is None:
        return spectrum or {}
    if spectrum is None:
        return ChangedArrays(columns.feats, columns.of_features)
    both = [name for name in spectrum if name in columns]
    return ChangedArrays(part_of(spectrum, both), partial(_beside, columns))


def _beside(columns: SpeakerColumns, utterance: str, spectrum_TS: np.ndarray) -> np.ndarray:
    return joined(utterance, spectrum_TS, columns)


@dataclass(frozen=True, eq=False)
class AdaptedGaussians:
    """Speaker-adapted Gaussian system.

    Attributes:
        name: name of its stage, as in the figures of score.json.
        front: analysis of audio; or `Ready` for features of a set.
        pair: models of adapted and of unadapted features, with the states of the network.
    """

    name: str
    front: Mfcc | Ready
    pair: AdaptedPair
    fmllr: FmllrConfig

    def save(self, folder: Path) -> dict[str, Any]:
        """Write both models into a folder; return the other values in JSON's terms."""
        save_model(self.pair.adapted, folder / ADAPTED)
        save_model(self.pair.unadapted, folder / UNADAPTED)
        return {"name": self.name, "front": front_to_json(self.front), "fmllr": asdict(self.fmllr)}

    @staticmethod
    def open(content: Mapping[str, Any], files: Mapping[str, Path]) -> AdaptedGaussians:
        pair = AdaptedPair(load_model(files[ADAPTED]), load_model(files[UNADAPTED]))
        front = front_of_json(content["front"], CEPSTRA)
        return AdaptedGaussians(str(content["name"]), front, pair, FmllrConfig(**content["fmllr"]))


def narrow(options: DecodeOptions) -> DecodeOptions:
    """The settings with the beam and the number of states limited, for a pass whose paths only give transforms."""
    return replace(options, beam=min(options.beam, FIRST_BEAM), max_active=min(options.max_active, FIRST_STATES))


@dataclass(frozen=True)
class FirstPass:
    """Settings of the pass over unadapted features, whose paths give the transforms."""

    grammar: str
    options: DecodeOptions

    @staticmethod
    def of_json(content: Mapping[str, Any]) -> FirstPass:
        return FirstPass(str(content["grammar"]), DecodeOptions(**content["options"]))

    def write(self, path: Path) -> None:
        write_whole(path, json.dumps(asdict(self), indent=1).encode())

    @staticmethod
    def read(path: Path) -> FirstPass:
        if not path.is_file():
            raise FileNotFoundError(path)
        again = "delete it, and prepare again"
        content = read_object(path, again)
        with making_sense_of(path, again):
            return FirstPass.of_json(content)


@dataclass(frozen=True, eq=False)
class SpeakerInputs:
    """The inputs.

    Attributes:
        front: analysis of audio for the Gaussian system and the extractor; or `Ready` for features of a set.
        spectrum: True if the network's input begins with its own features.
        gaussians: speaker-adapted Gaussian system of adapted features; None for an input without.
        first_pass: settings of the pass that gives the transforms; None for an input without adapted features.
    """

    front: Mfcc | Ready
    spectrum: bool
    gaussians: AdaptedGaussians | None
    first_pass: FirstPass | None
    extractor: Extractor | None
    scale: float

    def columns(
        self, cepstra: Mapping[str, np.ndarray], speakers: Mapping[str, str], estimate: Estimate | None
    ) -> SpeakerColumns:
        """The columns of the input for all speech of some speakers.

        Args:
            cepstra: {utterance: (T, F) cepstra} of `front`.
            speakers: {utterance: speaker}.
            estimate: function that estimates the transforms of the speakers; used for adapted features alone.
        """
        feats = DerivedFeatures.gaussian(cepstra, speakers)
        columns = SpeakerColumns(feats, speakers)
        if self.gaussians is not None:
            if estimate is None:
                raise SettingError("adapted features need transforms from a decoding pass, and there is no search")
            projection = self.gaussians.pair.adapted.projection
            columns = SpeakerColumns(feats, speakers, estimate(dict(feats), speakers), projection)
        if self.extractor is not None:
            columns = replace(columns, ivectors=ivectors(self.extractor, feats, speakers, self.scale))
        return columns

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the extractor into a folder; return the other values in JSON's terms.

        The Gaussian system is saved by the recogniser.
        """
        if self.extractor is not None:
            save_extractor(self.extractor, folder / EXTRACTOR)
        return {
            "front": front_to_json(self.front),
            "spectrum": self.spectrum,
            "first_pass": None if self.first_pass is None else asdict(self.first_pass),
            "scale": self.scale,
        }

    @staticmethod
    def open(
        content: Mapping[str, Any], files: Mapping[str, Path], gaussians: AdaptedGaussians | None
    ) -> SpeakerInputs:
        front = front_of_json(content["front"], CEPSTRA)
        given = content["first_pass"]
        first_pass = None if given is None else FirstPass.of_json(given)
        if first_pass is not None and gaussians is None:
            raise ValueError("adapted features without a Gaussian system")
        extractor = load_extractor(files[EXTRACTOR]) if EXTRACTOR in files else None
        own = None if first_pass is None else gaussians
        return SpeakerInputs(front, bool(content["spectrum"]), own, first_pass, extractor, float(content["scale"]))
