"""Secret of a launch, passed to its processes neither in environment variables nor on command lines.

murmur's launcher draws one and leaves it in an unnamed file whose descriptor its processes inherit. Under another
launcher, each process reads it from a file that only its user may read. Standard library only.
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
    """Draw a random secret: 32 bytes as 64 hexadecimal digits."""
    return secrets.token_hex(32).encode()


def unnamed_file(secret: bytes) -> IO[bytes]:
    """Create an unnamed file with the secret; a process that inherits its descriptor can read it repeatedly."""
    file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    file.write(secret)
    file.flush()
    return file


def from_descriptor(descriptor: int) -> bytes:
    """Read the secret from an inherited file; later children of this process do not inherit it again.

    Raises:
        ValueError: There is none.
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
    """Read the secret from a file of the user; surrounding white space is ignored.

    Raises:
        OSError: The file cannot be read.
        ValueError: Other users may read it, or it holds no secret.
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
