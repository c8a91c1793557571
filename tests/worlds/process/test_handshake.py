"""Only processes with the run's secret get in; others learn nothing, block no learner and cause no allocation."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest
import torch

from murmur.core.group import PeerLost
from murmur.worlds.process import secret as handshake
from murmur.worlds.process.listener import MOST_HANDSHAKES, Listener, dial, listen
from murmur.worlds.process.mail import OPENING, WANTED, Mail
from murmur.worlds.process.secret import (
    ANSWER,
    GREETING,
    SPOKEN,
    Refused,
    draw,
    from_descriptor,
    from_file,
    unnamed_file,
)
from murmur.worlds.process.store_server import PURPOSE, StoreClient, StoreServer
from murmur.worlds.process.torch_store import NetStore
from murmur.worlds.process.wire_format import (
    PREFIX,
    REQUEST,
    MessageHead,
    encode_head,
    exactly,
    send_frame,
)
from tests.support.frames import sealed
from tests.support.named import named

SECRET = b"what only this run's learners know"


@pytest.fixture
def server() -> Iterator[StoreServer]:
    running = StoreServer(listen(), SECRET)
    yield running
    running.close()


def eventually(what: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not what() and time.monotonic() < deadline:
        time.sleep(0.01)
    return what()


def hung_up(line: socket.socket, seconds: float = 5.0) -> bool:
    """True if the other side closes without another byte."""
    line.settimeout(seconds)
    try:
        return line.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def test_with_the_secret_all_is_as_ever(server: StoreServer) -> None:
    store = NetStore(StoreClient(*server.address, 5, SECRET), "")
    store.set("a", "b")
    assert store.clone().get("a") == b"b"


@pytest.mark.parametrize("other", [b"", b"another run's", SECRET + b"."])
def test_without_the_secret_nothing_is_served(server: StoreServer, other: bytes) -> None:
    began = time.monotonic()
    with pytest.raises(Refused, match="is not this run's store"):
        StoreClient(*server.address, 60, other)
    assert time.monotonic() - began < 30, "it is known at once"


def test_requests_instead_of_a_proof_are_not_answered(server: StoreServer) -> None:
    NetStore(StoreClient(*server.address, 5, SECRET), "").set("key", "value")
    for head in ({"do": "wait", "keys": ["key"], "seconds": 0}, {"do": "membership", "act": "view", "group": "world"}):
        with socket.create_connection(server.address) as line:
            send_frame(line, encode_head(head, 0, REQUEST), b"")
            assert hung_up(line)
        with socket.create_connection(server.address) as line:  # after a greeting too
            line.sendall(GREETING.pack(SPOKEN, 0, bytes(32)))
            assert len(line.recv(ANSWER.size, socket.MSG_WAITALL)) == ANSWER.size
            send_frame(line, encode_head(head, 0, REQUEST), b"")
            assert hung_up(line)


def test_a_proof_is_good_for_one_connection_one_purpose_and_one_caller(server: StoreServer) -> None:
    """A host that forwards the store's challenge to a learner gets no usable answer."""
    nonce = bytes(range(32))

    def tried(role: str, purpose: str, number: int, ours: bytes) -> bool:
        with socket.create_connection(server.address) as line:
            line.sendall(GREETING.pack(SPOKEN, 0, ours))
            theirs, proof = ANSWER.unpack(line.recv(ANSWER.size, socket.MSG_WAITALL))
            mine = proof if role == "echo" else handshake._proof(SECRET, role, purpose, number, nonce + theirs)
            line.sendall(mine)
            with contextlib.suppress(ConnectionError):
                send_frame(line, encode_head({"do": "size"}, 0, REQUEST), b"")
            return not hung_up(line)

    assert tried("caller", PURPOSE, 0, nonce)
    assert not tried("host", PURPOSE, 0, nonce)
    assert not tried("echo", PURPOSE, 0, nonce)
    assert not tried("caller", "mail to 0", 0, nonce)
    assert not tried("caller", PURPOSE, 1, nonce)
    assert not tried("caller", PURPOSE, 0, bytes(32))


def test_two_greetings_get_two_nonces(server: StoreServer) -> None:
    answers = set()
    for _ in range(2):
        with socket.create_connection(server.address) as line:
            line.sendall(GREETING.pack(SPOKEN, 0, bytes(32)))
            answers.add(line.recv(ANSWER.size, socket.MSG_WAITALL))
    assert len(answers) == 2


@pytest.mark.parametrize("dripping", [b"", SPOKEN[:3]])
def test_a_silent_caller_is_dropped(dripping: bytes) -> None:
    let_in: list[int] = []
    listener = Listener(listen(), SECRET, "test", lambda line, number, _: let_in.append(number), handshake_seconds=0.3)
    with socket.create_connection(listener.address) as line:
        began = time.monotonic()
        line.sendall(dripping)
        assert hung_up(line)
        assert time.monotonic() - began > 0.2
    assert not let_in
    listener.close()


def test_a_slow_caller_is_dropped() -> None:
    listener = Listener(listen(), SECRET, "test", lambda line, number, _: None, handshake_seconds=0.4)
    greeting = GREETING.pack(SPOKEN, 0, bytes(32))
    with socket.create_connection(listener.address) as line:
        sent = 0
        with contextlib.suppress(OSError):  # reset or broken pipe, in the middle of the greeting
            for byte in greeting:
                line.sendall(bytes([byte]))
                sent += 1
                time.sleep(0.05)
        assert sent < len(greeting)
    listener.close()


def test_silent_callers_keep_no_learner_out(server: StoreServer) -> None:
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(server.address)) for _ in range(MOST_HANDSHAKES + 50)]
        began = time.monotonic()
        assert StoreClient(*server.address, 60, SECRET).call({"do": "size"})[0] == {"total": 0}
        assert time.monotonic() - began < 30
        assert hung_up(silent[0], 2), "the first had to make room"
        assert eventually(lambda: len(server._admission.in_handshake) <= MOST_HANDSHAKES)


def test_a_listener_survives_a_lack_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = listen()
    failures = [OSError(24, "too many open files"), OSError(103, "aborted")]

    class Short:
        def __getattr__(self, name: str) -> object:
            return getattr(bound, name)

        def accept(self) -> object:
            if failures:
                raise failures.pop()
            return bound.accept()

    listener = Listener(Short(), SECRET, "test", lambda line, number, _: line.close())  # type: ignore[arg-type]
    dial(listener.address, SECRET, "test", 0, 5).close()
    assert not failures
    listener.close()


def test_announced_sizes_take_no_memory(server: StoreServer) -> None:
    with socket.create_connection(server.address) as line:
        line.sendall(PREFIX.pack(0, REQUEST.head_bytes, REQUEST.payload_bytes) * 8)
        assert hung_up(line)


HOSTILE = {
    "too long a header": PREFIX.pack(0, REQUEST.head_bytes + 16, 0),
    "too long a value": sealed(b'{"do": "size"}  ', REQUEST.payload_bytes + 1),
    "brackets": sealed(b"[" * 200_000),
    "no object": sealed(b"[]".ljust(16)),
    "bad UTF-8": sealed(b"\xff\xfe".ljust(16)),
    "checksum": PREFIX.pack(0, 16, 0) + b'{"do": "size"}  ',
}
REQUESTS = [
    {},
    {"do": 1},
    {"do": "fly"},
    {"do": "set"},
    {"do": "set", "key": 7},
    {"do": "add", "key": "n", "amount": 1e300},
    {"do": "add", "key": "text", "amount": 1},
    {"do": "wait", "keys": [], "seconds": 1},
    {"do": "wait", "keys": "key", "seconds": 1},
    {"do": "wait", "keys": ["never"], "seconds": float("nan")},
    {"do": "wait", "keys": ["never"], "seconds": "soon"},
    {"do": "check", "keys": None},
    {"do": "swap", "key": "a", "expected": "zz"},
    {"do": "membership", "act": "enter", "group": "group", "rank": 0, "size": 10**9, "lease": 1},
    {"do": "membership", "act": "enter", "group": "group", "rank": 70000, "size": 2, "lease": 1},
    {"do": "membership", "act": "claim", "group": "unknown", "rank": 0},
    {"do": "membership", "act": "claim", "group": "known", "rank": 0, "first": 0, "total": 10**12, "doing": [],
     "done": [], "size": 1, "count": 10**9},
    {"do": "membership", "act": "claim", "group": "known", "rank": 0, "first": 0, "total": 10**12, "doing": [],
     "done": [], "size": 10**4, "count": 10**4},
    {"do": "membership", "act": "beat", "group": "known", "rank": 0, "lease": 1e999, "known": 0, "seconds": 1},
    {"do": "membership", "act": "dance", "group": "known", "rank": 0},
]  # fmt: skip


@pytest.mark.parametrize("frame", HOSTILE.values(), ids=HOSTILE)
def test_hostile_frames_of_learners_are_refused(server: StoreServer, frame: bytes) -> None:
    with dial(server.address, SECRET, PURPOSE, 0, 5) as line:
        line.sendall(frame)
        assert hung_up(line)
    assert StoreClient(*server.address, 5, SECRET).call({"do": "size"})[0]["total"] == 0


@pytest.mark.parametrize("head", REQUESTS, ids=named)
def test_hostile_requests_of_learners_are_refused(server: StoreServer, head: dict[str, object]) -> None:
    good = StoreClient(*server.address, 5, SECRET)
    good.call({"do": "set", "key": "text"}, b"characters")
    good.call({"do": "membership", "act": "enter", "group": "known", "rank": 0, "size": 2, "lease": 60})
    with pytest.raises(ConnectionError, match="is gone"):
        StoreClient(*server.address, 5, SECRET).call(head)
    assert good.call({"do": "size"})[0]["total"] == 1
    assert good.call({"do": "membership", "act": "view", "group": "known", "rank": 0})[0]["live"] == [[0, 0], [1, 0]]


class Offices:
    """Mail of two learners, the second perhaps with another secret."""

    def __init__(self, server: StoreServer, theirs: bytes = SECRET) -> None:
        self.store = NetStore(StoreClient(*server.address, 5, SECRET), "")
        self.first = Mail(self.store, 0, "127.0.0.1", 3, SECRET)
        self.second = Mail(self.store, 1, "127.0.0.1", 3, theirs)

    def __enter__(self) -> Offices:
        return self

    def __exit__(self, *_: object) -> None:
        self.first.close()
        self.second.close()


def lost() -> Exception:
    return PeerLost("nothing came", 0)


def test_mail_goes_both_ways_with_the_secret(server: StoreServer) -> None:
    with Offices(server) as both:
        both.first.post(torch.arange(5.0), 1, "tag", [2.5, float("nan")])
        message = both.second.box.take(0, "tag", 5, lost)
        assert message.x.tolist() == [0, 1, 2, 3, 4]
        assert message.header[0] == 2.5
        both.second.post(torch.zeros(0), 0, "empty")
        assert both.first.box.take(1, "empty", 5, lost).x.numel() == 0


def test_mail_goes_nowhere_without_it(server: StoreServer) -> None:
    with Offices(server, theirs=b"another run's secret") as both:
        both.first.post(torch.ones(3), 1, "tag")
        with pytest.raises(PeerLost, match="does not have this run's secret"):
            both.first.box.take(1, "tag", 5, lost)
        assert both.second.box.wait("tag", 0.1) is None


def begin_stream(line: socket.socket) -> None:
    line.sendall(OPENING.pack(7, 0))
    assert WANTED.unpack(exactly(line, WANTED.size)) == (0, 0)


MALFORMED = {
    "no type": sealed(b'{"tag": "t", "dtype": "object", "numbers": []}', 8),
    "part of an element": sealed(b'{"tag": "t", "dtype": "float32", "numbers": []}', 5),
    "too long": sealed(b'{"tag": "t", "dtype": "float32", "numbers": []}', 99999999999996),
    "tag is a list": sealed(b'{"tag": [], "dtype": "float32", "numbers": []}'),
    "numbers are text": sealed(b'{"tag": "t", "dtype": "float32", "numbers": "abc"}'),
    "number beyond measure": sealed(b'{"tag": "t", "dtype": "float32", "numbers": [1' + b"0" * 400 + b"]}"),
    "an offer of two numbers": sealed(b'{"tag": "t", "dtype": "float32", "numbers": [], "offer": [1, 2]}'),
    "a loan of text": sealed(b'{"tag": "t", "dtype": "float32", "numbers": [], "loan": "abcd", "elements": 1}'),
    "a loan of nothing": sealed(
        b'{"tag": "t", "dtype": "float32", "numbers": [], "loan": [5, 0, 0, 1], "elements": 1}'
    ),
    "a loan without elements": sealed(b'{"tag": "t", "dtype": "float32", "numbers": [], "loan": [5, 0, 0, 1]}'),
    "a list": sealed(b"[1, 2]"),
    "brackets": sealed(b"[" * 60_000),
    "altered": sealed(b'{"tag": "t", "dtype": "float32", "numbers": []}').replace(b"float32", b"float64"),
}


@pytest.mark.parametrize("frame", MALFORMED.values(), ids=MALFORMED)
def test_hostile_messages_break_their_own_connection_only(server: StoreServer, frame: bytes) -> None:
    with Offices(server) as both:
        with dial(both.second._listener.address, SECRET, "mail to 1", 0, 5) as line:
            begin_stream(line)
            line.sendall(frame)
            assert hung_up(line)
        with pytest.raises(PeerLost, match="the connection from learner 0 closed"):
            both.second.box.take(0, "t", 5, lost)
        both.first.post(torch.ones(1), 1, "good")
        assert both.second.box.wait("good", 5) is not None


def test_a_promised_vector_takes_no_memory_until_it_comes(server: StoreServer) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    head = MessageHead("t", "uint8", ()).encode(1 << 30)
    with Offices(server) as both, dial(both.second._listener.address, SECRET, "mail to 1", 0, 5) as line:
        begin_stream(line)
        before = resident()
        line.sendall(head + bytes(100))
        time.sleep(0.3)
        assert resident() - before < 2**26


def test_connecting_takes_one_round_trip_more() -> None:
    """Greeting and answer, then the proof together with the first request."""
    turns: list[str] = []

    def passing(from_: socket.socket, to: socket.socket, side: str) -> None:
        with contextlib.suppress(OSError):
            while piece := from_.recv(1 << 16):
                if turns[-1:] != [side]:
                    turns.append(side)
                to.sendall(piece)

    def relay(line: socket.socket, server: tuple[str, int]) -> None:
        other = socket.create_connection(server)
        Thread(target=passing, args=(line, other, "client"), daemon=True).start()
        Thread(target=passing, args=(other, line, "server"), daemon=True).start()

    server = StoreServer(listen(), SECRET)
    with listen() as far:
        Thread(target=lambda: relay(far.accept()[0], server.address), daemon=True).start()
        client = StoreClient(*far.getsockname(), 5, SECRET)
        client.call({"do": "size"})
        assert turns == ["client", "server"] * 2, "one more, not two"
        client.call({"do": "size"})
        assert turns == ["client", "server"] * 3
    server.close()


def test_an_inherited_secret_can_be_read_again_and_is_not_passed_on() -> None:
    secret = draw()
    with unnamed_file(secret) as file:
        os.set_inheritable(file.fileno(), True)
        assert from_descriptor(file.fileno()) == from_descriptor(file.fileno()) == secret
        assert not os.get_inheritable(file.fileno())
        assert os.fstat(file.fileno()).st_nlink == 0, "no process finds it by name"
    assert len(draw()) == 64
    assert draw() != secret


def test_descriptors_without_a_secret_are_refused() -> None:
    with pytest.raises(ValueError, match="did not inherit the run's secret in descriptor 777"):
        from_descriptor(777)
    with unnamed_file(b"short") as file, pytest.raises(ValueError, match="has 5 bytes, 16 to 1024 are needed"):
        from_descriptor(file.fileno())


def test_a_secret_file_is_its_users_own(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"  sixteen bytes at least\n")
    file.chmod(0o640)
    with pytest.raises(ValueError, match=r"may be read or written by others: chmod 600"):
        from_file(file)
    file.chmod(0o600)
    assert from_file(file) == b"sixteen bytes at least"
    file.write_bytes(b"x" * 5000)
    with pytest.raises(ValueError, match="16 to 1024 are needed"):
        from_file(file)
    with pytest.raises(ValueError, match="is no file"):
        from_file(Path("/dev/null"))
    with pytest.raises(FileNotFoundError):
        from_file(tmp_path / "none")
