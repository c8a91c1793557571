"""Check that a network fits its input and its chunks, before Gaussian systems are trained for it."""

from __future__ import annotations

import logging

import torch

from murmur.core.errors import SettingError
from murmur.speech.models import Network
from murmur.tasks.hybrid.config import Chunks

log = logging.getLogger(__name__)
STATES = 100  # of the network that is built for the check; the real number is not known yet


def check_network(network: Network, inputs: int, bins: int | None, chunks: Chunks) -> None:
    """Build the network without memory, compare its bins with those of the input, and its context with the chunks'.

    Args:
        network: configuration.
        inputs: values per frame.
        bins: mel bins of the input; None if it is not made of them.
        chunks: chunks of training; a warning tells if they have less context than the network.

    Raises:
        ValueError: the network cannot take the input; the message gives the setting.
    """
    front = getattr(network, "front", None)
    if front is not None and bins is not None and front.bins != bins:
        raise SettingError(
            f"task.network.front.bins = {front.bins} with {bins} mel bins in the input (task.front.bins): convolutions"
            " over frequencies need the number of bins of a spectrum"
        )
    with torch.device("meta"):
        network.build(inputs, STATES)
    for side in ("left_frames", "right_frames"):
        needed, there = getattr(network, side, 0), getattr(chunks, side)
        if needed > there:
            log.warning(
                "chunks have %d frames of context on one side and the network takes %d: frames at their ends see"
                " repeated frames, which decoding does not have; chunks with %s=%d have enough",
                *(there, needed, side, needed),
            )
