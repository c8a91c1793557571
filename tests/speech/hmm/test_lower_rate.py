"""The chain topology, alignments at a lower frame rate, and graphs that take one frame per phone."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.speech.decoding.decoder import DecodeOptions, Decoder
from murmur.speech.decoding.graph import build_hclg
from murmur.speech.hmm.grow import lower_rate_stats, lower_rate_windows
from murmur.speech.hmm.model import HmmStates
from murmur.speech.hmm.storage import load_states, save_states
from murmur.speech.hmm.topology import num_states, shortest_words
from murmur.speech.hmm.transitions import make_transitions
from murmur.speech.hmm.tree import monophone_tree
from murmur.speech.language_model.grammar import loop_grammar
from murmur.speech.lexicon.lexicon import Lang, make_lang

LEXICON = [("AB", ("A", "B")), ("BA", ("B", "A"))]


@pytest.fixture(scope="module")
def plain():
    return make_lang(LEXICON)


@pytest.fixture(scope="module")
def chain(plain):
    return replace(plain, topology="chain")


def path(transitions, phones, stays):
    """Transition-ids of phones in turn, each state of phone k passed 1 + stays[k] times; silences skip no state."""
    tids = []
    ids = range(1, transitions.num_ids + 1)
    for phone, more in zip(phones, stays, strict=True):
        own = [i for i in ids if transitions.phone_of[i] == phone]
        for state in sorted({int(transitions.state_of[i]) for i in own}):
            here = [i for i in own if transitions.state_of[i] == state]
            loop = next(i for i in here if transitions.arcs.is_self_loop[i])
            tids += [max(i for i in here if not transitions.arcs.is_self_loop[i])] + [loop] * more
    return np.array(tids, np.int32)


def test_every_phone_has_two_states_and_lasts_a_frame(plain, chain):
    assert [num_states(chain, p) for p in (1, 2, 3)] == [2, 2, 2]
    assert [num_states(plain, p) for p in (1, 2, 3)] == [5, 3, 3]
    assert set(shortest_words(chain).values()) == {2}
    assert set(shortest_words(plain).values()) == {6}
    transitions = make_transitions(chain, monophone_tree(chain))
    leads = transitions.library.topo.topology_for_phone(2)
    assert [sorted(leads[s].transitions) for s in (0, 1)] == [[(1, 0.5), (2, 0.5)], [(1, 0.5), (2, 0.5)]]


def test_files_name_the_topology(plain, chain, tmp_path):
    assert Lang.from_json(chain.to_json()) == chain
    assert chain.with_lexicon(LEXICON).topology == "chain"
    tree = monophone_tree(chain)
    save_states(HmmStates(chain, tree, make_transitions(chain, tree).log_probs), tmp_path / "states.npz")
    assert load_states(tmp_path / "states.npz").lang == chain
    with pytest.raises(ValueError, match="unknown topology"):
        Lang.from_json({**chain.to_json(), "topology": "ring"})


@pytest.mark.parametrize("shift", [-1, 0, 1])
@pytest.mark.parametrize("extra", [0, 2, -1])
def test_windows_are_those_of_every_third_frame(plain, shift, extra):
    """Frame by frame: phone, neighbours, and class 0 where the taken frame before has another phone of the path."""
    transitions = make_transitions(plain, monophone_tree(plain))
    phones, stays = [1, 2, 3, 3, 2, 1], [0, 1, 0, 2, 0, 1]
    tids = path(transitions, phones, stays)
    lengths = [(5 if p == 1 else 3) * (1 + more) for p, more in zip(phones, stays, strict=True)]
    owners = np.repeat(np.arange(6), lengths)
    frames = len(tids) + extra
    begin = extra // 2 if extra >= 0 else -(-extra // 2)
    found = lower_rate_windows(transitions, tids, frames, 3, shift)
    assert len(found) == -(-frames // 3)
    padded, before = [0, *phones, 0], None
    for u, (left, phone, right, pdf_class) in enumerate(found.tolist()):
        t = min(max(3 * u + shift, 0), frames - 1)
        k = owners[min(max(t - begin, 0), len(tids) - 1)]
        assert (left, phone, right) == (padded[k], padded[k + 1], padded[k + 2])
        assert pdf_class == (0 if k != before else 1)
        before = k
    assert set(found[:, 1].tolist()) == {1, 2, 3}


def test_statistics_and_pdfs_are_sums_over_the_windows(plain, chain):
    transitions = make_transitions(plain, monophone_tree(plain))
    tids = {"a": path(transitions, [1, 2, 3], [0, 1, 2]), "b": path(transitions, [3, 2], [1, 0])}
    rng = np.random.default_rng(0)
    feats = {name: rng.normal(size=(len(t), 2)).astype(np.float32) for name, t in tids.items()}
    stats = lower_rate_stats(transitions, tids, feats, 3)
    windows = {n: lower_rate_windows(transitions, t, len(t), 3) for n, t in tids.items()}
    for key, count, first, second in zip(stats.keys.tolist(), stats.counts, stats.first, stats.second, strict=True):
        own = [feats[n][3 * u] for n in tids for u, w in enumerate(windows[n].tolist()) if w == key]
        assert len(own) == count
        np.testing.assert_allclose(first, np.sum(own, 0), rtol=1e-5)
        np.testing.assert_allclose(second, np.square(own).sum(0), rtol=1e-5)
    assert stats.counts.sum() == sum(map(len, windows.values()))
    tree = monophone_tree(chain)
    assert tree.pdfs_of(windows["a"]).tolist() == [tree.pdf((p,), c) for _, p, _, c in windows["a"].tolist()]


def test_a_graph_of_the_topology_takes_one_frame_per_phone(chain):
    """Best path of scores that spell A B B A, one frame each; and of a phone that lasts three frames."""
    tree = monophone_tree(chain)
    transitions = make_transitions(chain, tree)
    decoder = Decoder(build_hclg(chain, transitions, loop_grammar(chain)), DecodeOptions(acoustic_scale=1.0))
    labels = {name: label for label, name in enumerate(chain.phones)}

    def scores(*states):
        rows = np.full((len(states), tree.num_pdfs), -20.0, np.float32)
        for row, (phone, state) in zip(rows, states, strict=True):
            row[tree.pdf((labels[phone],), state)] = 0.0
        return rows

    assert decoder.decode(scores(("A", 0), ("B", 0), ("B", 0), ("A", 0))).words == ("AB", "BA")
    long = decoder.decode(scores(("B", 0), ("B", 1), ("B", 1), ("A", 0)))
    assert (long.words, long.complete) == (("BA",), True)
