"""Speaker-adapted Gaussian system of a finished run: front end and models, from audio to scores, without the corpus.

Shapes: feats_TF, T frames of F cepstra; scores_TP, P pdfs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from murmur.speech.features.analysis import Mfcc, Ready
from murmur.speech.hmm.mixtures import FloatArray
from murmur.speech.hmm.speaker_transforms import AdaptedPair, FmllrConfig, transforms_from_paths
from murmur.speech.hmm.storage import load_model, save_model
from murmur.speech.hmm.vtln import Vtln
from murmur.tasks.hybrid.warps import load_vtln, save_vtln
from murmur.tasks.speaker_columns import GaussianFeatures

ADAPTED, UNADAPTED, VTLN = "adapted.npz", "unadapted.npz", "vtln.npz"
SPEAKER = "speaker"


@dataclass(frozen=True, eq=False)
class AdaptedGaussians:
    """Speaker-adapted Gaussian system.

    Attributes:
        name: name of its stage, as in the figures of score.json.
        front: analysis of audio; or `Ready` for features of a set.
        pair: models of adapted and of unadapted features, with the states of the network.
        fmllr: settings for the estimation of transforms in decoding.
        vtln: normalisation of the vocal tract length; None for models of features that are not warped.
    """

    name: str
    front: Mfcc | Ready
    pair: AdaptedPair
    fmllr: FmllrConfig
    vtln: Vtln | None = None

    def features(self, cepstra: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Cepstra of all speech of one speaker less their mean, with two orders of deltas; warped if `vtln` is set."""
        names = [f"{i:06}" for i in range(len(cepstra))]
        speakers = dict.fromkeys(names, SPEAKER)
        feats = self.warped(GaussianFeatures.of(dict(zip(names, cepstra, strict=True)), speakers), speakers)
        return [feats[name] for name in names]

    def warped(self, feats: GaussianFeatures, speakers: Mapping[str, str]) -> GaussianFeatures:
        """Features of some speakers under the warps of their vocal tracts; unchanged without `vtln`."""
        return feats if self.vtln is None else feats.warped(self.vtln.warps(feats, speakers))

    def transform(self, feats: Sequence[np.ndarray], paths: Sequence[np.ndarray]) -> FloatArray | None:
        """W (D, D + 1) of one speaker from the unadapted model's best paths of `features`; None: too little speech."""
        names = [f"{i:06}" for i in range(len(feats))]
        found = transforms_from_paths(
            self.pair,
            dict(zip(names, feats, strict=True)),
            dict(zip(names, paths, strict=True)),
            dict.fromkeys(names, SPEAKER),
            self.fmllr,
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
        vtln = {} if self.vtln is None else {"vtln": save_vtln(self.vtln, folder / VTLN)}
        return {"name": self.name, "front": asdict(self.front), **kind, "fmllr": asdict(self.fmllr), **vtln}

    @staticmethod
    def open(content: Mapping[str, Any], files: Mapping[str, Path]) -> AdaptedGaussians:
        """Read what `save` wrote; `files` maps names to verified files.

        Raises:
            LookupError, TypeError, ValueError: the content has another form.
        """
        pair = AdaptedPair(load_model(files[ADAPTED]), load_model(files[UNADAPTED]))
        kind = {"Mfcc": Mfcc, "Ready": Ready}[content.get("front_type", "Mfcc")]
        front, fmllr = kind(**content["front"]), FmllrConfig(**content["fmllr"])
        vtln = load_vtln(content["vtln"], files[VTLN]) if "vtln" in content else None
        return AdaptedGaussians(str(content["name"]), front, pair, fmllr, vtln)
