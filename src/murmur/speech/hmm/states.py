"""Hidden Markov model without emissions: phones, state tying and transition probabilities, as decoding graphs need it.

Shapes: I transition-ids + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.speech.hmm.topology import num_states
from murmur.speech.hmm.transitions import Transitions, make_transitions
from murmur.speech.hmm.tree import Tree
from murmur.speech.lexicon.lexicon import Lang

SUM_TOLERANCE = 0.01  # of the sum of probabilities in float32


@dataclass(frozen=True, eq=False)
class HmmStates:
    """The states that a hybrid network scores.

    Attributes:
        lang: phones and words of training.
        tree: tying of states to pdfs.
        log_probs: (I,) natural log probabilities by transition-id; index 0 is unused.
    """

    lang: Lang
    tree: Tree
    log_probs: NDArray[np.float32]

    @cached_property
    def transitions(self) -> Transitions:
        """The transition model; graph building needs `transitions.library` and `transitions.tree`."""
        return make_transitions(self.lang, self.tree, self.log_probs)

    def check(self) -> None:
        """Check what the library does not: values from a file that are inconsistent would abort or hang it.

        Raises:
            ValueError: the tree lacks a state, or the probabilities of a state do not sum to one.
        """
        lang, roots = self.lang, self.tree.roots
        missing = [
            (p, s) for p in range(1, len(lang.phones)) for s in range(num_states(lang, p)) if (p, s) not in roots
        ]
        if missing:
            raise ValueError(f"its tree lacks states such as {missing[:3]}")
        _check_probabilities(self.transitions, self.log_probs[1:])

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: library objects are made again in another process."""
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}


def _check_probabilities(transitions: Transitions, log_probs_I: NDArray) -> None:
    """Raise ValueError unless those of a state sum to one: on a cycle with a negative cost the library never ends."""
    states = np.stack([transitions.phone_of, transitions.state_of, transitions.pdf_of])[:, 1:]
    _, state_of = np.unique(states, axis=1, return_inverse=True)
    sums = np.bincount(state_of.ravel(), np.exp(log_probs_I.astype(np.float64).clip(max=1.0)))
    if not (np.abs(sums - 1) < SUM_TOLERANCE).all():
        raise ValueError(
            f"its transition probabilities sum to {sums.min():.3g} ... {sums.max():.3g} a state, not to one"
        )
