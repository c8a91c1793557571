"""A command of murmur as a separate process, stopped together with this program."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from murmur.core.plain_files import plain_file
from murmur.worlds.process.launch.signals import StopSignals


def launch(words: list[str], printed: Path, inherited: Sequence[int] = ()) -> int:
    """Run a command of murmur as a separate process, which inherits some open files.

    Returns:
        Its exit status.

    Raises:
        Stopped: a signal came; the command has received it too, and has ended.
    """
    printed.parent.mkdir(parents=True, exist_ok=True)
    with plain_file(printed, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as log:
        log.write(f"$ murmur {shlex.join(words)}\n".encode())
        command = [sys.executable, "-m", "murmur", *words]
        with Asked() as asked:
            status = asked.begun(subprocess.Popen(command, stdout=log, stderr=log, pass_fds=inherited)).wait()
        asked.stop()
        return status


class Asked(StopSignals):
    """Context that passes stop signals on to the run, which saves and ends (a simulated one ends at once)."""

    def __init__(self) -> None:
        super().__init__()
        self.signals: list[int] = []
        self._child: subprocess.Popen[bytes] | None = None

    def begun(self, child: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        """Note that the run has begun, and pass on signals that came before."""
        self._child = child
        for number in self.signals:
            child.send_signal(number)
        return child

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.signals.append(number)
        if self._child is not None:
            self._child.send_signal(number)
        super()._take(number, frame)
