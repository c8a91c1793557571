"""Phone information of transition-ids: the phone, self-loops, and arcs that leave the phone.

Shapes: I transition-ids + 1 (index 0 unused), T frames.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class PhoneArcs:
    """Phones of transition-ids, independent of their model.

    Attributes:
        phone_of: (I + 1,) phone labels.
        is_self_loop: (I + 1,) True if a transition stays in its state.
        is_final: (I + 1,) True if a transition leaves the phone.
    """

    phone_of: IntArray
    is_self_loop: NDArray[np.bool_]
    is_final: NDArray[np.bool_]

    def __post_init__(self) -> None:
        if not len(self.phone_of) == len(self.is_self_loop) == len(self.is_final) > 0:
            raise ValueError("phones, self-loops and last arcs must be of the same transition-ids")

    def starts(self, tids_T: IntArray) -> NDArray[np.int64]:
        """The frames at which phones begin.

        A phone begins at frame 0 and at each forward transition whose preceding forward transition left a phone; the
        self-loops in between still belong to the previous phone.
        """
        forward = np.flatnonzero(~self.is_self_loop[tids_T])
        begins = forward[1:][self.is_final[tids_T[forward[:-1]]]]
        return np.concatenate([np.zeros(min(1, len(tids_T)), dtype=np.int64), begins])

    def check(self, tids_T: IntArray) -> None:
        """Raise ValueError unless all ids are among these."""
        last = len(self.phone_of) - 1
        if len(tids_T) and not (tids_T.min() >= 1 and tids_T.max() <= last):
            raise ValueError(
                f"transition-ids run from {tids_T.min()} to {tids_T.max()}, but the model has 1 to {last}: "
                "the alignment belongs to another model"
            )
