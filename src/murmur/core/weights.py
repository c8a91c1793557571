"""The live weights w_i of one learner. Each method is one critical section; no lock is held across an await.

A gradient must be taken at *one* point phi, whatever averaging does meanwhile. While a gradient is being computed, the
model therefore keeps the weights it began with, and changes go to a copy beside it (copy on write). `step` and the next
gradient begin by moving that copy into the model. One exchange with a neighbour needs no copy: it waits until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import RLock

from torch import Tensor

from murmur.accelerator.device import keep, kernels_in_order
from murmur.core.flat import Layout, pull


class Weights:
    """The trainable tensors of a model as one vector (P,) that several activities of a learner may change.

    Attributes:
        layout: Map between the vector and the model's tensors.
        version: Number of changes so far; the staleness of a gradient is counted in these.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.version = 0
        self._lock = RLock()
        self._held = 0
        self._ahead: Tensor | None = None  # the live weights while the model is held at older ones
        self._pull: tuple[Tensor, Tensor | None, float] | None = None  # change of held weights that is still to be made
        self._shot = (0, -1)  # address of the latest snapshot, and version of the weights that are equal to it
        self._kernels = kernels_in_order(layout.device)

    def section(self) -> AbstractContextManager[object]:
        """One critical section; methods of this object may be called inside."""
        return self._lock if isinstance(self._kernels, nullcontext) else self._with_kernels()

    @contextmanager
    def _with_kernels(self) -> Iterator[None]:
        with self._lock, self._kernels:
            if self._ahead is not None:
                keep(self._ahead)  # it may be freed on another stream than the one that allocated it
            yield

    def _settle(self) -> None:
        if self._held:
            return
        if self._pull is not None:
            self.layout.pull_(*self._pull)
            self._pull = None
        if self._ahead is not None:
            self.layout.scatter(self._ahead)
            self._ahead = None

    def _writable(self) -> Tensor:
        if self._ahead is None:
            self._ahead, self._pull = self._with_pull(self.layout.gather()), None
        return self._ahead

    def _with_pull(self, w: Tensor) -> Tensor:
        if self._pull is not None:
            pull([w], *self._pull)
        return w

    def snapshot(self, out: Tensor | None = None) -> Tensor:
        """Return a copy of w_i, shape (P,), in `out` if it is given."""
        with self.section():
            if self._ahead is None:
                w = self._with_pull(self.layout.gather(out))
            else:
                w = (self.layout.empty() if out is None else out).copy_(self._ahead)
            self._shot = w.data_ptr(), self.version
            return w

    def set_(self, w: Tensor) -> None:
        """w_i <- w. For synchronous results only: changes since the snapshot was taken are lost."""
        self.layout.check(w)
        with self.section():
            self.version += 1
            if self._held:
                self._writable().copy_(w)
            else:
                self._ahead = self._pull = None
                self.layout.scatter(w)

    def add_(self, delta: Tensor, alpha: float = 1.0) -> None:
        """w_i <- w_i + alpha delta. Steps that landed in the meantime are kept."""
        self.layout.check(delta)
        with self.section():
            self.version += 1
            if self._held or self._ahead is not None or not self.layout.alike:
                self._writable().add_(delta, alpha=alpha)
                self._settle()
            else:
                self._settle()
                self.layout.add_(delta, alpha)

    def pull_(self, theirs: Tensor, mine: Tensor, alpha: float) -> None:
        """w_i <- w_i + alpha (theirs - mine). While the model is held, one such change waits for the end of that.

        The two vectors must not be changed afterwards.
        """
        self.layout.check(theirs)
        self.layout.check(mine)
        with self.section():
            own = None if self._shot == (mine.data_ptr(), self.version) else mine
            self.version += 1
            if self._ahead is None and self._pull is None and self.layout.pulls:
                self._pull = theirs, own, alpha
            else:
                pull([self._writable()], theirs, own, alpha)
            self._settle()

    @contextmanager
    def held(self) -> Iterator[int]:
        """Keep the model's weights unchanged inside the block, whatever other activities do; yield their version."""
        with self.section():
            self._settle()
            self._held += 1
            version = self.version
        try:
            yield version
        finally:
            with self.section():
                self._held -= 1

    @contextmanager
    def lent(self, w: Tensor) -> Iterator[None]:
        """Set the model to weights w (P,) inside the block; the live ones stand beside it, open to other changes."""
        with self.held() as version:
            beside, own = self._lend(w)
            try:
                yield
            finally:
                with self.section():
                    self.layout.scatter(own)
                    if self.version == version and not beside:
                        self._ahead = None  # else it would undo what the loop does to the model's weights from now on

    def _lend(self, w: Tensor) -> tuple[bool, Tensor]:
        with self.section():
            beside, own = self._ahead is not None or self._pull is not None, self.layout.gather()
            self._writable()
            self.layout.scatter(w)
        return beside, own

    def step(self, change: Callable[[], None]) -> None:
        """Let `change` (an optimizer) update the live weights inside the model.

        Raises:
            RuntimeError: A gradient is being computed.
        """
        with self.section():
            if self._held:
                raise RuntimeError("a step while a gradient is being computed: call descend after the gradient")
            self._settle()
            change()
            self.version += 1
