import itertools
import math
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.speech.language_model.arpa import read_arpa, write_arpa
from murmur.speech.language_model.kneser_ney import KneserNey
from murmur.speech.language_model.ngram import perplexity, prune, select_rows, with_normalised_backoff
from murmur.speech.language_model.ngram_counts import frequent_words

SENTENCES = st.lists(st.lists(st.sampled_from("abcd"), max_size=6).map(" ".join), min_size=1, max_size=12)


class DictKneserNey:
    """Equation 26 of Chen & Goodman, implemented literally over dictionaries."""

    def __init__(self, sentences, order, cutoffs, discounts):
        padded = [["<s>", *s.split(), "</s>"] for s in sentences]
        self.words = {w for s in padded for w in s} - {"<s>"} | {"<unk>"}
        self.raw = Counter(
            tuple(s[i : i + n]) for s in padded for n in range(1, order + 1) for i in range(len(s) - n + 1)
        )
        in_front = defaultdict(set)
        for gram in self.raw:
            in_front[gram[1:]].add(gram[0])
        self.counts = {
            g: c if len(g) == order or g[0] == "<s>" else len(in_front[g]) for g, c in self.raw.items() if g != ("<s>",)
        }
        self.followers = defaultdict(list)
        for gram in self.counts:
            self.followers[gram[:-1]].append(gram)
        self.order, self.cutoffs, self.discounts = order, cutoffs, discounts

    def discount(self, gram):
        count = self.counts[gram]
        if len(gram) > 1 and self.raw[gram] <= self.cutoffs[len(gram) - 1]:
            return count
        return min(count, self.discounts[len(gram) - 1][min(count, 3) - 1])

    def prob(self, history, word):
        lower = 1 / len(self.words) if not history else self.prob(history[1:], word)
        total = sum(self.counts[g] for g in self.followers[history])
        if not total:
            return lower
        gamma = sum(self.discount(g) for g in self.followers[history]) / total
        gram = (*history, word)
        own = (self.counts[gram] - self.discount(gram)) / total if gram in self.counts else 0.0
        return own + gamma * lower

    def perplexity(self, sentences):
        logs = []
        for s in sentences:
            tokens = ["<s>", *(w if w in self.words else "<unk>" for w in s.split()), "</s>"]
            for i in range(1, len(tokens)):
                history = tuple(tokens[max(0, i - self.order + 1) : i])
                logs.append(math.log(self.prob(history, tokens[i])))
        return math.exp(-sum(logs) / len(logs))


def sums(model):
    """Sum of p(w | h) over all words but <s>, for each listed history and the empty one."""
    targets = np.array([i for i, w in enumerate(model.words) if w != "<s>"])
    ids = np.arange(len(model.words))[:, None]
    yield (), (10.0 ** model.orders[0].log10_prob[targets].astype(float)).sum()
    for n in range(1, model.order):
        for row in ids:
            if model.words[row[-1]] == "</s>":
                continue
            text = np.stack([np.append(row, w) for w in targets])
            first = np.zeros(text.shape, dtype=bool)
            first[:, 0] = True
            log10 = model.log10_probs(text.ravel(), first.ravel()).reshape(text.shape)[:, -1]
            yield tuple(row), (10.0**log10).sum()
        grams = model.orders[n]
        ids = np.concatenate([ids[grams.prefix], grams.word[:, None]], axis=1)


@settings(deadline=None, max_examples=40)
@given(SENTENCES, st.integers(1, 4), st.data())
def test_probabilities_sum_to_one_for_every_history(sentences, order, data):
    cutoffs = tuple(sorted(data.draw(st.lists(st.integers(0, 2), min_size=order, max_size=order))))
    model = KneserNey(order, (0, *cutoffs[1:])).train(sentences).model
    for history, total in sums(model):
        assert total == pytest.approx(1.0, abs=2e-6), history
    for history, total in sums(prune(model, data.draw(st.floats(0, 0.5)))):
        assert total == pytest.approx(1.0, abs=2e-5), history


@settings(deadline=None, max_examples=60)
@given(SENTENCES, SENTENCES, st.integers(1, 4), st.data())
def test_equals_the_equation_over_dictionaries(sentences, held_out, order, data):
    cutoffs = (0, *sorted(data.draw(st.lists(st.integers(0, 2), min_size=order - 1, max_size=order - 1))))
    trained = KneserNey(order, cutoffs).train(sentences)
    oracle = DictKneserNey(sentences, order, cutoffs, trained.discounts)
    assert perplexity(trained.model, held_out).perplexity == pytest.approx(oracle.perplexity(held_out), rel=1e-5)


def without(model, row):
    keep = [np.ones(len(grams), dtype=bool) for grams in model.orders]
    keep[-1][row] = False
    return with_normalised_backoff(select_rows(model, keep))


def bigram_table(model):
    """p(w | h) for every pair of words."""
    V = len(model.words)
    pairs = np.stack(np.meshgrid(np.arange(V), np.arange(V), indexing="ij"), axis=-1).reshape(-1, 2)
    first = np.tile([True, False], len(pairs))
    return 10 ** model.log10_probs(pairs.ravel(), first).reshape(V, V, 2)[:, :, 1]


def test_words_that_leave_nothing_to_others_are_not_backed_off_from(tmp_path):
    """An unsmoothed model: the sums were one with the weight 10^-99, and would be up to two with the weight 1."""
    rows = ["-0.4771213 </s>", "-0.4771213 a -99", "-0.4771213 b -99"]
    bigrams = ["-0.30103 <s> a", "-0.30103 <s> b", "0 a b", "0 b </s>"]
    lines = ["\\data\\", "ngram 1=4", "ngram 2=4", "", "\\1-grams:", "-99 <s> -99", *rows, "", "\\2-grams:", *bigrams]
    (tmp_path / "lm.arpa").write_text("\n".join([*lines, "", "\\end\\", ""]))
    model = read_arpa(tmp_path / "lm.arpa")
    pruned = prune(model, 0.0)
    for _, total in sums(pruned):
        assert total == pytest.approx(1, abs=1e-4)
    assert perplexity(pruned, ["a a b"]).perplexity == pytest.approx(perplexity(model, ["a a b"]).perplexity, rel=1e-3)


def test_pruned_bigrams_are_those_whose_loss_adds_least_relative_entropy():
    model = KneserNey(2).train(["a b a c", "a b", "b c a b d", "d a a", "c"]).model
    full, start = bigram_table(model), model.number_of["<s>"]
    p_history = 10.0 ** model.orders[0].log10_prob.astype(float)
    p_history[start] = 1.0
    predicted = np.arange(len(model.words)) != start
    rise = []
    for row, h in enumerate(model.orders[1].prefix):
        other = bigram_table(without(model, row))
        entropy = (full[h] * np.log(full[h] / other[h]))[predicted].sum()
        rise.append(np.expm1(p_history[h] * entropy))
    for threshold in np.convolve(np.unique(np.round(rise, 9)), [0.5, 0.5], "valid"):
        kept = prune(model, threshold).orders[1]
        wanted = np.array(rise) >= threshold
        assert kept.prefix.tolist() == model.orders[1].prefix[wanted].tolist()
        assert kept.word.tolist() == model.orders[1].word[wanted].tolist()


def test_pruning_shrinks_step_by_step_and_keeps_prefixes():
    model = KneserNey(3).train(zipf_sentences(300, 4)).model
    sizes = []
    for threshold in (0, 1e-6, 1e-4, 1e-2):
        pruned = prune(model, threshold)
        sizes.append([len(grams) for grams in pruned.orders])
        assert all(g.prefix.max(initial=0) < len(below) for below, g in itertools.pairwise(pruned.orders))
    assert all(a >= b for larger, smaller in itertools.pairwise(sizes) for a, b in zip(larger, smaller, strict=True))
    assert sizes[-1][1] < sizes[0][1]
    held_out = zipf_sentences(50, 5)
    before, after = (perplexity(prune(model, t), held_out).perplexity for t in (0, 1e-5))
    assert after < 1.1 * before
    with pytest.raises(ValueError, match="threshold -1"):
        prune(model, -1)


def zipf_sentences(count, seed):
    random = np.random.default_rng(seed)
    return [" ".join(f"w{i}" for i in random.zipf(1.5, random.integers(1, 12)) if i < 200) for _ in range(count)]


def test_discounts_follow_the_counts_of_counts():
    sentences = zipf_sentences(300, 1)
    trained = KneserNey(2).train(sentences)
    assert trained.fell_back == ()
    grams = Counter(pair for s in sentences for pair in itertools.pairwise(["<s>", *s.split(), "</s>"]))
    n = [list(grams.values()).count(k) for k in range(5)]
    Y = n[1] / (n[1] + 2 * n[2])
    assert trained.discounts[1] == pytest.approx([k - (k + 1) * Y * n[k + 1] / n[k] for k in (1, 2, 3)])
    assert KneserNey(2).train(["a b"]).fell_back == (1, 2)


def test_lower_orders_count_contexts_not_occurrences():
    """FRANCISCO is frequent but always after SAN: alone it must be rarer than a word seen after many others."""
    sentences = ["SAN FRANCISCO"] * 20 + [f"{w} TEA" for w in "ABCDEFGH"]
    model = KneserNey(2).train(sentences).model
    prob = model.orders[0].log10_prob
    assert prob[model.number_of["FRANCISCO"]] < prob[model.number_of["TEA"]]


def test_words_outside_the_vocabulary():
    trained = KneserNey(2).train(["a b c", "a x"], vocabulary=["a", "b", "never"])
    assert trained.unknown_words == 2
    assert set(trained.model.words) == {"</s>", "<s>", "<unk>", "a", "b", "never"}
    figures = perplexity(trained.model, ["a q", "never"])
    assert (figures.unknown_words, figures.words, figures.scored_tokens) == (1, 3, 5)
    assert perplexity(trained.model, ["a <unk>", "never"]) == figures
    with pytest.raises(ValueError, match="the text holds </s>, <s>: leave sentence marks out"):
        perplexity(trained.model, ["<s> a </s>"])
    closed = KneserNey(2, unknown=None).train(["a b"])
    assert closed.model.unknown == -1
    figures = perplexity(closed.model, ["a q b"])
    assert (figures.unknown_words, figures.scored_tokens) == (1, 3)
    with pytest.raises(ValueError, match=r"1 word of the text is outside the closed vocabulary \(c\)"):
        KneserNey(2, unknown=None).train(["a b c"], vocabulary=["a", "b"])


def test_bad_requests_are_refused():
    with pytest.raises(ValueError, match="order 5"):
        KneserNey(5)
    for cutoffs in ((1, 1), (0,), (0, 2, 1)):
        with pytest.raises(ValueError, match="cut-offs"):
            KneserNey(len(cutoffs) if len(cutoffs) != 1 else 2, cutoffs)
    with pytest.raises(ValueError, match="no sentence"):
        KneserNey(2).train([])
    with pytest.raises(ValueError, match="the text holds </s>, <s>"):
        KneserNey(2).train(["<s> a </s>"])


def test_frequent_words():
    assert frequent_words(["b a b", "c a"], most=2) == ["a", "b"]
    assert frequent_words(["b a b", "c a"], min_count=2) == ["a", "b"]


@pytest.mark.parametrize("order", [3, 4])
def test_perplexity_equals_kenlm(tmp_path, order):
    kenlm = pytest.importorskip("kenlm", reason="kenlm is optional (it compiles for a minute)")
    model = KneserNey(order).train(zipf_sentences(300, 2)).model
    path = tmp_path / "lm.arpa"
    write_arpa(model, path)
    theirs = kenlm.Model(str(path))
    held_out = [s for s in zipf_sentences(50, 3) if s]
    log10 = sum(theirs.score(s) for s in held_out)
    figures = perplexity(model, held_out)
    assert figures.log10_prob == pytest.approx(log10, rel=1e-5)


def test_real_text_trains_and_predicts():
    text = Path(__file__).resolve().parents[3] / "../shared/corpora/librispeech_mini_s/data"
    if not text.is_dir():
        pytest.skip("the LibriSpeech excerpt is not beside the repository")
    lines = {split: (text / split / "text").read_text(encoding="utf-8").splitlines() for split in ("train", "test")}
    train, test = ([line.split(" ", 1)[1] for line in lines[split]] for split in ("train", "test"))
    unigram, trigram = KneserNey(1).train(train).model, KneserNey(3).train(train).model
    assert perplexity(trigram, test).perplexity < 0.9 * perplexity(unigram, test).perplexity


@pytest.mark.parametrize(("unknown", "other"), [("<unk>", "<UNK>"), ("<UNK>", "<unk>")])
@pytest.mark.parametrize("vocabulary", [None, ["a", "b", "<unk>", "<UNK>"]])
def test_both_names_of_the_unknown_word_are_one(unknown, other, vocabulary):
    text = [f"a b {other} a", f"b {unknown} a", "a a b"]
    trained = KneserNey(2, unknown=unknown).train(text, vocabulary)
    assert trained.model.words[trained.model.unknown] == unknown
    assert set(trained.model.words) == {"<s>", "</s>", unknown, "a", "b"}
    assert trained.unknown_words == 1
    same = KneserNey(2, unknown=unknown).train([line.replace(other, unknown) for line in text], vocabulary)
    np.testing.assert_array_equal(trained.model.orders[0].log10_prob, same.model.orders[0].log10_prob)
    assert perplexity(trained.model, text).unknown_words == 2
