"""Speaker-adapted Gaussian system of a finished run: front end and models, from audio to scores, without the corpus.

Shapes: feats_TF, T frames of F cepstra; scores_TP, P pdfs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from murmur.speech.features.analysis import Mfcc, Ready, deltas
from murmur.speech.features.cmvn import normalise, statistics
from murmur.speech.hmm.mixtures import FloatArray
from murmur.speech.hmm.speaker_transforms import AdaptedPair, FmllrConfig, transforms_from_paths
from murmur.speech.hmm.storage import load_model, save_model

ADAPTED, UNADAPTED = "adapted.npz", "unadapted.npz"
SPEAKER = "speaker"


@dataclass(frozen=True, eq=False)
class AdaptedGaussians:
    """Speaker-adapted Gaussian system.

    Attributes:
        name: name of its stage, as in the figures of score.json.
        front: analysis of audio; or `Ready` for features of a set.
        pair: models of adapted and of unadapted features, with the states of the network.
        fmllr: settings for the estimation of transforms in decoding.
    """

    name: str
    front: Mfcc | Ready
    pair: AdaptedPair
    fmllr: FmllrConfig

    def features(self, cepstra: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Cepstra of all speech of one speaker less their mean, with two orders of deltas."""
        pair = statistics(cepstra, variance=False)
        return [deltas(normalise(feats_TF, *pair)) for feats_TF in cepstra]

    def transform(
        self, feats: Sequence[np.ndarray], paths: Sequence[np.ndarray], present: FloatArray | None = None
    ) -> FloatArray | None:
        """W (D, D + 1) of one speaker from the best paths of `features`; None if no path is whole.

        `present` is the transform with which the paths were found; without one the unadapted model found them.
        """
        names = [f"{i:06}" for i in range(len(feats))]
        found = transforms_from_paths(
            self.pair,
            dict(zip(names, feats, strict=True)),
            dict(zip(names, paths, strict=True)),
            dict.fromkeys(names, SPEAKER),
            self.fmllr,
            None if present is None else {SPEAKER: present},
        )
        return found.get(SPEAKER)

    def scores(self, feats_TF: np.ndarray, transform: FloatArray | None) -> np.ndarray:
        """(T, P) log-likelihoods of `features`: of the adapted model after a transform, else of the unadapted model."""
        return self.pair.loglikes(feats_TF, transform)

    def save(self, folder: Path) -> dict[str, Any]:
        """Write both models into a folder; return the other values in JSON's terms."""
        save_model(self.pair.adapted, folder / ADAPTED)
        save_model(self.pair.unadapted, folder / UNADAPTED)
        kind = {"front_type": "Ready"} if isinstance(self.front, Ready) else {}
        return {"name": self.name, "front": asdict(self.front), **kind, "fmllr": asdict(self.fmllr)}

    @staticmethod
    def open(content: Mapping[str, Any], files: Mapping[str, Path]) -> AdaptedGaussians:
        """Read what `save` wrote; `files` maps names to verified files.

        Raises:
            LookupError, TypeError, ValueError: the content has another form.
        """
        pair = AdaptedPair(load_model(files[ADAPTED]), load_model(files[UNADAPTED]))
        kind = {"Mfcc": Mfcc, "Ready": Ready}[content.get("front_type", "Mfcc")]
        front, fmllr = kind(**content["front"]), FmllrConfig(**content["fmllr"])
        return AdaptedGaussians(str(content["name"]), front, pair, fmllr)
