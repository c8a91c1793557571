"""HMMs of phones in context from a Gaussian system's tree and transition probabilities."""

from __future__ import annotations

from functools import cache

import numpy as np

from murmur.speech.hmm.states import HmmStates
from murmur.speech.hmm.topology import num_states
from murmur.speech.hmm.transitions import Transitions
from murmur.speech.sequence.denominator import HmmOf, PhoneHmm


def phone_hmms(states: HmmStates) -> HmmOf:
    """The HMM of a phone by its neighbours; the answers are kept, since few neighbours differ in their HMM.

    Raises:
        ValueError: the tree looks further than one phone to each side.
    """
    tree, transitions = states.tree, states.transitions
    if not (tree.centre <= 1 and tree.width - tree.centre <= 2):
        raise ValueError(f"a tree of {tree.width} phones, centre {tree.centre}: denominators take one on each side")
    leads = _leads(transitions, np.exp(states.log_probs.astype(np.float64)))

    @cache
    def hmm(phone: int, pdfs: tuple[int, ...]) -> PhoneHmm:
        arcs = [(s, *arc) for s, pdf in enumerate(pdfs) for arc in leads[phone, s, pdf]]
        inner = tuple((s, to, p) for s, to, p in arcs if to < len(pdfs))
        return PhoneHmm(pdfs, inner, tuple((s, p) for s, to, p in arcs if to == len(pdfs)))

    @cache
    def hmm_of(left: int, phone: int, right: int) -> PhoneHmm:
        first = 1 - tree.centre
        window = (left, phone, right)[first : first + tree.width]
        pdfs = tuple(tree.pdf(window, state) for state in range(num_states(states.lang, phone)))
        return hmm(phone, pdfs)

    return hmm_of


def _leads(transitions: Transitions, probs_I: np.ndarray) -> dict[tuple[int, int, int], list[tuple[int, float]]]:
    """Pairs of next state and probability of each (phone, state, pdf)."""
    found: dict[tuple[int, int, int], list[tuple[int, float]]] = {}
    entries = {p: transitions.library.topo.topology_for_phone(p) for p in set(transitions.phone_of[1:].tolist())}
    ids = (transitions.phone_of, transitions.state_of, transitions.pdf_of, transitions.arc_of, probs_I)
    for phone, state, pdf, arc, p in zip(*(column[1:].tolist() for column in ids), strict=True):
        target = entries[phone][state].transitions[arc][0]
        found.setdefault((phone, state, pdf), []).append((target, p))
    return found
