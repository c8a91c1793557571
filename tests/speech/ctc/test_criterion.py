"""CTC against the sum over all alignments; units; best-path decoding."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.speech import ctc
from murmur.speech.corpus.corpus import CorpusError, normal_text


def loss(logits, lengths, sequences):
    return ctc.loss(logits, torch.tensor(lengths), [ctc.LabelGraph.linear(labels) for labels in sequences])


def collapse(path):
    return tuple(k for k, _ in itertools.groupby(path) if k != ctc.BLANK)


@given(st.integers(1, 5), st.lists(st.integers(1, 2), max_size=3), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_the_loss_is_the_sum_over_all_alignments(frames, labels, seed):
    logits = torch.randn(1, frames, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    probs = logits.softmax(-1)[0]
    total = sum(
        math.prod(float(probs[t, k]) for t, k in enumerate(path))
        for path in itertools.product(range(3), repeat=frames)
        if collapse(path) == tuple(labels)
    )
    if ctc.LabelGraph.linear(labels).frames_needed > frames:
        assert total == 0
        with pytest.raises(ValueError, match=f"item 0 has {frames} frames"):
            loss(logits, [frames], [labels])
    else:
        assert float(loss(logits, [frames], [labels])) == pytest.approx(-math.log(total), rel=1e-6)


def test_losses_of_a_batch_add_up_and_padding_counts_for_nothing():
    logits = torch.randn(2, 9, 4)
    alone = loss(logits[:1, :6], [6], [[1, 2]]) + loss(logits[1:], [9], [[3, 3, 1]])
    assert float(loss(logits, [6, 9], [[1, 2], [3, 3, 1]])) == pytest.approx(float(alone), rel=1e-5)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 4))
@settings(deadline=None)
def test_greedy_collapses_the_best_path(path, padding):
    logits = torch.nn.functional.one_hot(torch.tensor([path + [3] * padding]), 4).float()
    assert tuple(ctc.greedy(logits, torch.tensor([len(path)]))[0]) == collapse(path)


@given(
    st.lists(st.lists(st.text(st.characters(categories=("L", "M")), min_size=1), max_size=5), min_size=1),
    st.sampled_from(["char", "grapheme", "phone", "word"]),
)
def test_texts_survive_encoding(rows, kind):
    texts = [normal_text(" ".join(words)) for words in rows]
    units = ctc.Units.of(texts, kind)
    assert [units.decode(units.encode(text)) for text in texts] == texts
    assert all(units.covers(text) for text in texts)
    assert all(0 < c < units.columns for text in texts for c in units.encode(text))
    assert [s.encode() for s in units.symbols] == sorted(s.encode() for s in units.symbols)


def test_unknown_units_are_refused_by_name():
    units = ctc.Units.of(["YES NO"], "word")
    assert not units.covers("YES MAYBE")
    with pytest.raises(CorpusError, match="'MAYBE'"):
        units.encode("YES MAYBE")
    with pytest.raises(ValueError, match="unknown CTC unit 'syllable'"):
        ctc.Units.of(["YES"], "syllable")


def test_graphemes_keep_marks_and_tell_beginnings_of_words():
    assert ctc.pieces("na\u0308h e\u0301", "grapheme") == ["\u2581n", "\u00e4", "h", "\u2581\u00e9"]
    assert ctc.pieces("\u0915\u093f", "grapheme") == ["\u2581\u0915\u093f"]  # a consonant and its vowel sign
    units = ctc.Units.of(["AB A"], "grapheme")
    assert units.symbols == ("B", "\u2581A")
    assert units.encode("A AB") == (2, 2, 1)
    assert units.decode((1, 2, 1, 2)) == "B AB A"
    with pytest.raises(CorpusError, match="U\\+2581"):
        ctc.Units.of(["\u2581A"], "grapheme")
