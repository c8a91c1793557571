"""Linear projections of spliced features: y_t = A [x_{t-c}; ...; x_{t+c}].

Shapes: T frames, F features, S static features (the first ones), W = 2c + 1 frames in a window, D projected features.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from murmur.speech.hmm.mixtures import FloatArray, one_thread


@dataclass(frozen=True)
class Projection:
    """A projection of windows of static features.

    Attributes:
        matrix: (D, W S) matrix A.
        context_frames: number c of frames on each side; at the edges the outermost frame repeats.
        static_dim: number S of leading static features (the window makes deltas superfluous).
    """

    matrix: FloatArray
    context_frames: int
    static_dim: int

    def __post_init__(self) -> None:
        width = (2 * self.context_frames + 1) * self.static_dim
        if self.matrix.ndim != 2 or self.matrix.shape[1] != width:
            raise ValueError(f"a matrix of shape {self.matrix.shape} cannot project windows of {width} values")

    def apply(self, feats_TF: NDArray[np.float32]) -> NDArray[np.float32]:
        """(T, D) the projected frames."""
        with one_thread(), torch.inference_mode():
            windows = torch.from_numpy(splice(feats_TF[:, : self.static_dim], self.context_frames))
            return (windows @ torch.from_numpy(self.matrix.T.astype(np.float32))).numpy()


def splice(feats_TS: NDArray[np.float32], context_frames: int) -> NDArray[np.float32]:
    """(T, W S) each frame with its neighbours, the earliest first; at the edges the outermost frame repeats."""
    frames = len(feats_TS)
    padded = np.pad(feats_TS, ((context_frames, context_frames), (0, 0)), mode="edge")
    return np.concatenate([padded[k : k + frames] for k in range(2 * context_frames + 1)], 1, dtype=np.float32)


def project(projection: Projection | None, feats_TF: NDArray[np.float32]) -> NDArray[np.float32]:
    """The projected frames; without a projection, the frames themselves as contiguous float32."""
    if projection is None:
        return np.ascontiguousarray(feats_TF, dtype=np.float32)
    return projection.apply(feats_TF)
