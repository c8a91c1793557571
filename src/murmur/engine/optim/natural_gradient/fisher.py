"""Online low-rank-plus-identity estimate of a Fisher matrix, of one side of one affine layer.

    F_t = R_t' D_t R_t + rho_t I                             R_t: r x D, orthonormal rows; D_t = diag(d_t)
    G_t = F_t + (alpha / D) tr(F_t) I,   X^ = beta_t X G_t^-1 = X - X W_t' W_t,   gamma_t = sqrt(tr X X' / tr X^ X^')
    beta_t = rho_t (1 + alpha) + (alpha / D) tr D_t,   E_t = diag(1 / (beta_t / d_ti + 1)),   W_t = E_t^1/2 R_t

Each update is one step of the power iteration on T_t = eta (1/N) X'X + (1 - eta) F_t, as a function of H = X W_t',
J = H'X, K = J J' and L = H'H. Povey, Zhang and Khudanpur, "Parallel training of DNNs with natural gradient and
parameter averaging", arXiv 1410.7455, appendix A; the constants are those of Kaldi's nnet3.

Shapes: N rows (frames), D values a row, r rank.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from murmur.core.flat import is_finite

EPSILON, DELTA = 1e-10, 5e-4  # smallest rho and d: absolute, and relative to the largest eigenvalue
MOST_ETA = 0.9
CONDITION = 1e6  # condition of C above which the rows of R are made orthonormal again
ORTHONORMAL_WITHIN = 1e-3
FIRST_UPDATES = 10  # initial calls that all update


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
        """N."""
        return self.blocks[0].shape[0]

    @property
    def dims(self) -> int:
        """D."""
        return sum(block.shape[1] for block in self.blocks) + int(self.ones)

    def trace(self) -> Tensor:
        """tr X X'."""
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
        """True if all rows are in at least float32."""
        return all(block.dtype == _wide(block) for block in self.blocks)

    def without(self, H: Tensor, W: Tensor) -> SampleRows:
        """(X - H W) / scale for H (N, r) and W (r, D); what was the column of ones is the last block."""
        step = -1 / self.scale
        parts = zip(self.blocks, self._parts(W), strict=True)
        pieces = [torch.addmm(block, H, part, alpha=step) for block, part in parts]
        return SampleRows((*pieces, 1 + (H @ W[:, -1:]) * step) if self.ones else tuple(pieces))

    def _parts(self, W: Tensor) -> list[Tensor]:
        """The columns of W for each block, without that of the ones."""
        sizes = [block.shape[1] for block in self.blocks]
        return list(torch.split(W[:, : sum(sizes)], sizes, dim=1))

    def wide(self) -> SampleRows:
        """Return the same rows in at least float32."""
        return SampleRows(tuple(block.to(_wide(block)) for block in self.blocks), self.ones, self.scale)


class Factor(NamedTuple):
    """The factor W_t of some rows and its products with them: X^ = gamma (X - H W).

    Attributes:
        W: W_t (r, D), before these rows; without a row if D is 1, for such a side is not preconditioned.
        gamma: gamma_t.
        H: X W_t' (N, r).
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
    """Return the diagonal of E_t, (r,)."""
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
        R = _gram_schmidt(R)
    return (R * E.sqrt().to(R.device)[:, None]).to(W)


def _gram_schmidt(R: Tensor) -> Tensor:
    """Make rows orthonormal one after another; an axis replaces a row that depends on those before it."""
    kept: list[Tensor] = []
    axis = 0
    for row in R:
        candidate = row
        while True:
            length = float(candidate.norm())
            rest = candidate
            for _ in range(2):  # the second pass removes rounding errors
                for other in kept:
                    rest = rest - (rest @ other) * other
            if length > 0 and float(rest.norm()) > 1e-4 * length:
                break
            candidate = torch.zeros_like(row)
            candidate[axis] = 1.0
            axis += 1
        kept.append(rest / rest.norm())
    return torch.stack(kept)
