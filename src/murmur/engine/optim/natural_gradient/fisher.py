"""Online low-rank-plus-identity estimate of a Fisher matrix, of one side of one affine layer, and its use.

    F_t = R_t' D_t R_t + rho_t I                             R_t: r x D, orthonormal rows; D_t = diag(d_t)
    G_t = F_t + (alpha / D) tr(F_t) I,   X^ = beta_t X G_t^-1 = X - X W_t' W_t,   gamma_t = sqrt(tr X X' / tr X^ X^')
    beta_t = rho_t (1 + alpha) + (alpha / D) tr D_t,   E_t = diag(1 / (beta_t / d_ti + 1)),   W_t = E_t^1/2 R_t

Each update is one step of the power iteration on T_t = eta (1/N) X'X + (1 - eta) F_t, as a function of H = X W_t',
J = H'X, K = J J' and L = H'H. Povey, Zhang and Khudanpur, "Parallel training of DNNs with natural gradient and
parameter averaging", arXiv 1410.7455, appendix A; the constants are those of Kaldi's nnet3.

Affine maps precondition their weight gradients in the backward pass:

    y = W x + b,   dW = sum_n dy_n [x_n, 1]'   ->   gamma_o gamma_i (I - Wo'Wo) dW (I - Wi'Wi)

Wi, Wo: the factors of inputs (a one appended for the bias) and of output derivatives. X^ is linear in X, so that
preconditioning the sum is preconditioning every frame. Few frames are preconditioned themselves, which is cheaper.

Shapes: N rows (frames), D values a row, r rank, I inputs, O outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from murmur.core.flat import is_finite
from murmur.core.torch_private import DisableTorchFunction

EPSILON, DELTA = 1e-10, 5e-4  # smallest rho and d: absolute, and relative to the largest eigenvalue
MOST_ETA = 0.9
CONDITION = 1e6  # condition of C above which the rows of R are made orthonormal again
ORTHONORMAL_WITHIN = 1e-3
FIRST_UPDATES = 10  # initial calls that all update
INPUTS, OUTPUTS = "in", "out"  # names of the sides in the state
SIDES = (f"{INPUTS}.", f"{OUTPUTS}.")
Gradients = list[Tensor]  # (O, D_b) for each block of columns of X, a last one (O, 1) for the bias


@dataclass(frozen=True)
class FisherConfig:
    """Settings of the estimates for both sides of every layer; the defaults are Kaldi's.

    Attributes:
        alpha: Smoothing with the identity; larger values are closer to plain gradients.
        history_samples: Frames of memory of the estimate; eta = 1 - exp(-N / history_samples), at most 0.9.
        update_period: Every n-th minibatch updates the estimate.
        rank_in, rank_out: Ranks of the sides of inputs and output derivatives, at most half their size.
    """

    alpha: float = 4.0
    history_samples: float = 2000.0
    update_period: int = 4
    rank_in: int = 20
    rank_out: int = 80

    def __post_init__(self) -> None:
        if not (self.alpha > 0 and self.history_samples > 0):
            raise ValueError(f"natural gradient needs alpha > 0 and history_samples > 0, got {self}")
        if min(self.update_period, self.rank_in, self.rank_out) < 1:
            raise ValueError(f"natural gradient needs update_period, rank_in and rank_out of at least 1, got {self}")


@dataclass(frozen=True)
class SampleRows:
    """Matrix X (N, D) in column blocks, optionally with a column of ones, all times `scale`; never concatenated."""

    blocks: tuple[Tensor, ...]
    ones: bool = False
    scale: float = 1.0

    @property
    def count(self) -> int:
        return self.blocks[0].shape[0]

    @property
    def dims(self) -> int:
        return sum(block.shape[1] for block in self.blocks) + int(self.ones)

    def trace(self) -> Tensor:
        squares = [torch.linalg.vector_norm(b, dtype=_wide(b)).square() for b in self.blocks]
        total = torch.stack(squares).sum()
        return (total + self.count if self.ones else total) * self.scale**2

    def times(self, W: Tensor) -> Tensor:
        """X W' (N, r) for W (r, D), in the precision of the blocks."""
        H = W.new_zeros(()) if not self.ones else W[:, -1] * self.scale
        for block, part in zip(self.blocks, self._parts(W), strict=True):
            H = torch.addmm(H.to(block.dtype), block, part.to(block.dtype).t(), alpha=self.scale)
        return H

    def onto(self, H: Tensor) -> Tensor:
        """H' X (r, D) for H (N, r)."""
        pieces = [(H.t() @ block).mul_(self.scale) for block in self.blocks]
        return torch.cat([*pieces, H.sum(0)[:, None] * self.scale] if self.ones else pieces, dim=1)

    @property
    def is_wide(self) -> bool:
        return all(block.dtype == _wide(block) for block in self.blocks)

    def without(self, H: Tensor, W: Tensor) -> SampleRows:
        """(X - H W) / scale for H (N, r) and W (r, D); what was the column of ones is the last block."""
        step = -1 / self.scale
        parts = zip(self.blocks, self._parts(W), strict=True)
        pieces = [torch.addmm(block, H, part, alpha=step) for block, part in parts]
        return SampleRows((*pieces, 1 + (H @ W[:, -1:]) * step) if self.ones else tuple(pieces))

    def _parts(self, W: Tensor) -> list[Tensor]:
        sizes = [block.shape[1] for block in self.blocks]
        return list(torch.split(W[:, : sum(sizes)], sizes, dim=1))

    def wide(self) -> SampleRows:
        return SampleRows(tuple(block.to(_wide(block)) for block in self.blocks), self.ones, self.scale)


class Factor(NamedTuple):
    """The factor W_t (r, D) of some rows before them, gamma_t, and H = X W_t' (N, r): X^ = gamma (X - H W).

    It is without a row if D is 1, for such a side is not preconditioned.
    """

    W: Tensor
    gamma: Tensor
    H: Tensor


def _wide(x: Tensor) -> torch.dtype:
    return x.dtype if x.dtype == torch.float64 else torch.float32


class OnlineFisher:
    """Estimate F_t of one side; its state is in a mapping that its user (an optimizer) holds.

    The state is `W` (r, D), `d` (r,) and the numbers `rho` and `t`, under names that begin with `side`. Updates replace
    these values and never change them in place.
    """

    def __init__(self, state: MutableMapping[str, Any], side: str, rank: int, config: FisherConfig) -> None:
        self._state, self._side, self._rank, self.config = state, side, rank, config

    def observe(self, X: SampleRows) -> Factor:
        """The factor for these rows; they then update the estimate if it is due.

        Rows that are not finite begin and update no estimate; gamma is nan.
        """
        rank = min(self._rank, (X.dims + 1) // 2, X.dims - 1)
        trace = X.trace()
        begun = f"{self._side}.W" in self._state
        if rank == 0 or not (begun or math.isfinite(trace)):
            W = X.blocks[0].new_zeros((0, X.dims), dtype=_wide(X.blocks[0]))
            return Factor(W, 1 + 0 * trace, W.new_zeros((X.count, 0)))
        if not begun:
            self._begin(X, rank, trace)
        W, t = self._state[f"{self._side}.W"], self._state[f"{self._side}.t"]
        if t <= FIRST_UPDATES or t % self.config.update_period == 0:
            X = X.wide()
            H = X.times(W)
            gamma = self._gamma(trace, H)
            self._update(X, H, trace)
        else:
            H = X.times(W).to(W.dtype)
            gamma = self._gamma(trace, H)
        self._state[f"{self._side}.t"] = t + 1
        return Factor(W, gamma, H)

    def _begin(self, X: SampleRows, rank: int, trace: Tensor) -> None:
        """Start from a fixed orthonormal R, then update three times with the first rows (once if they are few)."""
        device, dtype = X.blocks[0].device, _wide(X.blocks[0])
        share = 1.0 / (2.0 + (X.dims + rank) * self.config.alpha / X.dims)
        W = orthonormal_rows(rank, X.dims).mul_(math.sqrt(share)).to(device, dtype)
        self._keep(W, W.new_full((rank,), EPSILON), EPSILON)
        self._state[f"{self._side}.t"] = 1
        X = X.wide()
        for _ in range(1 if X.count <= rank else 3):
            self._update(X, X.times(self._state[f"{self._side}.W"]), trace)

    def _keep(self, W: Tensor, d: Tensor, rho: float) -> None:
        # New tensors each time: callers may still use W_t.
        self._state.update({f"{self._side}.W": W, f"{self._side}.d": d, f"{self._side}.rho": rho})

    def _gamma(self, trace: Tensor, H: Tensor) -> Tensor:
        """tr X^X^' = tr XX' - 2 tr L + tr L W W', and W W' = E_t as R has orthonormal rows."""
        d, rho = self._state[f"{self._side}.d"], self._state[f"{self._side}.rho"]
        E = shares(d, rho, self.config.alpha, self._state[f"{self._side}.W"].shape[1])
        squares = H.square().sum(0)  # a fifth of the time of norms along columns
        left = trace - (squares * (2 - E)).sum()
        # Nan stays nan: it marks the gradient of rows that are not finite.
        return torch.where(left <= 0, 1.0, trace / left.clamp_min(torch.finfo(left.dtype).tiny)).sqrt()

    def _update(self, X: SampleRows, H: Tensor, trace: Tensor) -> None:
        W, d, rho = (self._state[f"{self._side}.{name}"] for name in ("W", "d", "rho"))
        rank, D = W.shape
        eta = min(MOST_ETA, -math.expm1(-X.count / self.config.history_samples))
        old, weight = 1 - eta, eta / X.count
        J = X.onto(H)
        K, L = ((m @ m.t()).cpu().double() for m in (J, H.t()))
        d64 = d.cpu().double()
        E = shares(d64, rho, self.config.alpha, D)
        Z, total = _z(K, L, d64 + rho, E, (weight, old)), float(trace)
        if not (math.isfinite(total) and is_finite(Z)):  # Z of finite rows may overflow too
            return
        C, U, well = eigen(Z, (rho * old) ** 2)
        roots = C.sqrt()
        new_rho = (weight * total + old * (D * rho + float(d64.sum())) - float(roots.sum())) / (D - rank)
        floor = max(EPSILON, DELTA * float(roots.max()))
        new_d = (roots - new_rho).clamp_min(floor)
        new_rho = max(new_rho, floor)
        new_E = shares(new_d, new_rho, self.config.alpha, D)
        A = weight * (new_E.sqrt() / roots)[:, None] * U.t() / E.sqrt()
        B = J.addcmul_(((old / weight) * (d64 + rho))[:, None].to(W), W)
        new_W = A.to(W) @ B
        if not well:
            new_W = orthonormalised(new_W, new_E)
        self._keep(new_W, new_d.to(d), new_rho)


def shares(d: Tensor, rho: float, alpha: float, D: int) -> Tensor:
    beta = rho * (1 + alpha) + alpha / D * d.sum()
    return d / (beta + d)


def _z(K: Tensor, L: Tensor, f: Tensor, E: Tensor, weights: tuple[float, float]) -> Tensor:
    """Z_t = Y Y', the square of the projected T_t; f = d + rho, weights = (eta / N, 1 - eta)."""
    weight, old = weights
    inverse = E.rsqrt()
    middle = inverse[:, None] * L * inverse
    cross = middle * f
    return weight**2 * inverse[:, None] * K * inverse + weight * old * (cross + cross.t()) + (old * f).square().diag()


def eigen(Z: Tensor, floor: float) -> tuple[Tensor, Tensor, bool]:
    """Decompose Z = U diag(C) U', C falling and at least `floor`; also True if R stays orthonormal."""
    scale = max(1.0, float(Z.trace()))
    values, vectors = torch.linalg.eigh(Z / scale)
    C, U = values.flip(0) * scale, vectors.flip(1)
    well = bool(C[0] <= CONDITION * C[-1]) and float(C[-1]) >= floor
    return C.clamp_min(floor), U, well


def orthonormal_rows(rank: int, D: int) -> Tensor:
    """Return R_0 (r, D) in float64: row i is non-zero at i, i + r, i + 2r, ..., the first of them slightly larger."""
    R = torch.zeros(rank, D, dtype=torch.float64)
    for row in range(rank):
        R[row, row::rank] = 1.0
        R[row, row] = 1.1
    return functional.normalize(R)


def orthonormalised(W: Tensor, E: Tensor) -> Tensor:
    """Return W = E^1/2 R after making the rows of R orthonormal, if they are not."""
    R = W.double() / E.sqrt().to(W.device)[:, None]
    product = R @ R.t()
    unit = torch.eye(len(product), dtype=product.dtype, device=product.device)
    if float((product - unit).abs().max()) <= ORTHONORMAL_WITHIN:
        return W
    factor, failed = torch.linalg.cholesky_ex(product)
    if int(failed) == 0 and float(factor.diagonal().min()) > 1e-2:
        R = torch.linalg.solve_triangular(factor, R, upper=False)
    else:  # nearly dependent rows
        Q: Tensor = torch.linalg.qr(R.t()).Q
        R = Q.t()
    return (R * E.sqrt().to(R.device)[:, None]).to(W)


class TwoSides:
    """Fisher estimates of both sides of one weight matrix.

    Output derivatives are multiplied by `samples()` before they are estimated, so that they belong to the sum of the
    losses of a minibatch, not to the mean: minibatches of different sizes must agree.
    """

    def __init__(self, state: MutableMapping[str, Any], config: FisherConfig, samples: Callable[[], float]) -> None:
        self.inputs = OnlineFisher(state, INPUTS, config.rank_in, config)
        self.outputs = OnlineFisher(state, OUTPUTS, config.rank_out, config)
        self.samples = samples

    def gradient(self, X: SampleRows, dY: Tensor) -> Gradients:
        """gamma (I - Wo'Wo) dY' X (I - Wi'Wi) in the blocks of X.

        A factor of rank r is applied to N rows of D values in 2 N D r operations, since their products with it are
        known, and to the sum, dY' X, in 4 O I r. The cheaper one is taken, for rows of at least float32.
        """
        outputs = SampleRows((dY,), scale=self.samples())
        outer, inner = self.outputs.observe(outputs), self.inputs.observe(X)
        rows, wide = len(dY), X.is_wide and outputs.is_wide
        few_outputs, few_inputs = wide and rows < 2 * X.dims, wide and rows < 2 * outputs.dims
        if few_outputs:
            (dY,) = outputs.without(outer.H, outer.W).blocks
        G = product(dY, X.without(inner.H, inner.W) if few_inputs else X)
        if not few_inputs:
            _times_inner(G, inner.W)
        gamma = outer.gamma * inner.gamma
        for block in G:
            if not few_outputs:
                block.addmm_(outer.W.t(), outer.W @ block, alpha=-1)
            block.mul_(gamma)
        return G


def _times_inner(G: Gradients, W: Tensor) -> None:
    parts = torch.split(W, [block.shape[1] for block in G], dim=1)
    inner = sum((block @ part.t() for block, part in zip(G, parts, strict=True)), start=W.new_zeros(()))
    for block, part in zip(G, parts, strict=True):
        block.addmm_(inner, part, alpha=-1)


def product(dY: Tensor, X: SampleRows) -> Gradients:
    """dY' X in the blocks of X, in at least float32."""
    wide = torch.float64 if dY.dtype == torch.float64 else torch.float32
    blocks = [(dY.t() @ block).to(wide) for block in X.blocks]
    if X.ones:
        # On a CPU torch sums rows three times faster this way; in low precision with another rounding.
        narrow = dY.dtype != wide
        blocks.append(dY.sum(0, dtype=wide)[:, None] if narrow else dY.t() @ dY.new_ones(dY.shape[0], 1))
    return blocks


class Affine(torch.autograd.Function):
    """x (..., I) -> x W' + b (..., O), W of any shape with O rows, with natural gradients of W and b."""

    @staticmethod
    def forward(ctx: Any, sides: TwoSides, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        W = weight.flatten(1).to(x.dtype)
        ctx.sides, ctx.biased = sides, bias is not None
        ctx.save_for_backward(x, weight)
        return torch.nn.functional.linear(x, W, None if bias is None else bias.to(x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        # The mode has no call to replace here, and would only take time.
        with DisableTorchFunction():
            dx = dy @ weight.flatten(1).to(dy.dtype) if ctx.needs_input_grad[1] else None
            dY, X = dy.reshape(-1, dy.shape[-1]), SampleRows((x.reshape(-1, x.shape[-1]),), ctx.biased)
            G = ctx.sides.gradient(X, dY)
            dW = G[0].view(weight.shape).to(weight.dtype)
            return None, dx, dW, G[1].squeeze(1).to(weight.dtype) if ctx.biased else None
