"""Handshake of two processes of a launch over TCP: each proves that it has the launch's secret without sending it.

    caller -> host    protocol name, the caller's number, the caller's nonce
    host -> caller    the host's nonce, HMAC(secret, "host", purpose, number, both nonces)
    caller -> host    HMAC(secret, "caller", purpose, number, both nonces), and with it the first message

HMAC-SHA256 (RFC 2104). A caller that has verified its host may send at once, so that connecting takes one more round
trip. Nonces make every proof valid for one connection only. The data that follow are neither encrypted nor signed: an
attacker that can change packets on their way can take over an established connection. Standard library only.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct

from murmur.worlds.awake_clock import awake_seconds

SPOKEN = b"murmur 2"
GREETING = struct.Struct(f"<{len(SPOKEN)}sI32s")  # protocol name, the caller's number, its nonce
ANSWER = struct.Struct("<32s32s")  # the host's nonce, its proof
NONCE_BYTES = PROOF_BYTES = 32


class Refused(ConnectionError):
    """The other side speaks the protocol but has another secret."""


def call_in(line: socket.socket, secret: bytes, purpose: str, number: int, deadline: float) -> None:
    """Run the caller's side; return once the host has proved itself and this side's proof has been sent.

    Args:
        line: New connection; its timeout is changed.
        secret: Secret of the launch.
        purpose: Purpose of the connection, the same on both sides.
        number: Number of this caller.
        deadline: Deadline on the clock of `awake_seconds`.

    Raises:
        Refused: The host has another secret, or is another program.
        EOFError: It has closed the connection.
        TimeoutError: It was silent until the deadline.
    """
    mine = secrets.token_bytes(NONCE_BYTES)
    _wait_until(line, deadline)
    line.sendall(GREETING.pack(SPOKEN, number, mine))
    theirs, proof = ANSWER.unpack(_bytes(line, ANSWER.size, deadline))
    if not hmac.compare_digest(proof, _proof(secret, "host", purpose, number, mine + theirs)):
        raise Refused("it does not have this run's secret: another run's process is there, or its secret file differs")
    line.sendall(_proof(secret, "caller", purpose, number, mine + theirs))


def let_in(line: socket.socket, secret: bytes, purpose: str, deadline: float) -> int:
    """Run the host's side; return the number of a caller that has proved itself.

    Raises:
        Refused: The caller has another secret.
        ValueError: It speaks another protocol.
        EOFError: It has closed the connection.
        TimeoutError: It was silent until the deadline.
    """
    spoken, number, theirs = GREETING.unpack(_bytes(line, GREETING.size, deadline))
    if spoken != SPOKEN:
        raise ValueError(f"a caller that begins with {spoken!r}")
    mine = secrets.token_bytes(NONCE_BYTES)
    line.sendall(ANSWER.pack(mine, _proof(secret, "host", purpose, number, theirs + mine)))
    proof = _bytes(line, PROOF_BYTES, deadline)
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
