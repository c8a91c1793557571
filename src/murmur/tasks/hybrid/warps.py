"""Vocal tract length normalisation of a set: the Gaussians of all speech and the warp factors of speakers, stored."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from murmur.speech.corpus.corpus import Corpus
from murmur.speech.corpus.file_errors import making_sense_of
from murmur.speech.features.cepstral_warp import MelCepstra, warp_matrix
from murmur.speech.hmm.mixtures import Mixtures
from murmur.speech.hmm.storage import AGAIN, read_with_header, write_with_header
from murmur.speech.hmm.vtln import SpeechGaussians, VtlnConfig, speaker_factors, train_vtln, warp_all
from murmur.tasks.prepared import Absent, refuse_to_make

log = logging.getLogger(__name__)
GAUSSIANS_FORMAT, FACTORS_FORMAT = "murmur speech Gaussians 1", "murmur warp factors 1"
Arrays = Mapping[str, np.ndarray]


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
    """

    config: VtlnConfig
    analysis: MelCepstra
    cepstra: int
    key: str
    cache: Path
    absent: Absent
    first: Callable[[Arrays], SpeechGaussians]
    train: Corpus

    @property
    def file(self) -> Path:
        """File of the Gaussians."""
        return self.cache / f"vtln-{self.key}.npz"

    def warped(self, part: Corpus, feats: Arrays, train: Callable[[], Arrays]) -> dict[str, np.ndarray]:
        """Features of a part, under the factors of its speakers; `train` gives those of train, not warped."""
        return warp_all(feats, part.speakers, self._factors(part, feats, train), self.analysis, self.cepstra)

    @cached_property
    def _matrices(self) -> dict[float, np.ndarray]:
        return {factor: warp_matrix(self.analysis, self.cepstra, factor) for factor in self.config.factors}

    def _factors(self, part: Corpus, feats: Arrays, train: Callable[[], Arrays]) -> dict[str, float]:
        path = self.cache / f"vtln-{self.key}-factors-{part.digest()}.npz"
        try:
            return load_factors(path)
        except FileNotFoundError:
            log.info("vtln: warp factors of %d speakers", len(set(part.speakers.values())))
        except ValueError as error:
            log.warning("%s", error)
        found = speaker_factors(self._gaussians(train), feats, part.speakers, self._matrices)
        log.info("vtln: speakers by factor %s", dict(sorted(Counter(found.values()).items())))
        save_factors(found, path)
        return found

    def _gaussians(self, train: Callable[[], Arrays]) -> SpeechGaussians:
        try:
            return load_gaussians(self.file)
        except (FileNotFoundError, ValueError) as error:
            if self.absent == "refuse":
                refuse_to_make(f"the Gaussians of all speech {self.file.name} ({error})", self.cache)
            log.info("vtln: training") if isinstance(error, FileNotFoundError) else log.warning("%s", error)
        feats = train()
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
