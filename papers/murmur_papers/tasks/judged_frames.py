"""A hybrid task for comparisons of training methods: dev is cut in two, and the volume of training chunks varies.

Every third dev utterance, in the order of names, serves trials of rates alone; the others judge. Losses of the judging
utterances are kept one by one, for intervals over utterances.

Shapes: T frames, F values a frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from torch import nn

from murmur.speech.features.chunks import Change
from murmur.speech.hmm import frame_classifier
from murmur.speech.tasks.hybrid.task import HybridTask

TRIAL_EVERY = 3
TRIAL, UTTERANCE = "trial loss", "utterance "  # names of figures; the second is followed by that of an utterance


@dataclass(frozen=True)
class JudgedTask(HybridTask):
    """The task.

    Attributes:
        volume: half of the range of the uniform number that is added to all values of a training chunk. A gain g adds
            2 ln g to log-mel bins before normalisation, and about 2 ln g over their usual deviation after it.
    """

    volume: float = 0.0

    @classmethod
    def of(cls, task: HybridTask, volume: float) -> JudgedTask:
        return cls(**{f.name: getattr(task, f.name) for f in fields(task)}, volume=volume)

    @cached_property
    def change(self) -> Change:
        plain = super().change

        def varied(feats_TF: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            return plain(feats_TF, rng) + np.float32(rng.uniform(-self.volume, self.volume))

        return varied

    def frames_of(self) -> dict[str, int]:
        """Frames of the dev utterances that have targets, in the order of names."""
        return {name: len(targets_T) for name, targets_T in sorted(self.data.dev_targets.items())}

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        """Nats a frame: "loss" of the judging utterances, "trial loss" of the others, and of each judging utterance."""
        data, frames = self.data, self.frames_of()
        found = {
            name: frame_classifier.frame_figures(model, data.dev_feats, {name: data.dev_targets[name]})["loss"]
            for name in frames
        }

        def mean(names: Sequence[str]) -> float:
            return sum(found[name] * frames[name] for name in names) / sum(frames[name] for name in names)

        trial = list(frames)[::TRIAL_EVERY]
        judging = [name for name in frames if name not in trial]
        single = {f"{UTTERANCE}{name}": found[name] for name in judging}
        return {"loss": mean(judging), TRIAL: mean(trial), **single}

    def judged(self, end: Mapping[str, float], best: Mapping[str, float]) -> dict[str, object]:
        """Parts of a row, from figures at the end of a run and at its evaluation point with the lowest loss.

        "utterances" holds the frames of each judging utterance, and its nats a frame at the end and at that point.
        """
        told = {name: (frames, f"{UTTERANCE}{name}") for name, frames in self.frames_of().items()}
        return {
            "heldout": {name: end[name] for name in ("loss", TRIAL) if name in end},
            "best_loss": best.get("loss"),
            "utterances": {
                name: [frames, round(end[figure], 6), round(best[figure], 6)]
                for name, (frames, figure) in told.items()
                if figure in end and figure in best
            },
        }
