"""Secret of a launch: how its processes get it, and the handshake by which they prove over TCP that they have it.

It is neither in environment variables nor on command lines. murmur's launcher draws one and leaves it in an unnamed
file whose descriptor its processes inherit. Under another launcher, each process reads it from a file that only its
user may read. The proof does not send it:

    caller -> host    protocol name, the caller's number, the caller's nonce
    host -> caller    the host's nonce, HMAC(secret, "host", purpose, number, both nonces)
    caller -> host    HMAC(secret, "caller", purpose, number, both nonces), and with it the first message

HMAC-SHA256 (RFC 2104). A caller that has verified its host may send at once, so that connecting takes one more round
trip. Nonces make every proof valid for one connection only. The data that follow are neither encrypted nor signed: an
attacker that can change packets on their way can take over an established connection. Standard library only.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import stat
import struct
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import IO

from murmur.worlds.awake_clock import awake_seconds

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
    """Read the secret from an inherited file; later children of this process do not inherit it again."""
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


SPOKEN = b"murmur 2"
GREETING = struct.Struct(f"<{len(SPOKEN)}sI32s")  # protocol name, the caller's number, its nonce
ANSWER = struct.Struct("<32s32s")  # the host's nonce, its proof
NONCE_BYTES = PROOF_BYTES = 32


class Refused(ConnectionError):
    """The other side speaks the protocol but has another secret."""


def call_in(line: socket.socket, secret: bytes, purpose: str, number: int, deadline: float) -> None:
    """Run the caller's side of a new connection; return once the host has proved itself and this side's proof is sent.

    Args:
        line: Connection; its timeout is changed.
        secret: Secret of the launch.
        purpose: Purpose of the connection, the same on both sides.
        number: Number of this caller.
        deadline: On the clock of `awake_seconds`.

    Raises:
        Refused: The host has another secret, or is another program.
        EOFError, TimeoutError: It has closed the connection, or was silent until the deadline.
    """
    mine = secrets.token_bytes(NONCE_BYTES)
    _wait_until(line, deadline)
    line.sendall(GREETING.pack(SPOKEN, number, mine))
    theirs, proof = ANSWER.unpack(_bytes(line, ANSWER.size, deadline))
    if not hmac.compare_digest(proof, _proof(secret, "host", purpose, number, mine + theirs)):
        raise Refused("it does not have this run's secret: another run's process is there, or its secret file differs")
    line.sendall(_proof(secret, "caller", purpose, number, mine + theirs))


def host_side(secret: bytes, purpose: str) -> Generator[tuple[bytes, int], bytes, int]:
    """Run the host's side without IO; return the number of a caller that has proved itself.

    Yields bytes for the caller and how many are then needed from it; these are sent into the generator.

    Raises:
        Refused: The caller has another secret.
        ValueError: It speaks another protocol.
    """
    spoken, number, theirs = GREETING.unpack((yield b"", GREETING.size))
    if spoken != SPOKEN:
        raise ValueError(f"a caller that begins with {spoken!r}")
    mine = secrets.token_bytes(NONCE_BYTES)
    proof = yield ANSWER.pack(mine, _proof(secret, "host", purpose, number, theirs + mine)), PROOF_BYTES
    if not hmac.compare_digest(proof, _proof(secret, "caller", purpose, number, theirs + mine)):
        raise Refused(f"caller {number} does not have this run's secret")
    return int(number)


def _proof(secret: bytes, role: str, purpose: str, number: int, nonces: bytes) -> bytes:
    # Role, purpose and number end with a zero byte and the nonces have a fixed length: the encoding is unambiguous.
    return hmac.digest(secret, f"{role}\0{purpose}\0{number}\0".encode() + nonces, "sha256")


def _bytes(line: socket.socket, count: int, deadline: float) -> bytes:
    """Receive `count` bytes until the deadline, however slowly they arrive."""
    got = b""
    while len(got) < count:
        _wait_until(line, deadline)
        piece = line.recv(count - len(got))
        if not piece:
            raise EOFError("the other side has closed the connection before the handshake was complete")
        got += piece
    return got


def _wait_until(line: socket.socket, deadline: float) -> None:
    left = deadline - awake_seconds()
    if left <= 0:
        raise TimeoutError("the other side does not complete the handshake")
    line.settimeout(left)
