"""The i-vector stage of preparation: a background model and an extractor, each stored when it is trained.

Both are trained on the features of the Gaussian systems before any projection: cepstra less their mean over the
speaker, with deltas. They need no alignment, so that speech is recognised with i-vectors in one pass. The files are
named by a digest of everything that made them; a file that is missing or damaged is made again, the others are read.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from murmur.speech.ivector.extraction import train
from murmur.speech.ivector.extractor import Extractor, IvectorConfig
from murmur.speech.ivector.storage import load_extractor, load_ubm, save_extractor, save_ubm
from murmur.speech.ivector.ubm import Ubm, train_ubm
from murmur.tasks.prepared import Absent, refuse_to_make

log = logging.getLogger(__name__)
FORMAT = 2
Made = TypeVar("Made", Ubm, Extractor)


@dataclass(frozen=True)
class IvectorStage:
    """Training of an extractor.

    Attributes:
        config: settings.
        corpus: digest of the training speech and its features.
        cache: folder of all stored results.
        absent: "make" to train what is missing from the cache, "refuse" to end with an error.
    """

    config: IvectorConfig
    corpus: str
    cache: Path
    absent: Absent = "make"

    @property
    def key(self) -> str:
        """Digest of everything that makes the extractor."""
        return self._digest(asdict(self.config))

    @property
    def files(self) -> tuple[Path, Path]:
        """Files of the background model and of the extractor."""
        ubm = self._digest(asdict(self.config.ubm))
        return self.cache / f"background-{ubm}.npz", self.cache / f"ivector-{self.key}.npz"

    def untrained(self) -> bool:
        """True if the extractor is missing from the cache; reads nothing."""
        return not self.files[1].is_file()

    def extractor(self, feats: Callable[[], Mapping[str, np.ndarray]], speakers: Mapping[str, str]) -> Extractor:
        """The extractor, read or trained.

        Args:
            feats: function that returns {utterance: (T, F) features} of the training speech.
            speakers: {utterance: speaker}.

        Raises:
            SettingError: it is missing, and `absent` refuses to make it.
            ValueError: there are fewer frames than Gaussians.
        """
        first, last = self.files

        def background() -> Ubm:
            own = feats()
            return train_ubm([own[name] for name in sorted(own, key=str.encode)], self.config.ubm, log_pass)[0]

        def extractor() -> Extractor:
            ubm = self._stored(first, load_ubm, background, save_ubm)
            return train(feats(), speakers, self.config, ubm=ubm, progress=log_pass)

        return self._stored(last, load_extractor, extractor, save_extractor)

    def _stored(
        self, path: Path, load: Callable[[Path], Made], make: Callable[[], Made], save: Callable[[Made, Path], None]
    ) -> Made:
        try:
            return load(path)
        except (FileNotFoundError, ValueError) as error:
            if self.absent == "refuse":
                refuse_to_make(f"the extractor of i-vectors {path.name} ({error})", self.cache)
            if isinstance(error, FileNotFoundError):
                log.info("%s: training", path.stem)
            else:
                log.warning("%s", error)
        made = make()
        self.cache.mkdir(parents=True, exist_ok=True)
        save(made, path)
        return made

    def _digest(self, config: object) -> str:
        content = json.dumps([FORMAT, config, self.corpus], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]


def log_pass(model: str, number: int, passes: int, value: float) -> None:
    """Log one line per pass."""
    unit = "nats per frame" if model == "background model" else "nats per group of utterances"
    log.info("%s %d/%d: %.3f %s", model, number, passes, value, unit)
