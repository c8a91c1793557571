import math
import multiprocessing
import os
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.execution.workers import WorkerDied
from murmur.speech.decoding import decoder as decode
from murmur.speech.decoding.decode_set import decode_set
from murmur.speech.decoding.decoder import DecodeOptions, Decoder
from murmur.speech.decoding.graph import build_hclg
from murmur.speech.decoding.graph_store import load_graph, save_graph
from murmur.speech.decoding.tuning import DevelopmentSet, Trial, middle_of_best, tune_acoustic_scale, tune_beam, widened
from murmur.speech.decoding.wer import ErrorRate
from murmur.speech.hmm.transitions import make_transitions
from murmur.speech.hmm.tree import monophone_tree
from murmur.speech.language_model.grammar import ngram_grammar
from murmur.speech.language_model.kneser_ney import KneserNey
from murmur.speech.lexicon.lexicon import make_lang

LEXICON = [("YES", ("y", "s")), ("NO", ("n", "o")), ("SON", ("s", "o", "n"))]
OPTIONS = DecodeOptions(acoustic_scale=1.0, beam=50.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    lang = make_lang(LEXICON)
    transitions = make_transitions(lang, monophone_tree(lang))
    grammar = ngram_grammar(lang, KneserNey(2).train(["YES NO NO", "SON YES", "NO SON SON"]).model)
    path = tmp_path_factory.mktemp("graphs") / "graph"
    save_graph(build_hclg(lang, transitions, grammar), path, "key")
    return path


def random_scores(folder, utterances=12, frames=40, seed=0):
    columns = load_graph(folder).num_columns
    random = np.random.default_rng(seed)
    return {f"u{i:02d}": random.normal(size=(frames + i, columns)).astype(np.float32) * 3 for i in range(utterances)}


@pytest.mark.processes
def test_results_do_not_depend_on_the_number_of_processes(folder):
    scores = random_scores(folder)
    seen = []
    alone = decode_set(folder, scores, OPTIONS, progress=lambda done, known: seen.append((done, known)))
    assert seen == [(done, 0) for done in range(1, 13)]
    together = decode_set(folder, iter(reversed(scores.items())), OPTIONS, jobs=2)
    assert together.texts == alone.texts
    assert list(together.hypotheses) == sorted(scores)
    for name, hypothesis in alone.hypotheses.items():
        assert hypothesis.words == Decoder(load_graph(folder), OPTIONS).decode(scores[name]).words
        assert together.hypotheses[name].cost == hypothesis.cost
        assert together.hypotheses[name].labels.tolist() == hypothesis.labels.tolist()


def test_short_and_empty_utterances_are_named(folder):
    scores = random_scores(folder, utterances=3)
    columns = scores["u00"].shape[1]
    scores["nothing"] = np.zeros((0, columns), np.float32)
    scores["short"] = np.zeros((2, columns), np.float32)
    decoded = decode_set(folder, scores, OPTIONS)
    assert "nothing" in decoded.empty
    assert {"nothing", "short"} <= set(decoded.partial)
    assert set(decoded.texts) == set(scores)
    assert decoded.frames == 40 + 41 + 42 + 2
    assert decoded.real_time_factor() == pytest.approx(decoded.search_seconds / 1.25)
    assert "partial: nothing, short" in decoded.summary()
    assert "5 utterances, 1.2 s of audio" in decoded.summary()


@pytest.mark.processes
@pytest.mark.parametrize("jobs", [1, 2])
def test_wrong_columns_name_the_utterance(folder, jobs):
    scores = random_scores(folder, utterances=3)
    scores["u01"] = scores["u01"][:, 1:]
    with pytest.raises(ValueError, match="utterance u01: scores of shape"):
        decode_set(folder, scores, OPTIONS, jobs)


def test_bad_requests(folder, tmp_path):
    scores = random_scores(folder, utterances=1)
    with pytest.raises(ValueError, match="jobs=0"):
        decode_set(folder, scores, OPTIONS, 0)
    with pytest.raises(FileNotFoundError, match="no decoding graph"):
        decode_set(tmp_path, scores, OPTIONS, 2)
    with pytest.raises(ValueError, match="u00 was given twice"):
        decode_set(folder, [*scores.items(), *scores.items()], OPTIONS)


def die_unless(process):
    if os.getpid() != process:
        os._exit(3)


class Deadly:
    """Scores that end each process that receives them."""

    def __reduce__(self):
        return die_unless, (os.getpid(),)


@pytest.mark.processes
def test_an_utterance_that_ends_every_process_is_named(folder):
    scores = random_scores(folder, utterances=2)
    with pytest.raises(WorkerDied, match="every process died that decoded deadly"):
        decode_set(folder, {**scores, "deadly": Deadly()}, OPTIONS, 2)


@pytest.mark.processes
def test_an_utterance_of_a_killed_process_is_decoded_by_another(folder):
    scores = random_scores(folder, utterances=2)
    others, killed = set(multiprocessing.active_children()), []

    def pairs():
        yield "u00", scores["u00"]
        while not killed:
            time.sleep(0.01)
            killed.extend(set(multiprocessing.active_children()) - others)
        for child in killed:
            child.kill()
        yield "u01", scores["u01"]

    found = decode_set(folder, pairs(), OPTIONS, 2)
    assert found.texts == decode_set(folder, scores, OPTIONS).texts


def informative(folder, utterances, seed):
    """Scores that favour the states of a hypothesis decoded from noise, so that the right result is known."""
    graph = load_graph(folder)
    decoder = Decoder(graph, OPTIONS)
    scores, references = {}, {}
    random = np.random.default_rng(seed)
    for name, noise_TP in random_scores(folder, utterances, 60, seed).items():
        target = decoder.decode(noise_TP)
        pdfs = graph.columns[target.labels - 1]
        matrix = random.normal(size=noise_TP.shape).astype(np.float32) * 3
        matrix[np.arange(len(pdfs)), pdfs] += 6
        scores[name], references[name] = matrix, target.text
    return scores, references


def test_tuning_takes_the_scale_with_the_fewest_errors(folder):
    scores, references = informative(folder, 8, 1)
    best, trials = tune_acoustic_scale(DevelopmentSet(folder, scores, references), [1.0, 0.01, 0.3], OPTIONS)
    assert [trial.options.acoustic_scale for trial in trials] == [0.01, 0.3, 1.0]
    assert best.rate.errors == min(trial.rate.errors for trial in trials) < trials[0].rate.errors
    assert str(best).startswith(f"scale {best.options.acoustic_scale:.4g}, insertion penalty 0, beam 50")


@pytest.mark.parametrize(("errors", "chosen"), [((5, 2, 2, 2, 4), 2), ((0, 0, 0), 1), ((3, 1), 1), ((1, 4, 1), 2)])
def test_the_middle_of_equally_good_scales(errors, chosen):
    trials = [
        Trial(DecodeOptions(acoustic_scale=0.1 * (k + 1)), ErrorRate(10, insertions=e), 0.1)
        for k, e in enumerate(errors)
    ]
    assert middle_of_best(trials) is trials[chosen]


class Valley:
    """Stands for a development set: the errors grow with the distance from the best scale."""

    def __init__(self, best):
        self.best = best

    def trial(self, options):
        distance = abs(math.log(options.acoustic_scale / self.best))
        return Trial(options, ErrorRate(1000, insertions=round(100 * distance)), 0.1)


@given(st.floats(0.01, 1.0), st.integers(3, 6), st.floats(1.1, 2.0))
def test_a_range_is_widened_while_its_best_scale_is_at_an_end(best, scales, factor):
    """Three further scales at most, by the factor at that end; the best of all is never worse than before."""
    valley = Valley(best)
    trials = [valley.trial(replace(OPTIONS, acoustic_scale=0.1 * factor**k)) for k in range(scales)]
    every = widened(valley, trials)
    tried = [trial.options.acoustic_scale for trial in every]
    assert tried == pytest.approx([tried[0] * factor**k for k in range(len(tried))])
    assert [trial for trial in every if trial in trials] == trials
    inside = middle_of_best(every) not in (every[0], every[-1])
    assert inside or len(every) == scales + 3
    if middle_of_best(trials) not in (trials[0], trials[-1]):
        assert every == trials
    if inside:
        assert abs(math.log(middle_of_best(every).options.acoustic_scale / best)) <= math.log(factor) / 2 + 0.01
    assert middle_of_best(every).rate.errors <= middle_of_best(trials).rate.errors


def test_beam_is_the_fastest_within_the_tolerance(folder):
    scores, references = informative(folder, 8, 2)
    development = DevelopmentSet(folder, scores, references)
    settings = [(0.1, 21), (50.0, 7000), (20.0, 7000)]
    best, trials = tune_beam(development, settings, OPTIONS, tolerance_percent=0.2)
    assert [trial.options.beam for trial in trials] == [50.0, 20.0, 0.1]
    within = [t for t in trials if t.rate.percent <= trials[0].rate.percent + 0.2]
    assert best.real_time_factor == min(t.real_time_factor for t in within)
    everything, _ = tune_beam(development, settings, OPTIONS, tolerance_percent=1000.0)
    assert everything.rate.percent >= 0


def test_tuning_needs_settings_and_matching_utterances(folder):
    scores, references = informative(folder, 2, 3)
    development = DevelopmentSet(folder, scores, references)
    with pytest.raises(ValueError, match="no acoustic scales"):
        tune_acoustic_scale(development, [])
    with pytest.raises(ValueError, match="no beams"):
        tune_beam(development, [], OPTIONS, 0.2)
    with pytest.raises(ValueError, match="no hypothesis for 1 utterance"):
        DevelopmentSet(folder, scores, {**references, "more": "YES"})


def test_what_was_decoded_is_kept_and_not_decoded_again(folder, tmp_path):
    """Decoding cut off between two utterances, with an incomplete line; then with other scores."""
    scores = random_scores(folder, utterances=6)
    whole = decode_set(folder, scores, OPTIONS)
    with pytest.raises(KeyboardInterrupt):
        decode_set(folder, scores, OPTIONS, progress=stop_at(4), kept=tmp_path)
    (file,) = tmp_path.iterdir()
    lines = file.read_bytes().splitlines(keepends=True)
    assert len(lines) == 4
    file.write_bytes(b"".join(lines[:3]) + lines[3][:-5])
    file_before = file.read_bytes()[: sum(map(len, lines[:3]))]
    other = random_scores(folder, utterances=6, seed=1)
    changed = {**scores, "u00": other["u00"]}
    for jobs, matrices in ((1, scores), (1, changed)):
        again = decode_set(folder, matrices, OPTIONS, jobs, kept=tmp_path)
        alone = whole if matrices is scores else decode_set(folder, matrices, OPTIONS)
        assert again.texts == alone.texts
        assert again.frames == alone.frames
        for name, hypothesis in again.hypotheses.items():
            assert np.array_equal(hypothesis.labels, alone.hypotheses[name].labels)
            assert hypothesis.cost == alone.hypotheses[name].cost
        assert file.read_bytes().startswith(file_before)
    assert len(file.read_bytes().splitlines()) == 7  # one utterance had other scores
    decode_set(folder, scores, replace(OPTIONS, beam=40.0), kept=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_results_of_an_earlier_start_are_told_apart(folder, tmp_path):
    """A bar leaves them out of its rate."""
    scores = random_scores(folder, utterances=6)
    with pytest.raises(KeyboardInterrupt):
        decode_set(folder, scores, OPTIONS, progress=stop_at(4), kept=tmp_path)
    seen = []
    decode_set(folder, scores, OPTIONS, progress=lambda done, known: seen.append((done, known)), kept=tmp_path)
    assert seen[-1] == (6, 4)
    assert all(done - known in (1, 2) for done, known in seen)


def stop_at(done):
    def progress(count, _known):
        if count == done:
            raise KeyboardInterrupt

    return progress


def test_an_utterance_decoded_in_pieces_is_the_same(folder, monkeypatch):
    scores = random_scores(folder, utterances=3, frames=150)
    found = {}
    for at_once in (1, 7, 10_000):
        monkeypatch.setattr(decode, "FRAMES_AT_ONCE", at_once)
        found[at_once] = decode_set(folder, scores, OPTIONS).hypotheses
    for name, hypothesis in found[10_000].items():
        for at_once in (1, 7):
            assert found[at_once][name].cost == hypothesis.cost
            assert np.array_equal(found[at_once][name].labels, hypothesis.labels)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.processes)])
def test_listed_hypotheses_are_those_of_the_decoder_and_are_kept(folder, tmp_path, jobs):
    scores = random_scores(folder, utterances=4, frames=20)
    scores["nothing"] = np.zeros((0, scores["u00"].shape[1]), np.float32)
    listing = replace(OPTIONS, listed=5, lattice_beam=20.0)
    found = decode_set(folder, scores, listing, jobs=jobs, kept=tmp_path)
    decoder = Decoder(load_graph(folder), listing)
    for name, listed in found.lists.items():
        wanted = decoder.nbest(scores[name], 5) or [decoder.decode(scores[name])]
        assert [h.words for h in listed] == [h.words for h in wanted]
        assert len(listed) == (1 if name == "nothing" else 5)
        assert found.hypotheses[name] is listed[0]
    again = decode_set(folder, scores, listing, kept=tmp_path)
    # Read, not searched; sums of several processes have other last digits.
    assert again.search_seconds == pytest.approx(found.search_seconds, rel=1e-9)
    for name, listed in again.lists.items():
        for one, other in zip(listed, found.lists[name], strict=True):
            assert (one.words, one.cost, one.complete) == (other.words, other.cost, other.complete)
            assert one.labels.tolist() == other.labels.tolist()
    with pytest.raises(ValueError, match="at least 1 hypothesis"):
        replace(OPTIONS, listed=0)
