"""Numerators of transcripts against lists of all phone sequences and of all paths of the denominator."""

import itertools
import math
import random

import numpy as np
import pytest
import torch

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from dataclasses import replace

from murmur.speech.hmm.model import HmmStates
from murmur.speech.hmm.transitions import make_transitions
from murmur.speech.hmm.tree import monophone_tree
from murmur.speech.lexicon.lexicon import SILENCE_ID, make_lang
from murmur.speech.sequence import log_domain
from murmur.speech.sequence.criteria import mmi
from murmur.speech.sequence.denominator import Denominator, PhoneNgrams, phone_hmms
from murmur.speech.sequence.transcripts import PhoneGraph, TranscriptNumerator, drawn_phones, joined
from tests.support.tiny_denominator import dense

# "U V" has the phones B B A twice: B + B A, and B B + A.
LEXICON = [("U", ("B",)), ("U", ("B", "B")), ("V", ("B", "A")), ("V", ("A",)), ("W", ("A", "B"))]


@pytest.fixture(scope="module")
def lang():
    return replace(make_lang(LEXICON), topology="chain")


def sequences(lang, text):
    """All phone sequences of a transcript, by choice of pronunciations and silences."""
    options = []
    for word in text.split():
        prons = [p.phones for p in lang.prons if p.word == word]
        options += [prons, [(), (SILENCE_ID,)]]
    return {tuple(itertools.chain(*choice)) for choice in itertools.product([(), (SILENCE_ID,)], *options)} - {()}


def denominator_of(lang, texts, order=3):
    states = HmmStates(lang, monophone_tree(lang), make_transitions(lang, monophone_tree(lang)).log_probs)
    phones = [list(s) for text in texts for s in sorted(sequences(lang, text))]
    return Denominator.of(PhoneNgrams(order).train(phones), phone_hmms(states), states.tree.num_pdfs)


@pytest.mark.parametrize("text", ["U V", "W", "", "V U W"])
def test_each_phone_sequence_is_one_path_of_the_phone_graph(lang, text):
    graph = PhoneGraph.of(lang, text)
    found, waiting = [], [(0, ())]
    while waiting:
        node, phones = waiting.pop()
        if node in graph.finals and phones:
            found.append(phones)
        waiting += [(target, (*phones, phone)) for phone, target in graph.arcs[node].items()]
    assert sorted(found) == sorted(sequences(lang, text))
    draw = random.Random(1)
    drawn = {tuple(drawn_phones(lang, text, draw)) for _ in range(3000)}
    assert drawn == set(found)


def listed_total(found, wanted, scores_TC):
    """Sum over all paths of the denominator through one utterance alone, whose phones are a `wanted` sequence."""
    step, initial = dense(found.graph), found.graph.initial.double().numpy()
    place_of = np.repeat(np.arange(len(found.places)), np.diff(found.first))
    firsts = set(found.first[:-1].tolist())
    last_phone = {s for s, place in enumerate(place_of) if found.places[place][2] == ()}
    begins = {t for s in last_phone for t in np.flatnonzero(step[s]).tolist() if t in firsts}
    phone_of = [found.places[i][0] for i in place_of]
    pdf, scores = found.graph.pdf.tolist(), scores_TC.tolist()
    paths = [((phone_of[s],), s, initial[s] * math.exp(scores[0][pdf[s]])) for s in begins]
    for row in scores[1:]:
        paths = [
            ((*phones, phone_of[s]) if s in firsts else phones, s, p * step[at, s] * math.exp(row[pdf[s]]))
            for phones, at, p in paths
            for s in np.flatnonzero(step[at]).tolist()
            if not (at in last_phone and s in firsts)
        ]
    return math.log(sum(p for phones, at, p in paths if phones in wanted and at in last_phone))


@pytest.mark.parametrize("frames", [2, 3, 5])
def test_totals_are_sums_over_the_listed_paths_of_the_transcript(lang, frames):
    found = denominator_of(lang, ["U V", "W"])
    numerator = TranscriptNumerator.of(found, PhoneGraph.of(lang, "U V"))
    torch.manual_seed(frames)
    scores = torch.randn(1, frames + 2, 6, dtype=torch.float64)
    total = log_domain.log_total(scores, torch.tensor([frames]), joined([numerator], [frames]))
    assert float(total) == pytest.approx(listed_total(found, sequences(lang, "U V"), scores[0, :frames]), abs=1e-5)


def test_a_batch_has_the_totals_of_its_utterances_and_objectives_that_are_not_positive(lang):
    texts = ["U V", "W", "V U W"]
    found = denominator_of(lang, texts)
    numerators = [TranscriptNumerator.of(found, PhoneGraph.of(lang, text)) for text in texts]
    torch.manual_seed(0)
    lengths, scores = torch.tensor([6, 9, 4]), (5 * torch.randn(3, 9, 6, dtype=torch.float64)).requires_grad_()
    together = log_domain.log_total(scores, lengths, joined(numerators, lengths.tolist()))
    for n, each in enumerate(numerators):
        alone = log_domain.log_total(scores[n : n + 1], lengths[n : n + 1], joined([each], lengths[n : n + 1].tolist()))
        assert float(alone.detach()) == pytest.approx(float(together[n].detach()), rel=1e-9)
    objective = mmi(scores, lengths, joined(numerators, lengths.tolist()), found.graph, 0.1)
    assert (objective < 0).all()
    objective.sum().backward()
    assert scores.grad.abs().sum() > 0.1
    torch.testing.assert_close(scores.grad.sum(2), torch.zeros(3, 9, dtype=torch.float64), atol=1e-6, rtol=0)
    assert (scores.grad[2, 4:] == 0).all()


def test_the_whole_language_has_the_objective_of_its_end(lang):
    """One text in all: only the beginning in a first state and the end after the last phone are beyond chance."""
    found = denominator_of(lang, ["W"], order=6)
    numerator = TranscriptNumerator.of(found, PhoneGraph.of(lang, "W"))
    scores = torch.zeros(1, 4, 6, dtype=torch.float64)
    objective = mmi(scores, torch.tensor([4]), joined([numerator], [4]), found.graph, 1e-12)
    share = listed_total(found, sequences(lang, "W"), scores[0])
    assert float(objective) == pytest.approx(share, abs=1e-5)


def test_a_transcript_outside_the_phone_model_has_no_numerator(lang):
    found = denominator_of(lang, ["W"])
    assert TranscriptNumerator.of(found, PhoneGraph.of(lang, "V V")) is None
    with pytest.raises(KeyError, match="not in the lexicon"):
        PhoneGraph.of(lang, "NONE")


def test_too_few_frames_for_the_phones_are_refused(lang):
    found = denominator_of(lang, ["W"])
    numerator = TranscriptNumerator.of(found, PhoneGraph.of(lang, "W"))
    assert numerator.fewest == 2
    with pytest.raises(ValueError, match="have no path"):
        log_domain.log_total(torch.zeros(1, 1, 6), torch.tensor([1]), joined([numerator], [1]))
