"""Two workers of a Dask scheduler on this host, for tests and benchmarks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from murmur.execution.executors import Engine, connected

ROOT = Path(__file__).parents[2]
needs_dask = pytest.mark.skipif(
    find_spec("distributed") is None, reason="needs dask and distributed: pip install 'murmur-asr[cluster]'"
)


PROGRAM = """
import json, sys
import dask, distributed
if __name__ == "__main__":
    dask.config.set({"distributed.deploy.lost-worker-timeout": "600s"})  # on a busy host a start takes long
    with distributed.LocalCluster(**json.loads(sys.argv[1])) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


@contextmanager
def dask_engine(workers: int = 2, folder: Path | None = None, **changes: Any) -> Iterator[Engine]:
    """Context with the engine of a cluster that ends with it.

    The cluster has a process of its own: Dask changes the environment variables of the process that starts workers.
    """
    given = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None, **changes}
    words = [sys.executable, "-c", PROGRAM, json.dumps(given)]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin:
            yield Engine(f"dask:{process.stdout.readline().strip()}", folder=folder)
            with suppress(ValueError):  # there is no client
                import_module("distributed").default_client().close()
            connected.cache_clear()
