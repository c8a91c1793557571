"""Inputs of a trained network that depend on the speaker, saved beside its weights: i-vectors and adapted features.

i-vectors are estimated from the features alone. Adapted features need a transform of the speaker, which comes from a
decoding pass with the Gaussian system; a search for it is given to `SpeakerInputs.columns`.

Shapes: T frames, F features, D values of an i-vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from murmur.core.errors import SettingError
from murmur.speech.corpus.file_errors import making_sense_of, read_object
from murmur.speech.decoding.decoder import DecodeOptions
from murmur.speech.features.analysis import Mfcc, Ready
from murmur.speech.hmm.speaker_transforms import Transforms
from murmur.speech.ivector.extraction import ivectors
from murmur.speech.ivector.extractor import Extractor
from murmur.speech.ivector.storage import load_extractor, save_extractor
from murmur.tasks.adapted_gaussians import AdaptedGaussians
from murmur.tasks.speaker_columns import GaussianFeatures, SpeakerColumns

EXTRACTOR = "ivector.npz"
FRONTS: Mapping[str, type[Mfcc | Ready]] = {"Mfcc": Mfcc, "Ready": Ready}
Estimate = Callable[[Mapping[str, np.ndarray], Mapping[str, str]], Transforms]  # of features and speakers


FIRST_BEAM, FIRST_STATES = 10.0, 2000  # widest search of a pass whose paths only give transforms; Kaldi's


def narrow(options: DecodeOptions) -> DecodeOptions:
    """The settings with the beam and the number of states limited, for a pass whose paths only give transforms."""
    beam, states = min(options.beam, FIRST_BEAM), min(options.max_active, FIRST_STATES)
    return replace(options, beam=beam, max_active=states)


@dataclass(frozen=True)
class FirstPass:
    """Settings of the pass over unadapted features, whose paths give the transforms.

    Attributes:
        grammar: name of the grammar.
        options: settings of the search.
    """

    grammar: str
    options: DecodeOptions

    def to_json(self) -> dict[str, Any]:
        """The values in JSON's terms."""
        return asdict(self)

    @staticmethod
    def of_json(content: Mapping[str, Any]) -> FirstPass:
        """Read what `to_json` returned.

        Raises:
            LookupError, TypeError, ValueError: the content has another form.
        """
        return FirstPass(str(content["grammar"]), DecodeOptions(**content["options"]))

    @staticmethod
    def read(path: Path) -> FirstPass:
        """Read a file of `to_json`.

        Raises:
            FileNotFoundError: there is no such file.
            CorpusError: the file is damaged.
        """
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
        extractor: extractor of i-vectors; None for an input without.
        scale: posterior scale of i-vectors.
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

        Raises:
            SettingError: the input has adapted features, and there is no such function.
        """
        feats = GaussianFeatures.of(cepstra, speakers)
        columns = SpeakerColumns(feats, speakers)
        if self.gaussians is not None:
            if estimate is None:
                raise SettingError("adapted features need transforms from a decoding pass, and there is no search")
            warped, projection = self.gaussians.warped(feats, speakers), self.gaussians.pair.adapted.projection
            columns = SpeakerColumns(warped, speakers, estimate(dict(warped), speakers), projection)
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
            "front": {"type": type(self.front).__name__, **asdict(self.front)},
            "spectrum": self.spectrum,
            "first_pass": None if self.first_pass is None else self.first_pass.to_json(),
            "scale": self.scale,
        }

    @staticmethod
    def open(
        content: Mapping[str, Any], files: Mapping[str, Path], gaussians: AdaptedGaussians | None
    ) -> SpeakerInputs:
        """Read what `save` wrote; `files` maps names to verified files, `gaussians` is that of the recogniser.

        Raises:
            LookupError, TypeError, ValueError: the content has another form.
        """
        values = dict(content["front"])
        front = FRONTS[values.pop("type")](**values)
        given = content["first_pass"]
        first_pass = None if given is None else FirstPass.of_json(given)
        if first_pass is not None and gaussians is None:
            raise ValueError("adapted features without a Gaussian system")
        extractor = load_extractor(files[EXTRACTOR]) if EXTRACTOR in files else None
        own = None if first_pass is None else gaussians
        return SpeakerInputs(front, bool(content["spectrum"]), own, first_pass, extractor, float(content["scale"]))
