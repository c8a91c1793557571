"""Messages between two learners over MPI: posting never blocks, arrivals go to a mailbox.

A message is one block of bytes, the same frame as over TCP (`process/transport/wire_format.py`). MPI keeps the order in
which messages of one sender are matched, but a large one may be complete after a later small one. They are delivered in
the order in which they began.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from murmur.worlds.mailbox import Mailbox
from murmur.worlds.mpi.progress import MpiProgress
from murmur.worlds.process.transport.messages import from_block, to_block

Block = np.ndarray[tuple[int], np.dtype[np.uint8]]


class MpiMail:
    """One learner's post office, on a communicator that carries no other messages.

    Attributes:
        box: Mailbox of arrivals.
        sent_bytes: Bytes sent so far.
        progress: Thread that calls MPI; the post office begins it.

    Args:
        mpi: mpi4py's MPI.
        comm: The communicator.
        polls: Called by the same thread in turn with `poll`; each returns True if it made progress.
    """

    def __init__(self, mpi: Any, comm: Any, polls: Sequence[Callable[[], bool]] = ()) -> None:
        self.box, self.sent_bytes = Mailbox(), 0
        self._mpi, self._comm, self._rank = mpi, comm, comm.rank
        self._coming: dict[int, deque[tuple[Any, Block]]] = defaultdict(deque)
        self.progress = MpiProgress([self.poll, *polls], self.box.fail)

    def post(self, x: Tensor, to: int, tag: str, header: Sequence[float] = ()) -> None:
        """Queue a copy of x for learner `to`; return at once.

        Raises:
            ValueError: A reader would refuse the message (`messages.encode`).
        """
        if to == self._rank:
            self.box.put(self._rank, tag, x.clone(), header)
            return
        message = to_block(x.detach().cpu(), tag, header)
        self.sent_bytes += message.size
        self.progress.submit(lambda: self._comm.Isend([message, self._mpi.BYTE], to), lambda: None, 0.0)

    def poll(self) -> bool:
        """Receive arrived messages; return True if any operation made progress.

        Raises:
            ValueError: A message is malformed.
        """
        moved = False
        status = self._mpi.Status()
        while (found := self._comm.Improbe(status=status)) is not None:
            message = np.empty(status.Get_count(self._mpi.BYTE), np.uint8)
            self._coming[status.source].append((found.Irecv([message, self._mpi.BYTE]), message))
        for source, queue in self._coming.items():
            while queue and queue[0][0].Test():
                self.box.put(source, *from_block(queue.popleft()[1]))
                moved = True
        return moved
