"""The block of a joined loop, and checks of calls that belong inside it."""

from __future__ import annotations

from murmur.core.learner import Strategy
from murmur.user_loop.consensus import Answers


class BlockChecks:
    """Block of `with murmur.join(...) as me:`."""

    strategy: Strategy
    _answers: Answers
    _entered = _left = False
    _failure: BaseException | None = None  # of the strategy

    def _check_entered(self, what: str) -> None:
        if not self._entered:
            raise RuntimeError(f"{what} came before the block: write `with murmur.join(...) as me:` around the loop")

    def _check_inside(self, what: str) -> None:
        self._check_entered(what)
        if self._left:
            raise RuntimeError(
                f"{what} came after the block of murmur.join, whose model is final: move it into the block, or train on"
                " with the optimizer alone"
            )

    def _check_training(self, what: str) -> None:
        self._check_inside(what)
        if self._answers.lends:
            raise RuntimeError(
                f"{what} came inside consensus(), where the model is the mean of all learners: evaluate there, and move"
                " it behind that block"
            )

    def _check_going(self, what: str) -> None:
        if self._failure is not None:
            told = f"{type(self._failure).__name__} ({self._failure})" if str(self._failure) else repr(self._failure)
            raise RuntimeError(
                f"{what} cannot go on, as {type(self.strategy).__name__} was ended in an earlier call by {told}:"
                " leave the block, and join again on all learners"
            ) from self._failure
