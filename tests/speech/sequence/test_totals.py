"""Sums over all paths and their gradients: enumeration, both domains, derivatives, padding."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from murmur.speech.sequence import log_domain, probability_domain
from murmur.speech.sequence.criteria import RANGE, mmi
from murmur.speech.sequence.denominator import Denominator, PhoneHmm, PhoneNgrams
from murmur.speech.sequence.numerators import NEVER, Aligned, NumeratorBuilder, Numerators
from murmur.speech.sequence.state_graph import StateGraph
from tests.support.tiny_denominator import PDFS, denominator, dense, numerator_paths, path_sum, paths_of

DEN = denominator()
WORDS = ([1, 2, 2, 1], [0, 2, 4, 5, 7])  # phones and their first frames; 7 frames
CHUNKS = ((0, 4), (2, 6), (3, 7))


def drawn(*shape: int, seed: int = 0, kind: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=kind, generator=torch.Generator().manual_seed(seed))


def chunks(d: int, leak: float = 0.01, parts=CHUNKS) -> Numerators:
    aligned = Aligned.of(DEN, *WORDS)
    return NumeratorBuilder(DEN, d, leak).batch([(aligned, first, last) for first, last in parts])


def whole(graph: StateGraph, count: int) -> Numerators:
    """The whole graph as a numerator, for the log domain."""
    step, S = dense(graph), graph.states

    def table(matrix: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        columns = np.concatenate([np.where(matrix > 0, np.arange(S) + n * S, count * S) for n in range(count)])
        logs = np.log(matrix, where=matrix > 0, out=np.full(matrix.shape, NEVER))
        return torch.from_numpy(columns), torch.from_numpy(np.tile(logs, (count, 1)))

    def each(row: torch.Tensor) -> torch.Tensor:
        return row[None].expand(count, -1)

    frames = torch.tensor([0, 1000])
    return Numerators(
        each(graph.pdf),
        each(graph.initial.double().log()),
        frames[0].expand(count, S),
        frames[1].expand(count, S),
        *table(step.T),
        *table(step),
    )


@pytest.mark.parametrize("leak", [0.0, 0.1])
def test_the_denominator_is_the_sum_over_all_paths(leak: float) -> None:
    scores = 2 * drawn(1, 4, PDFS)
    wanted, gamma = path_sum(paths_of(DEN.graph, 4, leak), DEN.graph.pdf, scores[0])
    total, found = probability_domain.occupancies(scores, torch.tensor([4]), DEN.graph, leak)
    assert float(total) == pytest.approx(wanted, abs=1e-6)
    assert np.abs(found[0].numpy() - gamma).max() < 1e-6


@pytest.mark.parametrize("d", [0, 1, 2])
def test_a_numerator_is_the_sum_over_its_paths_and_these_are_paths_of_the_denominator(d: int) -> None:
    scores = 2 * drawn(len(CHUNKS), 4, PDFS, seed=d)
    totals, gammas = log_domain.occupancies(scores, torch.full((3,), 4), chunks(d))
    aligned, everything = Aligned.of(DEN, *WORDS), dict(paths_of(DEN.graph, 4, 0.0))
    for n, (first, last) in enumerate(CHUNKS):
        paths = numerator_paths(DEN, aligned, first, last, d)
        assert all(everything[path] == pytest.approx(p, rel=1e-6) for path, p in paths.items())
        wanted, gamma = path_sum(iter(paths.items()), DEN.graph.pdf, scores[n])
        assert float(totals[n]) == pytest.approx(wanted, abs=1e-5)
        assert np.abs(gammas[n].numpy() - gamma).max() < 1e-5


@pytest.mark.parametrize("d", [0, 1, 2, 5])
def test_a_tolerance_leaves_out_no_phone_at_the_ends(d: int) -> None:
    """An utterance with one frame per phone has one alignment, whatever the tolerance."""
    aligned, scores = Aligned.of(DEN, WORDS[0], range(5)), drawn(1, 4, PDFS)
    sets = [range(int(DEN.first[place]), int(DEN.first[place + 1])) for place in aligned.places]
    paths = (path for path in itertools.product(*sets))
    step, initial = dense(DEN.graph), DEN.graph.initial.tolist()
    listed = [(q, initial[q[0]] * math.prod(step[a, b] for a, b in itertools.pairwise(q))) for q in paths]
    wanted, _ = path_sum(iter(listed), DEN.graph.pdf, scores[0])
    (total,) = log_domain.log_total(scores, torch.tensor([4]), NumeratorBuilder(DEN, d, 0.01).batch([(aligned, 0, 4)]))
    assert float(total) == pytest.approx(wanted, abs=1e-5)


def test_the_tolerance_lets_limits_move() -> None:
    lengths = torch.full((3,), 4)
    found = [log_domain.occupancies(torch.zeros(3, 4, PDFS), lengths, chunks(d))[0] for d in (0, 1, 2)]
    assert (found[1] > found[0]).all()
    assert (found[2] > found[1]).all()


def test_both_domains_agree() -> None:
    scores, lengths = 3 * drawn(3, 9, PDFS), torch.tensor([9, 1, 6])
    totals, gammas = probability_domain.occupancies(scores, lengths, DEN.graph, 0.0)
    log_totals, log_gammas = log_domain.occupancies(scores, lengths, whole(DEN.graph, 3))
    assert torch.allclose(totals, log_totals, atol=1e-9)
    assert torch.allclose(gammas, log_gammas, atol=1e-9)


def test_sequences_of_a_batch_do_not_meet() -> None:
    scores, lengths = 2 * drawn(3, 4, PDFS), torch.tensor([4, 3, 2])
    parts = [(first, first + int(length)) for (first, _), length in zip(CHUNKS, lengths, strict=True)]
    together = mmi(scores, lengths, chunks(1, parts=parts), DEN.graph, 0.01)
    scores[1, 3:] = scores[2, 2:] = math.pi  # padding is not read
    for n, part in enumerate(parts):
        alone = mmi(scores[n : n + 1, : lengths[n]], lengths[n : n + 1], chunks(1, parts=[part]), DEN.graph, 0.01)
        assert float(together[n]) == pytest.approx(float(alone), abs=1e-9)


def test_gradients_are_the_derivatives() -> None:
    lengths, numerators = torch.tensor([4, 3, 4]), chunks(1)
    scores = drawn(3, 4, PDFS).requires_grad_()
    weights = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)

    def objective(x: torch.Tensor) -> torch.Tensor:
        return (mmi(x, lengths, numerators, DEN.graph, 0.05) * weights).sum()

    assert torch.autograd.gradcheck(objective, (scores,), eps=1e-6, atol=1e-7)
    assert torch.autograd.gradcheck(
        lambda x: probability_domain.log_total(x, lengths, DEN.graph, 0.05), (scores,), eps=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_objective_is_not_positive_and_its_gradient_sums_to_zero(seed: int) -> None:
    scores, lengths = (8 * drawn(3, 4, PDFS, seed=seed)).requires_grad_(), torch.tensor([4, 4, 2])
    found = mmi(scores, lengths, chunks(1), DEN.graph, 1e-5)
    assert (found <= 1e-9).all()
    found.sum().backward()
    assert scores.grad is not None
    assert float(scores.grad.abs().max()) > 1e-3
    assert float(scores.grad.sum(-1).abs().max()) < 1e-9
    assert not scores.grad[2, 2:].any()


def test_a_constant_of_a_frame_changes_nothing() -> None:
    scores, lengths = drawn(3, 4, PDFS), torch.full((3,), 4)
    shifted = scores + 100 * drawn(3, 4, 1, seed=1)
    found, gradients = [], []
    for x in (scores.requires_grad_(), shifted.detach().requires_grad_()):
        found.append(mmi(x, lengths, chunks(1), DEN.graph, 1e-5))
        gradients += torch.autograd.grad(found[-1].sum(), x)
    assert torch.allclose(*found, atol=1e-9)
    assert torch.allclose(*gradients, atol=1e-9)
    assert float(gradients[0].abs().max()) > 0.1


def test_scores_are_cut() -> None:
    scores, lengths = torch.zeros(3, 4, PDFS), torch.full((3,), 4)
    scores[0, 1, 2], scores[1, 0, 1] = 1e6, -1e6
    cut = scores.clone()
    cut[0, 1, 2], cut[1, 0, 1] = RANGE, -RANGE
    scores.requires_grad_()
    found = mmi(scores, lengths, chunks(1), DEN.graph, 1e-5)
    assert torch.allclose(found, mmi(cut, lengths, chunks(1), DEN.graph, 1e-5), rtol=1e-5)
    found.sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    others = [pdf for pdf in range(PDFS) if pdf != 2]
    assert not scores.grad[0, 1, others].any()
    assert scores.grad[1, 0, 1] == 0


def test_long_sequences_in_single_precision_do_not_underflow() -> None:
    scores = 25 * drawn(2, 400, PDFS)
    lengths = torch.tensor([400, 350])
    exact, gamma = log_domain.occupancies(scores, lengths, whole(DEN.graph, 2))
    single, found = probability_domain.occupancies(scores.float(), lengths, DEN.graph, 0.0)
    assert torch.allclose(single.double(), exact, rtol=1e-6)
    assert float((found.double() - gamma).abs().max()) < 1e-3


def test_occupancies_of_a_long_numerator_in_single_precision_sum_to_one() -> None:
    """Half a minute of speech, whose log probabilities are thousands."""
    frames = 3000
    aligned = Aligned.of(DEN, [1, 2] * (frames // 20), range(0, frames + 1, 10))
    numerators = NumeratorBuilder(DEN, 3, 0.01).batch([(aligned, 0, frames)])
    scores, lengths = 4 * drawn(1, frames, PDFS) + 20, torch.tensor([frames])
    exact = log_domain.occupancies(scores, lengths, numerators)[1]
    found = log_domain.occupancies(scores.float(), lengths, numerators)[1]
    assert float((found.sum(-1) - 1).abs().max()) < 1e-5
    assert float((found - exact).abs().max()) < 1e-4


def test_values_without_gradients_are_the_same() -> None:
    scores, lengths = 2 * drawn(3, 4, PDFS), torch.tensor([4, 3, 2])
    parts = [(first, first + int(length)) for (first, _), length in zip(CHUNKS, lengths, strict=True)]
    alone = mmi(scores, lengths, chunks(1, parts=parts), DEN.graph, 0.01)
    assert not alone.requires_grad
    assert torch.allclose(mmi(scores.requires_grad_(), lengths, chunks(1, parts=parts), DEN.graph, 0.01), alone)


def test_an_alignment_without_room_for_its_states_is_named() -> None:
    aligned = Aligned.of(DEN, [1, 2, 1], [0, 1, 1, 2])  # no frame for phone 2
    numerators = NumeratorBuilder(DEN, 0, 0.01).batch([(Aligned.of(DEN, *WORDS), 0, 2), (aligned, 0, 2)])
    with pytest.raises(ValueError, match=r"\[1\].*larger tolerance"):
        log_domain.occupancies(torch.zeros(2, 2, PDFS), torch.tensor([2, 2]), numerators)


def left_to_right(states: int) -> Denominator:
    """Phones of as many states in a row, each passed through for one frame at least."""
    inner = [arc for s in range(states) for arc in ((s, s, 0.5), (s, s + 1, 0.5))][:-1]

    def hmm_of(left: int, phone: int, right: int) -> PhoneHmm:
        return PhoneHmm(tuple(range(states)), tuple(inner), ((states - 1, 0.5),))

    return Denominator.of(PhoneNgrams(3).train([[1, 2, 1, 2]]), hmm_of, states)


@pytest.mark.parametrize("states", [1, 3])
@pytest.mark.parametrize("tolerance", [0, 1, 3])
def test_an_utterance_has_a_path_if_its_phones_have_room(states: int, tolerance: int) -> None:
    """Against all divisions of the frames; then every chunk has a total."""
    den, rng, found = left_to_right(states), np.random.default_rng(0), []
    for _ in range(40):
        starts = np.cumsum([0, *rng.integers(1, 6, size=4)])
        aligned = Aligned.of(den, [1, 2, 1, 2], starts.tolist()).stretched(int(rng.integers(4, 18)))
        frames = int(aligned.starts[-1])
        soonest, latest = (limits.tolist() for limits in aligned.limits(tolerance))
        wanted = any(
            all(
                begin >= soonest[k] and end <= latest[k] and end - begin >= states
                for k, (begin, end) in enumerate(itertools.pairwise((0, *inside, frames)))
            )
            for inside in itertools.combinations(range(1, frames), 3)
        )
        builder = NumeratorBuilder(den, tolerance, 0.01)
        found.append(builder.has_path(aligned))
        assert found[-1] == wanted
        cuts = [(aligned, first, last) for first in range(frames) for last in range(first + 1, frames + 1)]
        if wanted:
            lengths = torch.tensor([last - first for _, first, last in cuts])
            scores = torch.zeros(len(cuts), frames, states)
            assert log_domain.log_total(scores, lengths, builder.batch(cuts)).isfinite().all()
    assert True in found
    assert False in found or states == 1


def test_an_arc_that_the_graph_lacks_is_the_leak() -> None:
    aligned = Aligned.of(DEN, [2, 2, 2, 1], [0, 1, 2, 3, 4])
    assert (aligned.arcs == 0).any()
    leak, scores = 0.01, drawn(1, 4, PDFS)
    (total,) = log_domain.log_total(scores, torch.tensor([4]), NumeratorBuilder(DEN, 0, leak).batch([(aligned, 0, 4)]))
    assert NEVER / 2 < float(total) < float(probability_domain.log_total(scores, torch.tensor([4]), DEN.graph, leak))


def test_alignments_follow_the_length_of_the_audio() -> None:
    from murmur.speech.features.chunks import at_speed, fit_targets

    aligned = Aligned.of(DEN, *WORDS)
    labels = np.repeat(np.arange(4), np.diff(aligned.starts))

    def spread(of: Aligned) -> list[int]:
        return np.repeat(np.arange(4), np.diff(of.starts)).tolist()

    assert spread(aligned) == labels.tolist()
    for frames in (6, 7, 8, 10, 15):
        assert spread(aligned.stretched(frames)) == at_speed(labels, frames).tolist()
    for total in range(1, 50):
        each = Aligned(np.zeros(total, np.int32), np.zeros(total - 1), np.arange(total + 1, dtype=np.int32))
        for frames in range(total, 100):
            starts = np.searchsorted(at_speed(np.arange(total), frames), np.arange(total))
            assert np.array_equal(each.stretched(frames).starts[:-1], starts)
    for frames in (5, 6, 7, 8, 9, 10):
        assert spread(aligned.fitted(frames)) == fit_targets(labels, frames).tolist()
