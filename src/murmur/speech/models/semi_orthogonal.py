"""Linear maps whose matrix has orthonormal rows, by a parametrisation: M = (V V^T)^(-1/2) V for trainable V.

M is the semi-orthogonal matrix nearest to V, M M^T = I. Any V of full rank is allowed, so that M satisfies the
constraint after each step of any optimizer and after any mean of the vectors V of several learners; the M of a mean of
V is the projection of that mean. The iteration has a fixed number of rounds: M M^T is I to 1e-5 while the smallest
singular value of V is at least a 25th of the bound, to 1 % at a condition of 100, and to a third at 1,000. In training
the condition of V has stayed below 1.2. Povey et al. (2018) take a step towards the constraint after every few steps of
the optimizer,

    M <- M - (1 / 2 a^2) (M M^T - a^2 I) M

which is one Newton-Schulz step towards the nearest semi-orthogonal matrix of scale a. The iteration here runs to its
end within the forward pass, and gradients pass through it. The scale is a = 1: the affine map above learns the scale.

M does not change with the scale of V. The gradient is orthogonal to V, so that steps make V longer and later steps
smaller in effect, as for other normalised weights; weight decay on V acts on that effect alone.

Shapes: B rows, D >= B columns.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

ROUNDS = 14  # of the iteration; singular values of V down to a 25th of their bound come within 1e-5 of 1


class SemiOrthogonal(nn.Module):
    """The map y = M x with orthonormal rows, without bias.

    Attributes:
        weight: V (B, D), orthonormal at first.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        if outputs > inputs:
            raise ValueError(f"{outputs} rows of {inputs} values cannot be orthonormal: make the bottleneck smaller")
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        nn.init.orthogonal_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """M x."""
        return functional.linear(x, orthonormal_rows(self.weight))


def orthonormal_rows(weight_BD: Tensor) -> Tensor:
    """(V V^T)^(-1/2) V, computed in the precision of V.

    The coupled Newton-Schulz iteration for A = V V^T / c, with c a bound of the eigenvalues of V V^T:

        T_k = (3 I - Z_k Y_k) / 2     Y_k+1 = Y_k T_k     Z_k+1 = T_k Z_k     Y_0 = A, Z_0 = I, Z -> A^(-1/2)
    """
    with torch.autocast(weight_BD.device.type, enabled=False):
        gram_BB = weight_BD @ weight_BD.transpose(0, 1)
        bound = gram_BB.detach().abs().sum(1).amax()  # a constant: the limit does not depend on it
        eye_BB = torch.eye(gram_BB.shape[0], dtype=gram_BB.dtype, device=gram_BB.device)
        root_BB, inverse_BB = gram_BB / bound, eye_BB
        for _ in range(ROUNDS):
            step_BB = 1.5 * eye_BB - 0.5 * inverse_BB @ root_BB
            root_BB, inverse_BB = root_BB @ step_BB, step_BB @ inverse_BB
        return inverse_BB @ weight_BD / bound.sqrt()
