"""The vector of a model cut in parts, for the holders of a parameter server or for exchanges of a part at a time.

part s of S:   elements [P s / S, P (s + 1) / S) of the vector (P,)
"""

from __future__ import annotations

from itertools import pairwise

import torch

from murmur.core.group import PeerLost
from murmur.core.learner import Learner

PART = "part"  # name of the bounds of a holder's part, and of P, among the vectors of a checkpoint


def parts_of(numel: int, count: int) -> tuple[slice, ...]:
    """Return `count` parts of a vector of `numel` elements.

    Raises:
        ValueError: There are fewer elements than parts.
    """
    if count > numel:
        raise ValueError(f"a model of {numel} elements cannot be cut in {count} parts")
    return tuple(slice(first, last) for first, last in pairwise(numel * s // count for s in range(count + 1)))


def keep_part(me: Learner, part: slice) -> None:
    """Record that this learner keeps a part of the model, in its checkpoints too.

    Raises:
        PeerLost: This learner was started again, so that the part is lost.
        ValueError: The checkpoint from which the run continues has the model cut in another way.
    """
    if me.seat.late:
        raise PeerLost(f"learner {me.group.rank} was started again: its part of the parameters is lost", me.group.rank)
    bounds = torch.tensor([part.start, part.stop, me.weights.layout.numel])
    kept = me.outer.setdefault(PART, bounds)
    if kept.tolist() != bounds.tolist():
        raise ValueError(
            f"the checkpoint of learner {me.group.rank} holds elements {_shown(kept.tolist())} of the model, but"
            f" it serves {_shown(bounds.tolist())} now: continue with the number of servers or shards of the checkpoint"
        )


def _shown(bounds: list[int]) -> str:
    return f"{bounds[0]} to {bounds[1] - 1} of {bounds[2]}"


def check_counts(**counts: int) -> None:
    """Check that numbers are at least 1.

    Raises:
        ValueError: One is not.
    """
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
