import itertools

import kaldialign
import numpy as np
import pytest

from murmur.report.error_rate import compare, interval
from murmur.speech.decoding.wer import ErrorRate, score_utterances


def random_scores(seed, utterances=80, worse=0):
    random = np.random.default_rng(seed)
    tokens = random.integers(3, 20, utterances)
    errors = random.binomial(tokens, 0.2 + worse)
    return {f"u{i:03d}": ErrorRate(int(t), 0, 0, int(e)) for i, (t, e) in enumerate(zip(tokens, errors, strict=True))}


def test_interval_of_three_utterances_matches_all_equally_likely_draws():
    scores = {"a": ErrorRate(5, 1), "b": ErrorRate(7, 0, 2), "c": ErrorRate(2, 0, 0, 2)}
    rates = list(scores.values())
    every = [
        100 * sum(r.errors for r in draw) / sum(r.tokens for r in draw) for draw in itertools.product(rates, repeat=3)
    ]
    got = interval(scores, coverage=0.6, replications=200_000)
    assert got.value == pytest.approx(100 * 5 / 14)
    low, high = np.quantile(every, [0.2, 0.8], method="inverted_cdf")
    assert (got.low, got.high) == pytest.approx((low, high), abs=1e-6)


@pytest.mark.parametrize(("words", "coverage"), [(325, 0.95), (1, 0.9), (40, 0.5)])
def test_without_errors_the_interval_ends_where_none_is_as_rare_as_half_of_the_rest(
    words: int, coverage: float
) -> None:
    for groups in (None, {"a": "s", "b": "s"}):
        got = interval({"a": ErrorRate(words), "b": ErrorRate(0)}, group_of=groups, coverage=coverage)
        assert (got.value, got.low) == (0, 0)
        assert (1 - got.high / 100) ** words == pytest.approx((1 - coverage) / 2)


def test_agrees_with_kaldialign_on_many_utterances():
    random = np.random.default_rng(0)
    references = {f"u{i:03d}": [str(w) for w in random.integers(0, 9, random.integers(4, 20))] for i in range(150)}
    heard = {n: [w if random.random() > 0.2 else "x" for w in words] for n, words in references.items()}
    scores = score_utterances(
        {n: " ".join(w) for n, w in references.items()}, {n: " ".join(w) for n, w in heard.items()}
    )
    theirs = kaldialign.bootstrap_wer_ci([references[n] for n in scores], [heard[n] for n in scores], replications=2000)
    got = interval(scores, replications=20_000)
    assert got.low == pytest.approx(100 * theirs["ci95min"], abs=0.25)
    assert got.high == pytest.approx(100 * theirs["ci95max"], abs=0.25)


def test_speakers_as_units_widen_the_interval_when_speakers_differ():
    scores = {
        f"{s}{i}": ErrorRate(10, substitutions=4 if s == "bad" else 1) for s in ("bad", "good") for i in range(50)
    }
    by_speaker = interval(scores, group_of={n: n.rstrip("0123456789") for n in scores})
    assert (by_speaker.low, by_speaker.high) == pytest.approx((10, 40))
    by_utterance = interval(scores)
    assert by_utterance.high - by_utterance.low < 10


def test_a_system_against_itself_differs_by_nothing():
    scores = random_scores(1)
    same = compare(scores, scores)
    assert (same.difference.low, same.difference.value, same.difference.high) == (0, 0, 0)
    assert same.second_better == 0.5


def test_pairing_finds_a_small_gain_that_separate_intervals_miss():
    first = random_scores(2)
    second = {
        n: ErrorRate(r.tokens, substitutions=r.errors - (i % 5 == 0 and r.errors > 0))
        for i, (n, r) in enumerate(first.items())
    }
    assert interval(first).low < interval(second).value
    gain = compare(first, second)
    assert gain.difference.high < 0
    assert gain.second_better > 0.99
    assert compare(second, first).difference.low > 0


def test_same_seed_same_interval():
    assert interval(random_scores(3), seed=4) == interval(random_scores(3), seed=4)


def test_wrong_requests_are_refused():
    scores = random_scores(5)
    with pytest.raises(ValueError, match="coverage 95"):
        interval(scores, coverage=95)
    with pytest.raises(ValueError, match="0 bootstrap replications"):
        interval(scores, replications=0)
    with pytest.raises(ValueError, match="no reference tokens"):
        interval({})
    with pytest.raises(ValueError, match=r"have different references for 1 utterance.*u000"):
        compare(scores, {**scores, "u000": ErrorRate(99)})
