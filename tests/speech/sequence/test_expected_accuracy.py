"""Expected accuracy of states: enumeration, derivatives, bounds, padding."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from murmur.speech.sequence.criteria import accuracies, expected_accuracy, smbr
from tests.support.tiny_denominator import PDFS, denominator, paths_of

GRAPH = denominator().graph
REFERENCES = torch.tensor([[1, 2, 2, 3], [0, 0, 2, 4]])


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("leak", [0.0, 0.1])
def test_it_is_the_mean_over_all_paths(leak: float) -> None:
    scores, pdfs = 2 * drawn(2, 4, PDFS), GRAPH.pdf.tolist()
    found, gradient = accuracies(scores, REFERENCES, torch.tensor([4, 4]), GRAPH, leak)
    assert torch.allclose(expected_accuracy(scores, REFERENCES, torch.tensor([4, 4]), GRAPH, leak), found)
    for n, (rows, references) in enumerate(zip(scores.tolist(), REFERENCES.tolist(), strict=True)):
        mass = right = 0.0
        by_pdf, both = np.zeros((4, PDFS)), np.zeros((4, PDFS))
        for path, weight in paths_of(GRAPH, 4, leak):
            p = weight * math.exp(sum(row[pdfs[s]] for row, s in zip(rows, path, strict=True)))
            correct = sum(pdfs[s] == reference for s, reference in zip(path, references, strict=True))
            mass, right = mass + p, right + p * correct
            for t, s in enumerate(path):
                by_pdf[t, pdfs[s]] += p
                both[t, pdfs[s]] += p * correct
        assert float(found[n]) == pytest.approx(right / mass, rel=1e-6)
        wanted = both / mass - by_pdf / mass * right / mass
        assert np.abs(gradient[n].numpy() - wanted).max() < 1e-6


def test_gradients_are_the_derivatives_and_sum_to_zero() -> None:
    scores, lengths = drawn(2, 4, PDFS).requires_grad_(), torch.tensor([3, 4])
    assert torch.autograd.gradcheck(
        lambda x: expected_accuracy(x, REFERENCES, lengths, GRAPH, 0.05), (scores,), eps=1e-6, atol=1e-7
    )
    smbr(scores, REFERENCES, lengths, GRAPH, 0.05).sum().backward()
    assert scores.grad is not None
    assert float(scores.grad.abs().max()) > 1e-3
    assert float(scores.grad.sum(-1).abs().max()) < 1e-9
    assert not scores.grad[0, 3:].any()


def test_certain_scores_make_every_frame_right() -> None:
    references = GRAPH.pdf[torch.tensor([[0, 0, 0, 0]])]  # a state that may stay
    scores = torch.full((1, 4, PDFS), -30.0).scatter_(2, references[..., None], 30.0)
    lengths = torch.tensor([4])
    assert float(smbr(scores, references, lengths, GRAPH, 1e-5)) == pytest.approx(4.0, abs=1e-4)
    wrong = (references + 1) % PDFS
    assert float(smbr(scores, wrong, lengths, GRAPH, 1e-5)) < 1e-3


def test_sequences_of_a_batch_do_not_meet() -> None:
    scores, lengths = 2 * drawn(2, 4, PDFS), torch.tensor([4, 2])
    together = smbr(scores, REFERENCES, lengths, GRAPH, 0.01)
    scores[1, 2:] = math.pi  # padding is not read
    alone = smbr(scores[1:, :2], REFERENCES[1:, :2], lengths[1:], GRAPH, 0.01)
    assert float(together[1]) == pytest.approx(float(alone), abs=1e-9)
