"""Words of decoding graphs moved to arcs that sherpa-onnx reads: every path keeps its input, words and weight."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.graph_words import unread_words

pytest.importorskip("kaldifst", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

import kaldifst

from murmur.speech.decoding.decoder import DecodeOptions, Decoder
from murmur.speech.decoding.graph import build_ctc_graph, build_hclg
from murmur.speech.decoding.word_moving import move_words
from murmur.speech.hmm.transitions import make_transitions
from murmur.speech.hmm.tree import monophone_tree
from murmur.speech.language_model.grammar import loop_grammar, ngram_grammar
from murmur.speech.language_model.kneser_ney import KneserNey
from murmur.speech.lexicon.lexicon import make_lang

LONGEST = 7  # arcs of the longest path examined


def paths(fst, read_all):
    """{(labels of frames, words): least weight} of paths of up to LONGEST arcs; words as a decoder or sherpa reads."""
    found = {}
    if fst.num_states == 0:
        return found
    waiting = [(fst.start, (), (), -1, 0.0, 0)]
    while waiting:
        state, frames, words, before, cost, length = waiting.pop()
        final = fst.final(state).value
        if final < float("inf"):
            key = frames, words
            found[key] = min(found.get(key, float("inf")), round(cost + final, 4))
        if length == LONGEST:
            continue
        for arc in kaldifst.ArcIterator(fst, state):
            heard = arc.olabel and (read_all or (arc.ilabel > 1 and arc.ilabel != before))
            waiting.append(
                (
                    arc.nextstate,
                    frames + ((arc.ilabel,) if arc.ilabel else ()),
                    words + ((arc.olabel,) if heard else ()),
                    arc.ilabel,
                    cost + arc.weight.value,
                    length + 1,
                )
            )
    return found


@st.composite
def graphs(draw):
    """Small transducers whose epsilon arcs go forwards, with loops, labels that repeat, and words anywhere."""
    states = draw(st.integers(2, 5))
    fst = kaldifst.StdVectorFst()
    for _ in range(states):
        fst.add_state()
    fst.start = 0
    fst.set_final(states - 1, 0.0)
    for _ in range(draw(st.integers(2, 8))):
        source = draw(st.integers(0, states - 2))
        target = draw(st.integers(source + 1, states - 1))
        label, word = draw(st.integers(0, 4)), draw(st.sampled_from([0, 0, 0, 5, 6]))
        weight = draw(st.integers(0, 9)) / 4
        fst.add_arc(source, kaldifst.StdArc(ilabel=label, olabel=word, weight=weight, nextstate=target))
    for state in draw(st.sets(st.integers(0, states - 1), max_size=2)):
        label = draw(st.integers(1, 6))
        fst.add_arc(state, kaldifst.StdArc(ilabel=label, olabel=0, weight=0.25, nextstate=state))
    return fst


@settings(max_examples=300, deadline=None)
@given(graphs())
def test_every_path_keeps_its_frames_words_and_weight(fst):
    try:
        moved = move_words(fst)
    except ValueError:  # allowed only if some path has no frame for a word
        every = paths(fst, True)
        sounds = [[label for label in frames if label > 1] for frames, _ in every]
        assert not every or any(len(words) >= len(set(s)) for s, (_, words) in zip(sounds, every, strict=True))
        return
    assert paths(moved.fst, False) == paths(fst, True)


HOMOPHONES = [("TO", ("t", "u")), ("TOO", ("t", "u")), ("TUNA", ("t", "u", "n", "a")), ("A", ("a",)), ("AH", ("a",))]
TEXTS = ["TO A TUNA", "TOO A", "A TUNA TOO", "AH TO", "TUNA TUNA", "TO TOO"] * 3


def bigram(lang):
    return ngram_grammar(lang, KneserNey(order=2).train(TEXTS).model)


def ctc():
    lang = make_lang(HOMOPHONES)
    return build_ctc_graph(
        lang, ["<blk>", "t", "u", "n", "a"], ngram_grammar(lang, KneserNey(order=2).train(TEXTS).model)
    )


def hclg():
    lang = make_lang(HOMOPHONES)
    return build_hclg(lang, make_transitions(lang, monophone_tree(lang)), bigram(lang))


def loop():
    lang = make_lang(HOMOPHONES)
    texts = ["TO TO TO TO TO TO TOO TOO TOO", "A A A A A AH AH", "TUNA"]  # equal homophones would be ambiguous
    unigrams = KneserNey(order=1).train(texts).model
    return build_hclg(lang, make_transitions(lang, monophone_tree(lang)), ngram_grammar(lang, unigrams))


def read_by_sherpa(fst, scores_TL):
    """Words of the best path as sherpa-onnx reads them from its arcs."""
    import kaldi_decoder

    search = kaldi_decoder.FasterDecoder(fst, kaldi_decoder.FasterDecoderOptions(beam=1000.0, max_active=100000))
    search.decode(kaldi_decoder.DecodableCtc(scores_TL))
    _, path = search.get_best_path(use_final_probs=True)
    following = {}
    for line in path.to_str(show_weight_one=True).splitlines():
        fields = line.split()
        if len(fields) >= 4:
            following[fields[0]] = (fields[1], int(fields[2]), int(fields[3]))
    words, before, state = [], -1, str(path.start)
    while state in following:
        state, ilabel, olabel = following[state]
        if olabel and ilabel > 1 and ilabel != before:
            words.append(olabel)
        before = ilabel
    return words


@pytest.mark.parametrize("make", [ctc, hclg, loop])
def test_homophones_prefixes_and_back_off_are_read_by_sherpa(make):
    graph = make()
    moved = move_words(graph.fst)
    assert moved.unread == moved.forwards + moved.backwards >= graph.facts.dropped_by_sherpa > 0
    assert unread_words(moved.fst) == 0
    ours = Decoder(graph, DecodeOptions(acoustic_scale=1.0, beam=1000.0, max_active=100000))
    rng, said = np.random.default_rng(5), 0
    for frames in (8, 12, 30, 60) * 6:
        scores_TC = (rng.normal(size=(frames, graph.num_columns)) * 4).astype(np.float32)
        found = ours.decode(scores_TC)
        if not found.complete:
            continue
        scores_TL = np.ascontiguousarray(scores_TC[:, graph.columns])
        words = [graph.words[label] for label in read_by_sherpa(moved.fst, scores_TL)]
        assert tuple(words) == found.words
        said += len(words)
    assert said > 30


def test_a_word_without_a_frame_is_refused():
    fst = kaldifst.StdVectorFst()
    for _ in range(2):
        fst.add_state()
    fst.start = 0
    fst.set_final(1, 0.0)
    fst.add_arc(0, kaldifst.StdArc(ilabel=0, olabel=7, weight=0.0, nextstate=1))
    with pytest.raises(ValueError, match="may end before a frame"):
        move_words(fst)


def test_graph_without_unread_words_stays_as_it_is():
    lang = make_lang([("AN", ("a", "n")), ("NUT", ("n", "u", "t"))])
    graph = build_ctc_graph(lang, ["<blk>", "a", "n", "u", "t"], loop_grammar(lang))
    moved = move_words(graph.fst)
    assert (moved.unread, moved.fst.num_states) == (0, graph.fst.num_states)
    assert paths(moved.fst, True) == paths(graph.fst, True)
    assert all(a != b for a, b in itertools.pairwise(graph.words))
