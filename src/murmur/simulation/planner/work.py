"""Amount of work in numbers: a corpus, a minibatch, a model, and the speed of a device."""

from __future__ import annotations

from dataclasses import dataclass

FRAMES_PER_SECOND = 100.0


@dataclass(frozen=True)
class Work:
    """One epoch of training.

    Attributes:
        corpus_hours: Hours of audio in one pass over the corpus.
        frames_per_minibatch: Frames in a minibatch of one learner.
        model_bytes: Bytes of the weights, and of a gradient.
        optimizer_bytes: Bytes of the optimizer's state (for momentum as many as the model's).
        frames_per_second: Frames per second of audio.
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
        """Minibatches of an epoch, for all learners together."""
        return self.corpus_hours * 3600 * self.frames_per_second / self.frames_per_minibatch


def step_seconds(flops_per_frame: float, frames: float, device_flops: float, utilisation: float) -> float:
    """Return the seconds of a gradient from its floating-point operations.

    Args:
        flops_per_frame: Operations of forward and backward pass per frame: about six per weight that a frame passes
            (two forward, four backward).
        frames: Frames of a minibatch.
        device_flops: Peak operations per second.
        utilisation: Share of the peak that is reached, 0 to 1.

    Raises:
        ValueError: a number is not positive, or the utilisation is above 1.
    """
    given = {"flops_per_frame": flops_per_frame, "frames": frames, "device_flops": device_flops}
    for what, value in given.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"{what} must be positive and finite, got {value}")
    if not 0 < utilisation <= 1:
        raise ValueError(f"utilisation must lie in (0, 1], got {utilisation}")
    return flops_per_frame * frames / (device_flops * utilisation)
