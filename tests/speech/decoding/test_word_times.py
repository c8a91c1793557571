import itertools

import numpy as np
import pytest

from murmur.speech.decoding.decoder import DecodeOptions, Decoder, Hypothesis
from murmur.speech.decoding.graph import build_hclg
from murmur.speech.decoding.word_times import WordTimer
from murmur.speech.hmm.transitions import make_transitions
from murmur.speech.hmm.tree import monophone_tree
from murmur.speech.language_model.grammar import loop_grammar
from murmur.speech.lexicon.lexicon import make_lang

# AB could also be A and B, and A has a variant that begins with all of AB.
LEXICON = [("A", ("a",)), ("A", ("a", "b", "b")), ("B", ("b",)), ("AB", ("a", "b"))]


@pytest.fixture(scope="module")
def parts():
    lang = make_lang(LEXICON)
    transitions = make_transitions(lang, monophone_tree(lang))
    return lang, transitions, build_hclg(lang, transitions, loop_grammar(lang))


@pytest.mark.parametrize("seed", range(8))
def test_words_cover_their_pronunciations_and_only_pauses_are_left_over(parts, seed):
    lang, transitions, graph = parts
    decoder = Decoder(graph, DecodeOptions(acoustic_scale=1.0, beam=1000.0))
    scores_TP = np.random.default_rng(seed).normal(size=(70, graph.num_columns)).astype(np.float32) * 5
    found = decoder.decode(scores_TP)
    times = WordTimer.of(lang, transitions)(found)
    assert [t.word for t in times] == list(found.words)
    phone_at = transitions.phone_of[found.labels]
    spoken = np.zeros(70, dtype=bool)
    starts = set(transitions.arcs.starts(found.labels).tolist())
    for time in times:
        inside = slice(time.first_frame, time.first_frame + time.num_frames)
        assert not spoken[inside].any()
        spoken[inside] = True
        assert {time.first_frame, inside.stop} <= starts | {70}
        heard = [int(phone_at[t]) for t in sorted(starts) if inside.start <= t < inside.stop]
        assert (time.word, tuple(heard)) in {(p.word, p.phones) for p in lang.prons}
    assert set(phone_at[~spoken].tolist()) <= {1}
    assert all(a.first_frame < b.first_frame for a, b in itertools.pairwise(times))


def test_the_last_word_reaches_to_the_last_phone(parts):
    lang, transitions, graph = parts
    roots = monophone_tree(lang).roots
    scores_TP = np.full((36, graph.num_columns), -20, np.float32)
    for t, (phone, state) in enumerate(itertools.product((2, 3, 3), range(3))):
        scores_TP[4 * t : 4 * t + 4, roots[phone, state]] = 0
    found = Decoder(graph, DecodeOptions(acoustic_scale=1.0)).decode(scores_TP)
    as_one = Hypothesis(("A",), found.labels, 0.0, True)
    assert WordTimer.of(lang, transitions)(as_one) == [("A", 0, 36)]
    as_three = Hypothesis(("A", "B", "B"), found.labels, 0.0, True)
    assert WordTimer.of(lang, transitions)(as_three) == [("A", 0, 12), ("B", 12, 12), ("B", 24, 12)]


def test_words_that_do_not_spell_the_path_are_refused(parts):
    lang, transitions, graph = parts
    found = Decoder(graph, DecodeOptions(acoustic_scale=1.0)).decode(np.zeros((30, graph.num_columns), np.float32))
    wrong = Hypothesis((*found.words, "B", "B", "B"), found.labels, 0.0, True)
    with pytest.raises(ValueError, match="do not spell its phones"):
        WordTimer.of(lang, transitions)(wrong)
