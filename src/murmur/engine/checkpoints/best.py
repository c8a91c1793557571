"""Best consensus models of a run, and the mean of their weights.

Averaging the weights of several points of one run is Polyak and Juditsky, "Acceleration of stochastic approximation by
averaging" (1992), with the points chosen by held-out loss, as in speech recipes. It takes disk space, no computation.

checkpoints/marks/0000001200.safetensors    weights and buffers of the consensus at that point
                  0000001200.json           its held-out figures
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from murmur.core.errors import DamagedCheckpoint
from murmur.engine.checkpoints.checkpoint import read_pair, write_pair

log = logging.getLogger(__name__)


class BestCheckpoints:
    """Consensus models at the `most` evaluation points of lowest held-out loss, in a folder."""

    def __init__(self, folder: Path, most: int) -> None:
        self.folder, self.most = folder, most

    def add(self, tensors: Mapping[str, Tensor], figures: Mapping[str, float], done: int) -> None:
        """Keep the model after `done` minibatches if it is among the best; a loss of nan never is."""
        loss = figures.get("loss", math.nan)
        if self.most < 1 or not math.isfinite(loss):
            return
        stem = self._stem(done)
        kept = self.ranked()
        if stem not in kept and len(kept) >= self.most and not loss < _loss(kept[self.most - 1]):
            return
        write_pair(stem, tensors, {"minibatches": done, "figures": dict(figures)})
        for worse in self.ranked()[self.most :]:
            _delete(worse)

    def ranked(self) -> list[Path]:
        """Return the stems of the kept models, lowest held-out loss first."""
        stems = [path.with_suffix("") for path in self.folder.glob("[0-9]*.json")]
        return sorted(stems, key=lambda stem: (_loss(stem), stem.name))

    def forget_after(self, done: int) -> None:
        """Delete models beyond `done` minibatches: a resumed run makes them again."""
        for stem in self.ranked():
            if int(stem.name) > done:
                _delete(stem)

    def mean(self) -> tuple[dict[str, Tensor], list[int]]:
        """Return the mean of the kept models, summed in float64, and the minibatches after which they were saved.

        Integer buffers have no mean: those of the last model are taken.

        A damaged file is left out with a warning, so that a finished run can still end.

        Raises:
            ValueError: No complete model is kept.
        """
        models: dict[int, Mapping[str, Tensor]] = {}
        for stem in sorted(self.ranked()):
            try:
                models[int(stem.name)] = read_pair(stem)[0]
            except DamagedCheckpoint as error:
                log.warning("left out of the averaged model: %s", error)
        if not models:
            raise ValueError(f"{self.folder} keeps no model to average: no mark had a finite held-out loss")
        return _mean_of(list(models.values())), list(models)

    def _stem(self, done: int) -> Path:
        return self.folder / f"{done:010d}"


def _mean_of(models: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    *_, last = models
    means = {
        name: torch.stack([model[name].double() for model in models]).mean(0).to(tensor.dtype)
        for name, tensor in last.items()
        if name != "integers"
    }
    return {**last, **means}


def _loss(stem: Path) -> float:
    facts: dict[str, Any] = json.loads(stem.with_suffix(".json").read_bytes())
    return float(facts["figures"]["loss"])


def _delete(stem: Path) -> None:
    for suffix in (".json", ".safetensors"):  # the JSON makes the pair valid: it is deleted first
        stem.with_suffix(suffix).unlink(missing_ok=True)
