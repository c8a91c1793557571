"""Seeded splitting of Gaussians, so that training repeats bit for bit.

The allocation follows Kaldi: pdfs get Gaussians in proportion to a power of their number of frames.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from murmur.speech.hmm.mixtures import FloatArray, Mixtures

# The halves lie this many standard deviations (times a standard normal number) from the mean, as in HTK: from much
# closer they take many passes to separate.
PERTURBATION = 0.2


def allocate(held_P: FloatArray, total: int, power: float, min_frames: float) -> NDArray[np.int64]:
    """Gaussians of each pdf out of `total`: the next one always goes to the largest held^power / number already given.

    `held_P` are the frames of each pdf; Gaussians are not split below `min_frames` each. Each pdf gets at least one,
    even if the sum then exceeds `total`.
    """
    counts = np.ones(len(held_P), dtype=np.int64)
    queue = [(-(float(held) ** power), pdf) for pdf, held in enumerate(held_P)]
    heapq.heapify(queue)
    for _ in range(total - len(held_P)):
        while queue and (counts[queue[0][1]] + 1) * min_frames > held_P[queue[0][1]]:
            heapq.heappop(queue)
        if not queue:
            break
        pdf = queue[0][1]
        counts[pdf] += 1
        heapq.heapreplace(queue, (-(float(held_P[pdf]) ** power) / counts[pdf], pdf))
    return counts


def split(mixtures: Mixtures, target_P: NDArray[np.int64], random: np.random.Generator) -> Mixtures:
    """Split the heaviest Gaussian of each pdf until it has at least `target_P` of them.

    w, mu, sigma become twice w / 2 and mu +- 0.2 z sigma, z standard normal; a pdf with enough Gaussians is unchanged.
    """
    parts = []
    for start, size, target in zip(mixtures.starts, mixtures.sizes, target_P, strict=True):
        part = slice(start, start + size)
        weights, means, variances = (
            list(mixtures.weights[part]),
            list(mixtures.means[part]),
            list(mixtures.variances[part]),
        )
        while len(weights) < target:
            heaviest = int(np.argmax(weights))
            shift = PERTURBATION * random.standard_normal(mixtures.dim) * np.sqrt(variances[heaviest])
            weights[heaviest] /= 2
            weights.append(weights[heaviest])
            variances.append(variances[heaviest])
            means.append(means[heaviest] - shift)
            means[heaviest] = means[heaviest] + shift
        parts.append((weights, means, variances))
    sizes = np.array([len(weights) for weights, _, _ in parts])
    weights_G = np.concatenate([weights for weights, _, _ in parts])
    means_GF = np.concatenate([means for _, means, _ in parts])
    return Mixtures(sizes, weights_G, means_GF, np.concatenate([variances for _, _, variances in parts]))
