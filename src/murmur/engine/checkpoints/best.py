"""Best consensus models of a run, and the mean of their weights.

Averaging the weights of several points of one run is Polyak and Juditsky, "Acceleration of stochastic approximation by
averaging" (1992), with the points chosen by held-out loss, as in speech recipes. It takes disk space, no computation.

checkpoints/marks/0000001200.safetensors    weights and buffers of the consensus at that point
                  0000001200.json           its held-out figures
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from murmur.core.errors import DamagedCheckpoint
from murmur.core.plain_files import UNREADABLE
from murmur.engine.checkpoints.checkpoint import minibatches_of, name_of, read_facts, read_pair, write_pair

log = logging.getLogger(__name__)


class BestCheckpoints:
    """Consensus models at the `most` evaluation points of lowest held-out loss, in a folder."""

    def __init__(self, folder: Path, most: int) -> None:
        self.folder, self.most = folder, most
        self._left_out = set[Path]()  # damaged marks that a warning has named

    def add(self, tensors: Mapping[str, Tensor], figures: Mapping[str, float], done: int) -> None:
        """Keep the model after `done` minibatches if it is among the best; a loss of nan never is."""
        loss = figures.get("loss", math.nan)
        if self.most < 1 or not math.isfinite(loss):
            return
        stem = self._stem(done)
        kept = self._losses()
        if stem not in kept and len(kept) >= self.most and not loss < sorted(kept.values())[self.most - 1]:
            return
        write_pair(stem, tensors, {"minibatches": done, "figures": dict(figures)})
        for worse in self.ranked()[self.most :]:
            _delete(worse)

    def ranked(self) -> list[Path]:
        """Return the stems of the kept models, lowest held-out loss first; a damaged one is left out with a warning."""
        losses = self._losses()
        return sorted(losses, key=lambda stem: (losses[stem], stem.name))

    def forget_after(self, done: int) -> None:
        """Delete models beyond `done` minibatches, damaged or not: a resumed run makes them again."""
        for minibatches, stem in self._stems():
            if minibatches > done:
                _delete(stem)

    def mean(self, averaged: Tensor | None = None) -> tuple[dict[str, Tensor], list[int]] | None:
        """Return the mean of the kept models, summed in float64, and the minibatches after which they were saved.

        Buffers without a mean, such as integers, are those of the last model.

        A damaged file is left out with a warning, so that a finished run can still end. None: no complete model is
        kept, as no held-out loss was finite or all files are damaged.

        Args:
            averaged: For each element of the vector of buffers, True if it has a mean; None: all have one.
        """
        models: dict[int, Mapping[str, Tensor]] = {}
        for stem in sorted(self.ranked()):
            try:
                models[int(stem.name)] = read_pair(stem)[0]
            except DamagedCheckpoint as error:
                self._leave_out(stem, error)
        return (_mean_of(list(models.values()), averaged), list(models)) if models else None

    def _losses(self) -> dict[Path, float]:
        """Held-out losses of the kept models that are complete, by stem."""
        losses = {}
        for _, stem in self._stems():
            try:
                losses[stem] = _loss(stem)
            except DamagedCheckpoint as error:
                self._leave_out(stem, error)
        return losses

    def _stems(self) -> list[tuple[int, Path]]:
        """Return (minibatches, stem) of all marks; files of other names, such as copies, are none."""
        stems = [path.with_suffix("") for path in self.folder.glob("[0-9]*.json")]
        named = [(minibatches_of(stem.name), stem) for stem in stems]
        return [(minibatches, stem) for minibatches, stem in named if minibatches is not None]

    def _leave_out(self, stem: Path, error: DamagedCheckpoint) -> None:
        if stem not in self._left_out:  # marks are read at every evaluation
            log.warning("left out of the averaged model: %s", error)
        self._left_out.add(stem)

    def _stem(self, done: int) -> Path:
        return self.folder / name_of(done)


def _mean_of(models: Sequence[Mapping[str, Tensor]], averaged: Tensor | None) -> dict[str, Tensor]:
    *_, last = models
    means = {
        name: torch.stack([model[name].double() for model in models]).mean(0).to(tensor.dtype)
        for name, tensor in last.items()
        if name != "integers"
    }
    if averaged is not None and not averaged.all():
        means["buffers"] = torch.where(averaged, means["buffers"], last["buffers"])
    return {**last, **means}


def _loss(stem: Path) -> float:
    """Held-out loss of a mark.

    Raises:
        DamagedCheckpoint: A file is missing, cut off or changed; names it.
    """
    facts = read_facts(stem)
    try:
        return float(facts["figures"]["loss"])
    except UNREADABLE as error:
        raise DamagedCheckpoint(f"{stem.with_suffix('.json')}: names no held-out loss") from error


def _delete(stem: Path) -> None:
    for suffix in (".json", ".safetensors"):  # the JSON makes the pair valid: it is deleted first
        stem.with_suffix(suffix).unlink(missing_ok=True)
