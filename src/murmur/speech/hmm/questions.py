"""Questions about phones for decision trees, derived from the data by clustering.

Phones are merged bottom up, always the two whose merger costs the least likelihood; each set of phones made in this
process is a question, beside every single phone and "silence or outside". Automatic questions: Beulen and Ney (1998);
the criterion is that of the tree itself.
"""

from __future__ import annotations

import numpy as np

from murmur.speech.hmm.mixtures import FloatArray
from murmur.speech.hmm.tree_stats import OUTSIDE, TreeStats, log_likelihood
from murmur.speech.lexicon.lexicon import Lang


def derive_questions(lang: Lang, stats: TreeStats) -> list[tuple[int, ...]]:
    """Sets of phone labels for questions, without repetition; a set with the silence includes the outside."""
    speech = [p for p in range(lang.num_silence + 1, lang.num_phones + 1) if np.any(stats.keys[:, 1] == p)]
    silence = (OUTSIDE, *lang.silence_ids)
    questions: list[tuple[int, ...]] = [silence]
    questions += [(p,) for p in range(2, lang.num_phones + 1)]
    questions += cluster_phones(speech, stats)
    return list(dict.fromkeys(tuple(sorted(q)) for q in questions))


def cluster_phones(phones: list[int], stats: TreeStats) -> list[tuple[int, ...]]:
    """The sets of phones made by merging them bottom up, in the order of the mergers, without the set of all phones."""
    classes = int(stats.keys[:, 3].max()) + 1 if len(stats.keys) else 0
    sums: dict[tuple[int, ...], tuple[FloatArray, FloatArray, FloatArray]]
    sums = {(p,): _by_class(stats, p, classes) for p in phones}
    made = []
    while len(sums) > 2:
        sets = list(sums)
        counts, first, second = (np.stack([sums[s][i] for s in sets]) for i in range(3))
        alone = log_likelihood(counts, first, second).sum(-1)
        together = log_likelihood(
            counts[:, None] + counts[None], first[:, None] + first[None], second[:, None] + second[None]
        ).sum(-1)
        loss = alone[:, None] + alone[None] - together
        loss[np.tril_indices(len(sets))] = np.inf
        i, j = np.unravel_index(int(np.argmin(loss)), loss.shape)
        left, right = sums.pop(sets[i]), sums.pop(sets[j])
        merged = tuple(sorted(sets[i] + sets[j]))
        sums[merged] = (left[0] + right[0], left[1] + right[1], left[2] + right[2])
        made.append(merged)
    return made


def _by_class(stats: TreeStats, phone: int, classes: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(C,), (C, F), (C, F) count and sums of a phone for each pdf class."""
    counts, dim = np.zeros(classes), stats.first.shape[1]
    first, second = np.zeros((classes, dim)), np.zeros((classes, dim))
    rows = np.flatnonzero(stats.keys[:, 1] == phone)
    at = stats.keys[rows, 3]
    np.add.at(counts, at, stats.counts[rows])
    np.add.at(first, at, stats.first[rows])
    np.add.at(second, at, stats.second[rows])
    return counts, first, second
