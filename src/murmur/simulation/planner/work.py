"""What is to be trained, as numbers: a corpus, a minibatch, a model, and what a device does in a second."""

from __future__ import annotations

from dataclasses import dataclass

FRAMES_PER_SECOND = 100.0


@dataclass(frozen=True)
class Work:
    """One epoch of training.

    Attributes:
        corpus_hours: audio in one pass over the corpus.
        frames_per_minibatch: of one learner's minibatch.
        model_bytes: of the weights; a gradient is as long.
        optimizer_bytes: state of the optimizer (momentum: as long as the model).
        frames_per_second: of audio.
    """

    corpus_hours: float
    frames_per_minibatch: float
    model_bytes: float
    optimizer_bytes: float = 0.0
    frames_per_second: float = FRAMES_PER_SECOND

    def __post_init__(self) -> None:
        for what in ("corpus_hours", "frames_per_minibatch", "model_bytes", "frames_per_second"):
            if not 0 < getattr(self, what) < float("inf"):
                raise ValueError(f"Work.{what} must be positive and finite, got {getattr(self, what)}")
        if not 0 <= self.optimizer_bytes < float("inf"):
            raise ValueError(f"Work.optimizer_bytes must be finite and not negative, got {self.optimizer_bytes}")

    @property
    def minibatches(self) -> float:
        """Minibatches of an epoch, of all learners together."""
        return self.corpus_hours * 3600 * self.frames_per_second / self.frames_per_minibatch


def step_seconds(flops_per_frame: float, frames: float, device_flops: float, utilisation: float) -> float:
    """Seconds of a gradient from floating-point operations: forward and backward together are `flops_per_frame`.

    Args:
        flops_per_frame: about six for every weight that a frame passes (two forward, four backward).
        frames: of a minibatch.
        device_flops: peak operations a second.
        utilisation: share of the peak that is reached, 0 to 1.

    Raises:
        ValueError: a number that is not positive, or a utilisation above 1.
    """
    given = {"flops_per_frame": flops_per_frame, "frames": frames, "device_flops": device_flops}
    for what, value in given.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"{what} must be positive and finite, got {value}")
    if not 0 < utilisation <= 1:
        raise ValueError(f"utilisation must lie in (0, 1], got {utilisation}")
    return flops_per_frame * frames / (device_flops * utilisation)
