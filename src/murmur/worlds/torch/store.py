"""The store: a small key-value server through which learners find each other. A process of its own, hosted by none."""

from __future__ import annotations

import socket
import sys
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from murmur.worlds.torch.environment import Place


def serve_store(listener: socket.socket) -> TCPStore:
    """Serve a store on a listening socket, and nowhere else (TCPStore by itself listens on all interfaces)."""
    host, port = listener.getsockname()[:2]
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def listen(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """A listening socket on one interface; port 0 takes a free one."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(1024)
    return listener


def connect(place: Place, timeout_seconds: float) -> Store:
    """This learner's connection to the store of a launch.

    Raises:
        ConnectionError: nobody answers there in time.
    """
    mine = not place.store_is_hosted and place.rank == 0
    try:
        if mine:
            store: Store = serve_store(listen(place.host, place.port))
        else:
            store = TCPStore(
                place.host,
                place.port,
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=timeout_seconds),
            )
    except (RuntimeError, OSError) as error:
        where = f"{place.host}:{place.port}"
        raise ConnectionError(
            f"learner {place.rank} found no store at {where}: is the launcher running? ({error})"
        ) from error
    return PrefixStore(f"generation-{place.generation}", store)


def clone(store: Store) -> Store:
    """The same store over a connection of its own: a client that waits for a key blocks all its other callers."""
    twin: Store = store.clone()  # type: ignore[attr-defined]
    return twin


def main() -> None:
    """Serve a store for one launch: print its port, then go on until standard input closes with the launcher."""
    store = serve_store(listen(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1"))
    print(store.port, flush=True)
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
