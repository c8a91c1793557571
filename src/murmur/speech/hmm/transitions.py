"""Transition models: the meaning of transition-ids, their probabilities, and phones in time.

A transition-id names (phone, HMM state, pdf, arc of the state); ids are 1 ... I. Alignments are sequences of them, in
the "reordered" form of the library's graphs: the self-loops of a state follow its forward transition.

Shapes: I transition-ids + 1 (index 0 unused), T frames.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import kaldi_hmm_gmm as khg
import numpy as np
from numpy.typing import NDArray

from murmur.speech.hmm.topology import make_topology
from murmur.speech.hmm.tree import IntArray, Tree, context_dependency
from murmur.speech.lexicon.lexicon import Lang


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


@dataclass(frozen=True)
class Transitions:
    """A transition model of the library with its content as arrays over transition-ids.

    Attributes:
        library: the library's object; do not change it.
        tree: the library's form of the tree.
        phone_of, state_of, pdf_of: (I + 1,) the phone label, HMM state and pdf of each transition-id.
        arc_of: (I + 1,) index of the arc among those of its state.
    """

    library: khg.TransitionModel
    tree: khg.ContextDependency
    phone_of: IntArray
    state_of: IntArray
    pdf_of: IntArray
    arc_of: IntArray

    @property
    def num_ids(self) -> int:
        """The number of transition-ids."""
        return len(self.pdf_of) - 1

    @cached_property
    def arcs(self) -> PhoneArcs:
        """Phone information of the transition-ids."""
        ids = range(1, self.num_ids + 1)
        stays = np.array([False, *(self.library.is_self_loop(i) for i in ids)])
        leaves = np.array([False, *(self.library.is_final(i) for i in ids)])
        return PhoneArcs(self.phone_of, stays, leaves)

    @property
    def log_probs(self) -> NDArray[np.float32]:
        """(I + 1,) Natural log probabilities of the transitions."""
        return np.array(self.library.log_probs, dtype=np.float32)


def make_transitions(lang: Lang, tree: Tree, log_probs_I: NDArray[np.float32] | None = None) -> Transitions:
    """The transition model of a tree, with the topology's probabilities or the given ones.

    Raises:
        ValueError: `log_probs_I` has the wrong length, or probabilities that are not in (0, 1].
    """
    library_tree = context_dependency(tree)
    library = khg.TransitionModel(ctx_dep=library_tree, hmm_topo=make_topology(lang))
    if log_probs_I is not None:
        library = _with_log_probs(library, log_probs_I)
    tuples = np.array([state.__getstate__() for state in library.tuples], dtype=np.int32)
    state_of_id = np.array(library.id2state, dtype=np.int32)
    first = np.array(library.state2id, dtype=np.int32)
    ids = np.arange(len(state_of_id), dtype=np.int32)
    phone_of, state_of = tuples[state_of_id - 1, 0], tuples[state_of_id - 1, 1]
    pdf_of = np.array(library.transition_id_to_pdf_array(), dtype=np.int32)
    return Transitions(library, library_tree, phone_of, state_of, pdf_of, ids - first[state_of_id])


def reestimate(lang: Lang, tree: Tree, current: Transitions, counts_I: NDArray[np.float64]) -> Transitions:
    """Transition probabilities from the count of each transition-id; rare states keep theirs, small ones are
    floored (library defaults: floor 0.01, at least 5 occurrences)."""
    updated = make_transitions(lang, tree, current.log_probs)
    updated.library.mle_update(np.ascontiguousarray(counts_I, dtype=np.float64), khg.MleTransitionUpdateConfig())
    # Rebuilt from the probabilities alone, so that a stored and loaded model has the same bits.
    return make_transitions(lang, tree, updated.log_probs)


def _with_log_probs(library: khg.TransitionModel, log_probs_I: NDArray[np.float32]) -> khg.TransitionModel:
    """The same transition model with other probabilities; the only setter of the library is its unpickling hook."""
    state = list(library.__getstate__())
    if len(log_probs_I) != len(state[6]) or not (np.all(np.isfinite(log_probs_I)) and np.all(log_probs_I <= 0)):
        raise ValueError(
            f"{len(log_probs_I)} log probabilities for {len(state[6])} transition-ids (one more than ids), "
            "all of which must be finite and not positive: the numbers belong to another model"
        )
    state[6] = [float(p) for p in log_probs_I]
    first, others = state[2], [0.0]
    for begin, end in pairwise(first[1:]):
        stay = [p for i, p in enumerate(log_probs_I[begin:end], begin) if library.is_self_loop(i)]
        others.append(float(np.log(-np.expm1(np.float64(stay[0])))) if stay else 0.0)
    state[7] = others
    changed = khg.TransitionModel.__new__(khg.TransitionModel)
    changed.__setstate__(tuple(state))
    return changed
