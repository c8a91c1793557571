"""Words in the time of recordings: order, offsets, and words of searches that did not end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.speech.corpus.corpus import Audio, Corpus, Utterance
from murmur.speech.decoding.decode_set import Decoded
from murmur.speech.decoding.decoder import Hypothesis
from murmur.speech.decoding.recogniser import PhoneSpans
from murmur.speech.recognition.decoding import is_sided, recording_lines, words_of


def utterance(name: str, begin: float, side: tuple[str, str] | None) -> Utterance:
    return Utterance(name, "s", "x", Audio(Path("a.sph"), begin, begin + 2, channel=0, side=side))


def test_lines_are_in_the_order_of_recordings() -> None:
    corpus = Corpus((utterance("a", 5.0, ("f", "B")), utterance("b", 1.0, ("f", "B")), utterance("c", 9.0, ("f", "A"))))
    words = {"a": [("YES", 10, 20)], "b": [("NO", 0, 25), ("OH", 30, 40)], "c": [("A", 3, 4)]}
    assert recording_lines(corpus, words, 0.01) == (
        "f A 9.030 0.010 A\n",
        "f B 1.000 0.250 NO\n",
        "f B 1.300 0.100 OH\n",
        "f B 5.100 0.100 YES\n",
    )
    assert is_sided(corpus)
    assert not is_sided(Corpus((*corpus.utterances, utterance("d", 0.0, None))))


def test_words_of_an_incomplete_search_are_spread_over_it() -> None:
    arcs: Any = None  # which complete searches need
    cut = Hypothesis(("A", "B", "C"), np.zeros(30, np.int32), 1.0, complete=False)
    empty = Hypothesis((), np.zeros(0, np.int32), 1.0, complete=False)
    found = Decoded({"u": (cut,), "v": (empty,)}, 30, 0.0, 0.0)
    assert words_of(found, PhoneSpans({}, arcs)) == {"u": [("A", 0, 10), ("B", 10, 20), ("C", 20, 30)], "v": []}
