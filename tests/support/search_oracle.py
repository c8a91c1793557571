"""Decoding by enumeration: every word sequence, pronunciation and silence, with exact Viterbi in each.

Costs follow the graph's definition: grammar (best of the listed n-gram and the way through back-off), optional
silence, transitions without self-loops, self-loops at their own scale, scores.
"""

import itertools
import math

import numpy as np

LN10 = math.log(10)


class GrammarOracle:
    """Cheapest cost of a word sequence in a bigram (or unigram) back-off model, with free back-off."""

    def __init__(self, model):
        self.unigram = {w: -LN10 * float(p) for w, p in zip(model.words, model.orders[0].log10_prob, strict=True)}
        self.backoff = {w: -LN10 * float(b) for w, b in zip(model.words, model.orders[0].log10_backoff, strict=True)}
        pairs = model.orders[1] if model.order > 1 else None
        self.bigram = (
            {}
            if pairs is None
            else {
                (model.words[h], model.words[w]): -LN10 * float(p)
                for h, w, p in zip(pairs.prefix, pairs.word, pairs.log10_prob, strict=True)
            }
        )

    def __call__(self, words):
        cost = 0.0
        for h, w in itertools.pairwise(["<s>", *words, "</s>"]):
            cost += min(self.bigram.get((h, w), math.inf), self.backoff[h] + self.unigram[w])
        return cost


def next_states(phone, state, num_silence=1):
    """Return the targets of a state's arcs in the order of the topology; one past the last state leaves the phone."""
    if phone > num_silence:
        return [state, state + 1]
    return list(range(4)) if state == 0 else [4, 5] if state == 4 else list(range(1, 5))


class HmmOracle:
    def __init__(self, lang, tree, transitions, self_loop_scale=0.1, transition_scale=1.0):
        self.lang, self.tree = lang, tree
        self.self_loop_scale, self.transition_scale = self_loop_scale, transition_scale
        log_probs = transitions.log_probs
        self.log_prob = {
            (
                int(transitions.phone_of[t]),
                int(transitions.state_of[t]),
                int(transitions.pdf_of[t]),
                int(transitions.arc_of[t]),
            ): float(log_probs[t])
            for t in range(1, transitions.num_ids + 1)
        }

    def _arcs(self, phone, state, pdf):
        """Return the cost of staying, and {next state: cost of leaving for it}."""
        targets = next_states(phone, state)
        p = [math.exp(self.log_prob[phone, state, pdf, k]) for k in range(len(targets))]
        loop = sum(q for q, t in zip(p, targets, strict=True) if t == state)
        stay = -self.self_loop_scale * math.log(loop)
        leave = {
            t: -self.transition_scale * math.log(q / (1 - loop)) - self.self_loop_scale * math.log(1 - loop)
            for q, t in zip(p, targets, strict=True)
            if t != state
        }
        return stay, leave

    def cost(self, phones, scores_TP):
        """Return the cost of the cheapest state path of a phone sequence over all frames; infinite if none fits."""
        nodes, final = {}, {}
        for i, phone in enumerate(phones):
            window = [
                phones[i + k - self.tree.centre] if 0 <= i + k - self.tree.centre < len(phones) else 0
                for k in range(self.tree.width)
            ]
            last = 5 if phone == 1 else 3
            for state in range(last):
                pdf = self.tree.pdf(window, state)
                stay, leave = self._arcs(phone, state, pdf)
                moves = {((i, t) if t < last else (i + 1, 0)): c for t, c in leave.items()}
                nodes[i, state] = (pdf, stay, moves)
        alive = {(0, 0): 0.0}  # cost of having arrived in a state, its first frame not yet read
        for frame in scores_TP:
            arrived, after = alive, {}
            inside = {}
            for node, cost in arrived.items():
                if node in nodes:
                    inside[node] = cost - frame[nodes[node][0]]
            for node, cost in inside.items():
                pdf, stay, moves = nodes[node]
                after[node, "stay"] = cost + stay
                for target, extra in moves.items():
                    after[target, "go"] = min(after.get((target, "go"), math.inf), cost + extra)
            alive = {}
            for (node, _), cost in after.items():
                alive[node] = min(alive.get(node, math.inf), cost)
            final = {n: c for (n, how), c in after.items() if how == "go"}
        return final.get((len(phones), 0), math.inf)


def all_hypotheses(lang, grammar_cost, hmm, scores_TP, longest):
    """Return {words: cheapest cost} over sequences of at most `longest` words that fit into the frames."""
    prons = {}
    for pron in lang.prons:
        prons.setdefault(pron.word, []).append(list(pron.phones))
    p = lang.silence_probability
    found = {}
    for n in range(longest + 1):
        for words in itertools.product(sorted(prons), repeat=n):
            best = math.inf
            for chosen in itertools.product(*(prons[w] for w in words)):
                for silent in itertools.product((False, True), repeat=n + 1):
                    phones = [1] if silent[0] else []
                    for spoken, pause in zip(chosen, silent[1:], strict=True):
                        phones += spoken + ([1] if pause else [])
                    if not phones or 3 * len(phones) > len(scores_TP):
                        continue
                    pauses = -sum(math.log(p if s else 1 - p) for s in silent)
                    best = min(best, pauses + hmm.cost(phones, scores_TP))
            if best < math.inf:
                found[words] = best + grammar_cost(words)
    return found


def ctc_cost(tokens, log_probs_TC):
    """Return the cost of the cheapest alignment of a token sequence: repeats collapse, blanks (0) in between."""
    states = [0]
    for t in tokens:
        states += [t, 0]
    cost = np.full(len(states), np.inf)
    cost[0] = 0.0
    for n, frame in enumerate(log_probs_TC):
        new = np.full(len(states), np.inf)
        for s, token in enumerate(states):
            before = [cost[s]] if n else [0.0 if s <= 1 else np.inf]
            if n and s >= 1:
                before.append(cost[s - 1])
            if n and s >= 2 and token != 0 and token != states[s - 2]:
                before.append(cost[s - 2])
            new[s] = min(before) - frame[token]
        cost = new
    return min(cost[-1], cost[-2] if len(states) > 1 else np.inf)
