"""Two workers of a Dask scheduler on this host, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from murmur.execution.executors import Engine, connected

needs_dask = pytest.mark.skipif(
    find_spec("distributed") is None, reason="needs dask and distributed: pip install 'murmur[cluster]'"
)


@contextmanager
def dask_engine(workers: int = 2, folder: Path | None = None, **changes: Any) -> Iterator[Engine]:
    """Context with the engine of a cluster that ends with it."""
    distributed, dask = import_module("distributed"), import_module("dask")
    given = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None, **changes}
    patient = dask.config.set({"distributed.deploy.lost-worker-timeout": "600s"})  # on a busy host a start takes long
    with patient, distributed.LocalCluster(**given) as cluster:
        yield Engine(f"dask:{cluster.scheduler_address}", folder=folder)
        with suppress(ValueError):  # there is no client
            distributed.default_client().close()
        connected.cache_clear()
