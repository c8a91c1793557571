"""Named seeds: a seed is a function of its purpose, so that two purposes never share a random stream."""

from __future__ import annotations

from hashlib import blake2b

import torch


def seed_of(*names: int | str) -> int:
    """Return a seed below 2^63 for a list of names, such as (experiment seed, "minibatch", n).

    >>> seed_of(0, "model") == seed_of(0, "model"), seed_of(0, "model") == seed_of(1, "model")
    (True, False)
    """
    return int.from_bytes(blake2b(repr(names).encode(), digest_size=8).digest(), "big") >> 1


def seed_torch(seed: int, device: str) -> None:
    """Seed the generator that a model on `device` draws from.

    Gives the same numbers as torch.manual_seed(seed). That function also calls every kind of accelerator; on a machine
    without one it stores a stack trace at each call, which takes half a millisecond and memory that is never freed.
    """
    torch.default_generator.manual_seed(seed)
    if device.startswith("cuda"):
        torch.cuda.manual_seed(seed)
