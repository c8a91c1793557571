"""LSTM language models against enumeration: sums, perplexity, padding, tied embeddings; vocabularies."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from murmur.speech.language_model import word_lstm
from murmur.speech.language_model.word_lstm import (
    LstmLanguageModel,
    WordLstm,
    WordNumbers,
    padded,
    perplexity_of,
    token_log_probs,
)

SIZES = [WordLstm(4, 5, 1, 0.3, tied=True), WordLstm(4, 4, 2, 0.3, tied=True), WordLstm(3, 5, 2, 0.0, tied=False)]
WORDS = WordNumbers(("</s>", "<unk>", "A", "B"))
TEXT = WordNumbers(WORDS.words).numbered(["A B B", "", "B C A A B", "A", "D"])


def made(size: WordLstm, seed: int = 0) -> LstmLanguageModel:
    """A model with weights far from uniform predictions."""
    torch.manual_seed(seed)
    model = size.build(len(WORDS))
    with torch.no_grad():
        for weights in model.parameters():
            weights.normal_()
    return model


def told_stepwise(model: LstmLanguageModel, words: list[int]) -> list[float]:
    """ln p of each word and of the end, each from a run over its own history alone."""
    model.eval()
    found = []
    with torch.no_grad():
        for place, target in enumerate([*words, 0]):
            logits_V = model(torch.tensor([[0, *words[:place]]]))[0, -1].double().numpy()
            found.append(float(logits_V[target] - np.log(np.exp(logits_V).sum())))
    model.train()
    return found


@pytest.mark.parametrize("size", SIZES)
def test_sentences_and_begun_sentences_share_a_probability_of_one(size: WordLstm) -> None:
    longest, inner = 4, range(1, len(WORDS))
    whole = [np.array(s) for n in range(longest) for s in itertools.product(inner, repeat=n)]
    begun = [np.array(s) for s in itertools.product(inner, repeat=longest)]
    model = made(size)
    ended = sum(math.exp(p.sum()) for p in token_log_probs(model, whole))
    open_ = sum(math.exp(p[:-1].sum()) for p in token_log_probs(model, begun))
    assert 0.1 < ended < 0.9999
    assert ended + open_ == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("size", SIZES)
def test_perplexity_is_that_of_histories_run_one_by_one(size: WordLstm) -> None:
    model = made(size)
    every = [told_stepwise(model, TEXT[n].tolist()) for n in range(len(TEXT))]
    found = perplexity_of(model, TEXT)
    flat = list(itertools.chain(*every))
    assert found.perplexity == pytest.approx(math.exp(-sum(flat) / len(flat)), rel=1e-5)
    assert (found.sentences, found.words, found.unknown_words, found.scored_tokens) == (5, 10, 2, 15)
    known = [p for n in range(5) for p, w in zip(every[n], [*TEXT[n].tolist(), 0], strict=True) if w != 1]
    assert found.perplexity_known == pytest.approx(math.exp(-sum(known) / len(known)), rel=1e-5)


@pytest.mark.parametrize("size", SIZES)
def test_padding_changes_nothing(size: WordLstm) -> None:
    model = made(size)
    alone = token_log_probs(model, list(TEXT), at_once=1)
    for at_once in (2, 3, 64):
        together = token_log_probs(model, list(TEXT), at_once)
        for one, other in zip(alone, together, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
    model.eval()
    model.log_probs(padded(list(TEXT))).sum().backward()
    batch = [weights.grad.clone() for weights in model.parameters() if weights.grad is not None]
    model.zero_grad()
    for sentence in list(TEXT):
        model.log_probs(padded([sentence])).sum().backward()
    for one, weights in zip(batch, model.parameters(), strict=True):
        torch.testing.assert_close(one, weights.grad, atol=1e-4, rtol=1e-4)


def test_logits_without_gradients_are_made_for_few_tokens_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = made(SIZES[0]), list[int]()
    whole = token_log_probs(model, list(TEXT))
    plain = model.logits
    monkeypatch.setattr(model, "logits", lambda hidden: asked.append(hidden.shape[0]) or plain(hidden))
    monkeypatch.setattr(word_lstm, "LOGITS_AT_ONCE", 3 * len(WORDS))
    for one, other in zip(whole, token_log_probs(model, list(TEXT)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert max(asked) == 3
    assert sum(asked) == sum(TEXT.tokens)
    asked.clear()
    model.log_probs(padded(list(TEXT)))
    assert asked == [sum(TEXT.tokens)]


def test_tied_embeddings_are_one_matrix_with_both_gradients() -> None:
    tied, free = (WordLstm(4, 4, 1, 0.0, tied=tied).build(6) for tied in (True, False))
    count = [sum(weights.numel() for weights in model.parameters()) for model in (tied, free)]
    assert count[1] - count[0] == 6 * 4
    tied.log_probs(padded([np.array([2])])).sum().backward()
    assert tied.embedding.weight.grad is not None
    assert bool((tied.embedding.weight.grad[5] != 0).any())  # word 5 is no input: its gradient is the output's
    narrow = WordLstm(3, 4, 1, 0.0, tied=True).build(6)
    assert narrow.narrow is not None
    assert narrow(torch.zeros(2, 5, dtype=torch.long)).shape == (2, 5, 6)


def test_dropout_is_for_training_alone() -> None:
    model = made(SIZES[0])
    batch = padded(list(TEXT))
    assert not torch.equal(model.log_probs(batch), model.log_probs(batch))
    first, second = (token_log_probs(model, list(TEXT)) for _ in range(2))
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    assert model.training


def test_no_sentence_has_no_perplexity() -> None:
    with pytest.raises(ValueError, match="no sentence to score"):
        perplexity_of(made(SIZES[0]), WORDS.numbered([]))
    assert token_log_probs(made(SIZES[0]), []) == []


@pytest.mark.parametrize("wrong", [{"hidden": 0}, {"dropout": 1.0}, {"layers": -1}])
def test_impossible_sizes_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="sizes must be at least 1"):
        WordLstm(**wrong)  # type: ignore[arg-type]


COUNTED = ["B A A", "C A <unk> B", "", "cafe\u0301"]


def test_frequent_words_come_first_behind_the_marks() -> None:
    assert WordNumbers.frequent(COUNTED).words == ("</s>", "<unk>", "A", "B", "C", "café")
    assert WordNumbers.frequent(COUNTED, most=1).words == ("</s>", "<unk>", "A")
    assert WordNumbers.frequent(COUNTED, min_count=2).words == ("</s>", "<unk>", "A", "B")


def test_texts_become_numbers_and_their_tokens_count_the_ends() -> None:
    text = WordNumbers.frequent(COUNTED, min_count=2).numbered(COUNTED)
    assert [text[n].tolist() for n in range(len(text))] == [[3, 2, 2], [1, 2, 1, 3], [], [1]]
    assert text.tokens == (4, 5, 1, 2)
    assert WordNumbers.frequent(COUNTED).numbered(["CAFÉ caf\u00e9"])[0].tolist() == [1, 5]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("A",), "begins with </s> and <unk>"),
        (("</s>", "<unk>", "<s>"), "has no <s>"),
        (("</s>", "<unk>", "A", "A"), "'A' more than once"),
        (("</s>", "<unk>", "A B"), "'A B' is not one word"),
        (("</s>", "<unk>", ""), "'' is not one word"),
    ],
)
def test_wrong_vocabularies_are_refused(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        WordNumbers(words)


def test_marks_inside_a_text_are_refused() -> None:
    with pytest.raises(ValueError, match="the text holds </s>"):
        WordNumbers.frequent(["A </s>"])
