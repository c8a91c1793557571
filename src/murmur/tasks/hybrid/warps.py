"""Vocal tract length normalisation of a set: the Gaussians of all speech and the warp factors of speakers, stored."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from murmur.core.counted import counted
from murmur.speech.corpus.corpus import Corpus
from murmur.speech.corpus.file_errors import making_sense_of
from murmur.speech.features.cepstral_warp import MelCepstra
from murmur.speech.hmm.mixtures import FloatArray, Mixtures
from murmur.speech.hmm.storage import AGAIN, read_with_header, write_with_header
from murmur.speech.hmm.vtln import (
    SpeechGaussians,
    Vtln,
    VtlnConfig,
    speaker_factors,
    train_vtln,
    warp_matrices,
    warps_of,
)
from murmur.tasks.prepared import Absent, refuse_to_make
from murmur.tasks.speaker_columns import GaussianFeatures

log = logging.getLogger(__name__)
GAUSSIANS_FORMAT, FACTORS_FORMAT = "murmur speech Gaussians 1", "murmur warp factors 1"
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Warps:
    """The normalisation of all parts of a set.

    Attributes:
        config: settings.
        analysis: the analysis that made the cepstra.
        cepstra: number of cepstra.
        key: digest of everything that makes the Gaussians.
        cache: folder of all stored results.
        absent: "make" to train Gaussians that are missing from the cache, "refuse" to end with an error.
        first: function that trains the Gaussians of all speech on features that are not warped.
        train: training utterances.
        train_feats: function that returns their features, not warped.
    """

    config: VtlnConfig
    analysis: MelCepstra
    cepstra: int
    key: str
    cache: Path
    absent: Absent
    first: Callable[[Arrays], SpeechGaussians]
    train: Corpus
    train_feats: Callable[[], GaussianFeatures]

    @property
    def file(self) -> Path:
        """File of the Gaussians."""
        return self.cache / f"vtln-{self.key}.npz"

    @cached_property
    def trained(self) -> Vtln:
        """The normalisation of any speech; its Gaussians are trained if they are not stored yet.

        Raises:
            SettingError: they are missing, and `absent` refuses to make them.
        """
        return Vtln(self._gaussians(), self.analysis, self.cepstra, self.config.factors)

    def warped(self, part: Corpus, feats: GaussianFeatures, speed: float = 1.0) -> GaussianFeatures:
        """Features of a part at one playback speed, under the factors of its speakers.

        A speaker at another speed is taken for another speaker, with a factor of their own.
        """
        return feats.warped(warps_of(self._factors(part, feats, speed), part.speakers, self._matrices))

    @cached_property
    def _matrices(self) -> dict[float, FloatArray]:
        return warp_matrices(self.analysis, self.cepstra, self.config.factors)

    def _factors(self, part: Corpus, feats: GaussianFeatures, speed: float) -> dict[str, float]:
        copy = "" if speed == 1.0 else f"-speed-{speed:g}"
        path = self.cache / f"vtln-{self.key}-factors-{part.digest()}{copy}.npz"
        try:
            return load_factors(path)
        except FileNotFoundError:
            log.info("vtln: warp factors of %s", counted(len(set(part.speakers.values())), "speaker"))
        except ValueError as error:
            log.warning("%s", error)
        found = speaker_factors(self.trained.gaussians, feats, part.speakers, self._matrices)
        log.info("vtln: speakers by factor %s", dict(sorted(Counter(found.values()).items())))
        save_factors(found, path)
        return found

    def _gaussians(self) -> SpeechGaussians:
        try:
            return load_gaussians(self.file)
        except (FileNotFoundError, ValueError) as error:
            if self.absent == "refuse":
                refuse_to_make(f"the Gaussians of all speech {self.file.name} ({error})", self.cache)
            log.info("vtln: training") if isinstance(error, FileNotFoundError) else log.warning("%s", error)
        feats = dict(self.train_feats())
        found = train_vtln(self.first(feats), feats, self.train.speakers, self._matrices, self.config.sweeps)
        self.cache.mkdir(parents=True, exist_ok=True)
        save_gaussians(found, self.file)
        return found


def save_gaussians(gaussians: SpeechGaussians, path: Path) -> None:
    """Write the Gaussians of all speech, replacing an existing file in one step."""
    mixtures = gaussians.mixtures
    arrays = {"weights": mixtures.weights, "means": mixtures.means, "variances": mixtures.variances}
    write_with_header(path, {"format": GAUSSIANS_FORMAT}, {**arrays, "speech": gaussians.speech})


def load_gaussians(path: Path) -> SpeechGaussians:
    """Read Gaussians of all speech, equal to the written ones to the bit.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged or of another kind.
    """
    _, arrays = read_with_header(path, GAUSSIANS_FORMAT)
    with making_sense_of(path, AGAIN):
        weights, speech = arrays["weights"], arrays["speech"]
        if speech.dtype != np.bool_ or speech.shape != weights.shape:
            raise ValueError(f"marks of speech of {speech.dtype} and shape {speech.shape} for {len(weights)} Gaussians")
        one = np.array([len(weights)], dtype=np.int64)
        return SpeechGaussians(Mixtures(one, weights, arrays["means"], arrays["variances"]), speech)


def save_vtln(vtln: Vtln, path: Path) -> dict[str, Any]:
    """Write the Gaussians of a normalisation; return its other values in JSON's terms."""
    save_gaussians(vtln.gaussians, path)
    return {"analysis": asdict(vtln.analysis), "cepstra": vtln.cepstra, "factors": list(vtln.factors)}


def load_vtln(content: Mapping[str, Any], path: Path) -> Vtln:
    """Read what `save_vtln` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        LookupError, TypeError, ValueError: the file is damaged, or the content has another form.
    """
    gaussians, analysis = load_gaussians(path), MelCepstra(**content["analysis"])
    factors = tuple(float(factor) for factor in content["factors"])
    return Vtln(gaussians, analysis, int(content["cepstra"]), factors)


def save_factors(factors: Mapping[str, float], path: Path) -> None:
    """Write {speaker: warp factor}, replacing an existing file in one step."""
    names = sorted(factors)
    values = np.array([factors[name] for name in names], dtype=np.float64)
    write_with_header(path, {"format": FACTORS_FORMAT, "speakers": names}, {"factors": values})


def load_factors(path: Path) -> dict[str, float]:
    """Read warp factors.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged or of another kind.
    """
    header, arrays = read_with_header(path, FACTORS_FORMAT)
    with making_sense_of(path, AGAIN):
        values = arrays["factors"]
        if values.dtype != np.float64 or not (values > 0).all():
            raise ValueError(f"factors of {values.dtype} that are not all positive numbers")
        return dict(zip(map(str, header["speakers"]), values.tolist(), strict=True))
