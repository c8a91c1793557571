"""HMM topologies of phones. State s of a phone has pdf class s.

"three-state", as in Kaldi's default recipes: three states left to right for a phone, five for silence, of which the
first four are connected. "chain" (Povey et al. 2016), for a third of the frame rate: every phone, silence included, has
a state that is passed once, and a state that takes all further frames; a phone lasts one frame at least.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import kaldi_hmm_gmm as khg

from murmur.speech.lexicon.lexicon import Lang

SPEECH_STATES = 3
SILENCE_STATES = 5
CHAIN = [(0, {1: 0.5, 2: 0.5}), (1, {1: 0.5, 2: 0.5})]


def num_states(lang: Lang, phone: int) -> int:
    """The number of emitting states (= pdf classes) of a phone."""
    if lang.topology == "chain":
        return len(CHAIN)
    return SILENCE_STATES if phone <= lang.num_silence else SPEECH_STATES


def shortest_words(lang: Lang) -> dict[int, int]:
    """The minimum number of frames of each word's pronunciations, by word label."""
    frames: dict[int, int] = {}
    for pron in lang.prons:
        word = lang.words[pron.word]
        needed = sum(1 if lang.topology == "chain" else num_states(lang, p) for p in pron.phones)
        frames[word] = min(needed, frames.get(word, needed))
    return frames


def make_topology(lang: Lang) -> khg.HmmTopology:
    """The topology of all phones of a language.

    Silence can leave state 0 for any of the states 0-3 and states 1-3 for any of 1-4; it ends in state 4. A language
    without any phone except silence is refused by the library.
    """
    speech = [(s, {s: 0.75, s + 1: 0.25}) for s in range(SPEECH_STATES)]
    silence = [(0, dict.fromkeys(range(4), 0.25))]
    silence += [(s, dict.fromkeys(range(1, 5), 0.25)) for s in (1, 2, 3)]
    silence += [(4, {4: 0.75, 5: 0.25})]
    if lang.topology == "chain":
        speech = silence = CHAIN
    entries = _entry(lang.silence_ids, silence) + _entry(range(lang.num_silence + 1, lang.num_phones + 1), speech)
    topology = khg.HmmTopology()
    topology.read(f"<Topology> {entries}</Topology>")
    topology.check()
    return topology


def _entry(phones: Iterable[int], states: Sequence[tuple[int, dict[int, float]]]) -> str:
    body = "".join(
        f"<State> {s} <PdfClass> {s} {''.join(f'<Transition> {t} {p} ' for t, p in arcs.items())}</State> "
        for s, arcs in states
    )
    labels = " ".join(map(str, phones))
    if not labels:
        return ""
    return f"<TopologyEntry> <ForPhones> {labels} </ForPhones> {body}<State> {len(states)} </State> </TopologyEntry> "
