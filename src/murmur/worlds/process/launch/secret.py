"""A launch's secret, and how it gets to its processes: never in an environment variable, never on a command line.

Our launcher draws one and leaves it in a file that has no name any more, whose descriptor its processes inherit. Where
somebody else starts the processes, each reads it from a file that only its user may read. Standard library only.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from pathlib import Path
from typing import IO

LEAST_BYTES, MOST_BYTES = 16, 1024


def draw() -> bytes:
    """A secret nobody can guess: 32 random bytes as 64 hexadecimal digits."""
    return secrets.token_hex(32).encode()


def unnamed_file(secret: bytes) -> IO[bytes]:
    """A file without a name that holds the secret; who inherits its descriptor can read it, as often as it likes."""
    file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    file.write(secret)
    file.flush()
    return file


def from_descriptor(descriptor: int) -> bytes:
    """The secret in an inherited file; later children of this process do not inherit it again.

    Raises:
        ValueError: there is none.
    """
    try:
        os.set_inheritable(descriptor, False)
        return _checked(os.pread(descriptor, MOST_BYTES + 1, 0), f"descriptor {descriptor}")
    except OSError as error:
        raise ValueError(
            f"this process did not inherit the run's secret in descriptor {descriptor} ({error}): a learner must be"
            " started by the launcher itself, or by a program that passes open descriptors on"
        ) from error


def from_file(path: Path) -> bytes:
    """The secret in a file of the user's own; white space around it does not count.

    Raises:
        OSError: the file cannot be read.
        ValueError: others may read it, or it holds no secret.
    """
    with path.open("rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise ValueError(f"{path} is no file")
        if facts.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ValueError(f"{path} may be read or written by others: chmod 600 {path}")
        return _checked(file.read(MOST_BYTES + 1), str(path))


def _checked(raw: bytes, where: str) -> bytes:
    found = raw.strip()
    if not LEAST_BYTES <= len(found) <= MOST_BYTES:
        raise ValueError(
            f"the secret in {where} has {len(found)} bytes, {LEAST_BYTES} to {MOST_BYTES} are needed: make one with"
            " (umask 077; head -c 32 /dev/urandom | base64 > FILE)"
        )
    return found
