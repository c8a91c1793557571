"""One signal of several channels: their mean, without silent channels; one of them if they cancel in the mean.

A microphone with two wires swapped, or a balanced line recorded as stereo, gives a channel that is the negative of
another one. Shapes: samples_SC float32 in [-1, 1].
"""

from __future__ import annotations

import numpy as np

NO_SIGNAL = 2.0**-13  # range of values, four steps of 16 bits: digital silence with dither, or less
SILENT = 1e-3  # of the standard deviation of the loudest channel, -60 dB
BLOCK_SAMPLES = 1 << 14
EQUAL = 0.99  # of the power of the loudest channel: the first one of equal channels is taken
CANCELLED = 0.5  # of the power that the mean of independent channels has
CANCELLED_SHARE = 0.1  # of the power of the recording that is in blocks where channels cancel


def has_signal(samples_S: np.ndarray) -> bool:
    """False for digital silence: nothing, zeros, a constant, or a signal of the size of its rounding."""
    return bool(len(samples_S) and float(np.ptp(samples_S)) > NO_SIGNAL)


def mixed(samples_SC: np.ndarray) -> tuple[np.ndarray, str]:
    """One signal (S,) of all channels, and a description of what was done; empty for one channel."""
    count = samples_SC.shape[1]
    if count == 1:
        return samples_SC[:, 0], ""
    products_BCC = _products(samples_SC)
    powers_C = products_BCC.diagonal(axis1=1, axis2=2).sum(0)
    loud_C = powers_C > SILENT**2 * powers_C.max()
    kept = [c for c in range(count) if loud_C[c] and has_signal(samples_SC[:, c])] or list(range(count))
    silent = [str(c + 1) for c in range(count) if c not in kept]
    done = [f"channel {' and '.join(silent)} of {count} left out as silent"] if silent else []
    if _cancel(products_BCC[:, kept][:, :, kept]):
        kept = [int(np.argmax(powers_C > EQUAL * powers_C.max()))]
        done.append(f"channel {kept[0] + 1} of {count} taken alone, since channels cancel each other in the mean")
    if len(kept) == 1:
        return samples_SC[:, kept[0]], ", ".join(done)
    done.append(f"{len(kept)} channels averaged")
    return (samples_SC[:, kept] if silent else samples_SC).mean(1, dtype=np.float32), ", ".join(done)


def _products(samples_SC: np.ndarray) -> np.ndarray:
    """Sums of products of each pair of channels, without their means, in blocks of the recording, (B, C, C)."""
    found = []
    for first in range(0, max(len(samples_SC), 1), BLOCK_SAMPLES):
        block_SC = samples_SC[first : first + BLOCK_SAMPLES].astype(np.float64)
        block_SC -= block_SC.mean(0) if len(block_SC) else 0.0
        found.append(block_SC.T @ block_SC)
    return np.stack(found)


def _cancel(products_BCC: np.ndarray) -> bool:
    """True if the mean has much less power than that of independent channels would have, in a part of the recording.

    The part counts by its power. The sum of independent channels has the sum of their powers.
    """
    powers_B = products_BCC.diagonal(axis1=1, axis2=2).sum(1)
    lost_B = products_BCC.sum((1, 2)) < CANCELLED * powers_B
    return bool(powers_B[lost_B].sum() > CANCELLED_SHARE * powers_B.sum())
