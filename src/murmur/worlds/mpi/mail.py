"""Messages between two learners over MPI: posting never blocks, arrivals go to a mailbox.

A message is one block of bytes: the length of a JSON header, the header (tag, type, number of elements, numbers beside
the vector), zeros up to the next multiple of 16, the raw elements. MPI keeps the order in which messages of one sender
are matched, but a large one may be complete after a later small one. They are delivered in the order in which they
began.
"""

from __future__ import annotations

import json
import struct
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from murmur.worlds.mailbox import Mailbox
from murmur.worlds.mpi.progress import MpiProgress
from murmur.worlds.process.transport.mail import TYPES

LENGTH = struct.Struct("<I")
ALIGNMENT = 16  # bytes: elements of every type can be used in place
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class MpiMail:
    """One learner's post office, on a communicator that carries no other messages.

    Attributes:
        box: Mailbox of arrivals.
        sent_bytes: Bytes sent so far.
    """

    def __init__(self, mpi: Any, comm: Any) -> None:
        self.box, self.sent_bytes = Mailbox(), 0
        self._mpi, self._comm, self._rank = mpi, comm, comm.rank
        self._coming: dict[int, deque[tuple[Any, Bytes]]] = defaultdict(deque)
        self.progress: MpiProgress

    def post(self, x: Tensor, to: int, tag: str, header: Sequence[float] = ()) -> None:
        """Queue a copy of x for learner `to`; return at once."""
        if to == self._rank:
            self.box.put(self._rank, tag, x.clone(), header)
            return
        message = pack(x.detach().cpu(), tag, header)
        self.sent_bytes += message.size
        self.progress.submit(lambda: self._comm.Isend([message, self._mpi.BYTE], to), lambda: None, 0.0)

    def poll(self) -> bool:
        """Receive arrived messages; return True if any operation made progress."""
        moved = False
        status = self._mpi.Status()
        while (found := self._comm.Improbe(status=status)) is not None:
            message = np.empty(status.Get_count(self._mpi.BYTE), np.uint8)
            self._coming[status.source].append((found.Irecv([message, self._mpi.BYTE]), message))
        for source, queue in self._coming.items():
            while queue and queue[0][0].Test():
                self.box.put(source, *unpack(queue.popleft()[1]))
                moved = True
        return moved


def pack(x: Tensor, tag: str, header: Sequence[float]) -> Bytes:
    """Pack a vector on the CPU, its tag and header numbers into new bytes."""
    head = json.dumps({"tag": tag, "type": str(x.dtype), "numel": x.numel(), "numbers": list(header)}).encode()
    start = -(-(LENGTH.size + len(head)) // ALIGNMENT) * ALIGNMENT
    message = np.zeros(start + x.numel() * x.element_size(), np.uint8)
    message[: LENGTH.size + len(head)] = np.frombuffer(LENGTH.pack(len(head)) + head, np.uint8)
    if x.numel():
        message[start:] = x.contiguous().view(torch.uint8).numpy()
    return message


def unpack(message: Bytes) -> tuple[str, Tensor, list[float]]:
    """Return the tag, the vector and the header numbers of a message; the vector shares its memory."""
    (length,) = LENGTH.unpack(message[: LENGTH.size].tobytes())
    head = json.loads(message[LENGTH.size : LENGTH.size + length].tobytes())
    dtype, numel = TYPES[head["type"]], int(head["numel"])
    raw = message[message.size - numel * dtype.itemsize :]
    x = torch.from_numpy(raw).view(dtype) if numel else torch.empty(0, dtype=dtype)
    return head["tag"], x, [float(number) for number in head["numbers"]]
