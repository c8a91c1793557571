"""The published recursion with dense matrices in float64: an oracle, written from the equations alone."""

from __future__ import annotations

import math

import numpy as np


class DenseFisher:
    """F = R' D R + rho I, updated by one power iteration per call; every matrix of the paper is formed in full."""

    def __init__(self, X: np.ndarray, rank: int, alpha: float, history: float, period: int) -> None:
        D = X.shape[1]
        self.alpha, self.history, self.period = alpha, history, period
        self.R = np.zeros((rank, D))
        for row in range(rank):
            self.R[row, row::rank] = 1.0
            self.R[row, row] = 1.1
        self.R /= np.linalg.norm(self.R, axis=1, keepdims=True)
        self.d, self.rho = np.full(rank, 1e-10), 1e-10
        self.t = 1
        for _ in range(1 if len(X) <= rank else 3):
            self.update(X)

    @property
    def F(self) -> np.ndarray:
        return self.R.T @ np.diag(self.d) @ self.R + self.rho * np.eye(self.R.shape[1])

    def precondition(self, X: np.ndarray) -> tuple[np.ndarray, float]:
        """Return X^ and gamma from the estimate before X; then update, if it is due."""
        D = X.shape[1]
        G = self.F + self.alpha / D * np.trace(self.F) * np.eye(D)
        beta = self.rho * (1 + self.alpha) + self.alpha / D * self.d.sum()
        X_hat = beta * X @ np.linalg.inv(G)
        if self.t <= 10 or self.t % self.period == 0:
            self.update(X)
        self.t += 1
        before, after = np.sum(X * X), np.sum(X_hat * X_hat)
        return X_hat, math.sqrt(before / after) if before > 0 else 1.0

    def update(self, X: np.ndarray) -> None:
        N, D = X.shape
        rank = len(self.d)
        eta = min(0.9, 1 - math.exp(-N / self.history))
        S = X.T @ X / N
        Y = self.R @ (eta * S + (1 - eta) * self.F)
        C, U = np.linalg.eigh(Y @ Y.T)
        C, U = np.maximum(C[::-1], (self.rho * (1 - eta)) ** 2), U[:, ::-1]
        roots = np.sqrt(C)
        R = np.diag(1 / roots) @ U.T @ Y
        trace = eta * np.trace(S) + (1 - eta) * (D * self.rho + self.d.sum())
        rho = (trace - roots.sum()) / (D - rank)
        floor = max(1e-10, 5e-4 * roots.max())
        self.R, self.d, self.rho = R, np.maximum(roots - rho, floor), max(rho, floor)
