"""Rescoring against brute force: a tiny lattice, equal models, weight 0, unknown words."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

pytest.importorskip("kaldifst", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.speech.decoding.decoder import Hypothesis
from murmur.speech.decoding.lattice import best_word_paths
from murmur.speech.decoding.rescoring import LstmScores, NgramScores, Scored, scored
from murmur.speech.language_model.kneser_ney import KneserNey
from murmur.speech.language_model.ngram import NgramModel
from murmur.speech.language_model.word_lstm import LstmLanguageModel, WordLstm, WordNumbers
from tests.support.enumerated_lattices import Text

WORDS = ("A", "B", "C")


@pytest.fixture(scope="module")
def ngram() -> NgramModel:
    return KneserNey(2).train(["A B C", "B A", "C C A", "A"]).model


def lstm(words: tuple[str, ...], seed: int = 0) -> LstmLanguageModel:
    torch.manual_seed(seed)
    model = WordLstm(3, 4, 1, 0.0).build(len(words))
    with torch.no_grad():
        for weights in model.parameters():
            weights.normal_()
    return model


def lstm_scores(known: tuple[str, ...] = WORDS, sayable: tuple[str, ...] = WORDS, seed: int = 0) -> LstmScores:
    numbers = WordNumbers(("</s>", "<unk>", *known))
    return LstmScores(lstm(numbers.words, seed), numbers, sayable)


def listed(lattice: Text, n: int) -> list[Hypothesis]:
    """n-best list of a lattice whose labels 1, 2, 3 are the words."""
    return [
        Hypothesis(tuple(WORDS[w - 1] for w in path.words), np.array(path.labels), path.cost, True)
        for path in best_word_paths(lattice, n)
    ]


def lattice() -> Text:
    """Two or three words, any at each place, at random costs; the last may be missing."""
    rng = np.random.default_rng(4)
    arcs = [
        (p, p + 1, p + 1, w, float(rng.uniform(0, 3)), float(rng.uniform(0, 3))) for p in range(3) for w in (1, 2, 3)
    ]
    return Text(arcs, {2: 1.5, 3: 0.0})


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.8, 1.0])
def test_every_path_of_a_lattice_has_the_cost_of_its_mixture(ngram: NgramModel, weight: float) -> None:
    """Probabilities of the mixture word by word, without logarithms, for every sentence that the lattice allows."""
    other = lstm_scores()
    costs: dict[tuple[str, ...], float] = {}
    for cost, words, _ in lattice().paths():
        said = tuple(WORDS[w - 1] for _, w in words)
        costs[said] = min(cost, costs.get(said, math.inf))
    wanted = {}
    for said, cost in costs.items():
        history, total = ["<s>"], cost
        with torch.no_grad():
            p_lstm = torch.softmax(other.model(torch.tensor([[0, *(WORDS.index(w) + 2 for w in said)]]))[0], -1)
        for place, word in enumerate([*said, "</s>"]):
            numbers = np.array([ngram.number_of[w] for w in [*history, word]])
            p_n = 10 ** ngram.log10_probs(numbers, numbers == ngram.number_of["<s>"])[-1]
            p_r = float(p_lstm[place, 0 if word == "</s>" else WORDS.index(word) + 2])
            total += math.log(p_n) - math.log((1 - weight) * p_n + weight * p_r)
            history.append(word)
        wanted[said] = total
    found = scored(listed(lattice(), 100), NgramScores(ngram), other)
    assert len(found.hypotheses) == len(wanted) == 9 + 27
    for hypothesis, cost in zip(found.hypotheses, found.costs(weight), strict=True):
        assert cost == pytest.approx(wanted[hypothesis.words], abs=1e-5)
    assert found.best(weight).words == min(wanted, key=lambda said: wanted[said])


def test_weight_0_and_equal_models_change_nothing(ngram: NgramModel) -> None:
    first = listed(lattice(), 10)
    costs = [hypothesis.cost for hypothesis in first]
    with_lstm, with_itself = (scored(first, NgramScores(ngram), s) for s in (lstm_scores(), NgramScores(ngram)))
    assert with_lstm.costs(0.0) == costs
    assert with_lstm.best(0.0) is first[0]
    others = [scored(first, NgramScores(ngram), lstm_scores(seed=seed)) for seed in range(5)]
    assert any(other.best(1.0) is not first[0] for other in others)
    for weight in (0.1, 0.5, 1.0):
        assert with_itself.costs(weight) == pytest.approx(costs, abs=1e-9)
        assert with_itself.best(weight) is first[0]


def test_words_that_the_model_does_not_know_share_the_probability_of_unk() -> None:
    few = lstm_scores(known=("A",), sayable=("A", "B", "C", "D"))
    assert few.unseen == ("B", "C", "D")
    longest = 3
    whole = [s for n in range(longest) for s in itertools.product("ABCD", repeat=n)]
    begun = list(itertools.product("ABCD", repeat=longest))
    total = sum(math.exp(p.sum()) for p in few.log_probs(whole))
    total += sum(math.exp(p[:-1].sum()) for p in few.log_probs(begun))
    assert total == pytest.approx(1.0, abs=1e-5)
    seen, unseen = few.log_probs([("A",), ("B",)])
    assert unseen[0] != seen[0]
    closed = lstm_scores()
    assert closed.unseen == ()


def test_empty_hypotheses_and_wrong_weights(ngram: NgramModel) -> None:
    empty = Hypothesis((), np.zeros(0, np.int32), 2.0, False)
    found = scored([empty], NgramScores(ngram), lstm_scores())
    assert [len(p) for p in (*found.ngram, *found.other)] == [1, 1]
    for wrong in (-0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match="a number from 0 to 1"):
            found.costs(wrong)


def test_a_partial_hypothesis_is_not_charged_for_a_sentence_end() -> None:
    words, ngram, other = ("A", "B"), np.array([-1.0, -2.0, -5.0]), np.array([-2.0, -1.5, -0.1])
    for complete, last in ((True, -5.0 + 0.1), (False, 0.0)):
        found = Scored((Hypothesis(words, np.zeros(2, np.int32), 7.0, complete),), (ngram,), (other,))
        assert found.costs(1.0) == pytest.approx([7.0 + 1.0 - 0.5 + last])


def test_a_word_that_the_search_cannot_have_found_is_named(ngram: NgramModel) -> None:
    closed = KneserNey(2, unknown=None).train(["A B"]).model
    with pytest.raises(ValueError, match=r"the n-gram model has no \['C'\]"):
        NgramScores(closed).log_probs([("A", "C")])
    assert len(NgramScores(ngram).log_probs([("A", "D")])[0]) == 3  # this one has an unknown word


def test_ties_stay_with_the_search() -> None:
    two = [Hypothesis((word,), np.zeros(1, np.int32), 1.0, True) for word in "AB"]
    even = (np.array([-1.0, -1.0]),) * 2
    assert Scored(tuple(two), even, even).best(0.5) is two[0]
