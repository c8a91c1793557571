"""Servers of files at URLs: a real S3 server in a process of its own, and a web server that cuts transfers short."""

from __future__ import annotations

import random
import socket
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Lock, Thread

import pytest

from tests.support.forked_python import REAL

needs_web = pytest.mark.skipif(
    find_spec("aiohttp") is None, reason="aiohttp is missing: pip install murmur-asr[remote]"
)
needs_s3 = pytest.mark.skipif(
    find_spec("moto") is None or find_spec("s3fs") is None or find_spec("flask") is None,
    reason="moto's server or s3fs is missing: pip install murmur-asr[remote,dev]",
)
START_SECONDS = 300.0


@dataclass
class Web:
    """A web server of a folder.

    Attributes:
        folder: files to serve, by their path below it.
        ranges: support of byte ranges.
        denied: without ranges, say so in a header.
        cut: function that takes the number of a request and the bytes to send, and returns the bytes really sent.
        status: function that takes the number of a request, and returns the status to refuse it with, or 0.
        change: function that takes the number of a request and the whole content, and returns the content to send.
        sent: of each GET, the path, first byte and bytes really sent.
    """

    folder: Path
    ranges: bool = True
    denied: bool = False
    cut: Callable[[int, int], int] = lambda number, size: size
    status: Callable[[int], int] = lambda number: 0
    change: Callable[[int, bytes], bytes] = lambda number, content: content
    sent: list[tuple[str, int, int]] = field(default_factory=list)
    address: str = ""
    lock: Lock = field(default_factory=Lock)

    def of(self, ending: str) -> list[tuple[int, int]]:
        """First byte and bytes sent of the requests of files with this ending."""
        return [(first, size) for path, first, size in self.sent if path.endswith(ending)]


def seeded_cuts(seed: int, share: float) -> Callable[[int, int], int]:
    """Cut a share of the transfers at drawn places."""

    def cut(number: int, size: int) -> int:
        draw = random.Random(1000 * seed + number)
        return draw.randrange(size) if size and draw.random() < share else size

    return cut


@contextmanager
def web_server(folder: Path) -> Iterator[Web]:
    """Serve a folder on a port of its own until the end of the block."""
    web = Web(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def log_message(self, *_: object) -> None:
            """Keep the output of tests clean."""

        def _answer(self, body: bool) -> None:
            with web.lock:
                number = len(web.sent)
                web.sent += [("", 0, 0)] if body else []
            path = folder / self.path.lstrip("/")
            status = web.status(number) or (200 if path.is_file() else 404)
            if status != 200:
                self.send_error(status)
                return
            content = web.change(number, path.read_bytes())
            asked = self.headers.get("Range") if web.ranges else None
            first, last = 0, len(content)
            if asked is not None:
                begin, _, end = asked.removeprefix("bytes=").partition("-")
                first, last = int(begin), min(int(end) + 1, last) if end else last
            self.send_response(200 if asked is None else 206)
            self.send_header("Content-Length", str(last - first))
            if web.ranges or web.denied:
                self.send_header("Accept-Ranges", "bytes" if web.ranges else "none")
            if web.ranges:
                self.send_header("Content-Range", f"bytes {first}-{last - 1}/{len(content)}")
            self.end_headers()
            if body:
                size = web.cut(number, last - first)
                web.sent[number] = (self.path, first, size)
                self.wfile.write(content[first : first + size])

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def s3_server() -> Iterator[str]:
    """Start moto's S3 server in a new interpreter, and provide its address."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    process = REAL([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=-3, stderr=-3)
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            assert process.poll() is None, "moto's server has ended"
            try:
                urllib.request.urlopen(f"{address}/moto-api/", timeout=10).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "moto's server does not answer"
                time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait()


def check_credentials(address: str, wanted: bool) -> None:
    """Let the server refuse requests without valid credentials, or accept all again."""
    headers = {"Content-Type": "text/plain"}
    count = b"0" if wanted else b"inf"
    urllib.request.urlopen(urllib.request.Request(f"{address}/moto-api/reset-auth", count, headers)).close()
