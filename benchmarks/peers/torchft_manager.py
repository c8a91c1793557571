"""torchft around one learner: its lighthouse, store and manager, which every use of it needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import nn


@contextmanager
def managed(net: nn.Module, learner: int, learners: int, port: int) -> Iterator[Any]:
    """The manager of one learner; an average needs `learners`. Learner 0 runs the lighthouse at `port` of this host."""
    from torchft.coordination import LighthouseServer
    from torchft.manager import Manager
    from torchft.process_group import ProcessGroupGloo

    house = LighthouseServer(bind=f"127.0.0.1:{port}", min_replicas=learners) if learner == 0 else None
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(),
        load_state_dict=net.load_state_dict,
        state_dict=net.state_dict,
        min_replica_size=learners,
        use_async_quorum=False,
        timeout=timedelta(seconds=30),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=f"http://127.0.0.1:{port}",
        hostname="127.0.0.1",
        replica_id=f"learner_{learner}",
        init_sync=False,
    )
    yield manager
    manager.shutdown()
    if house is not None:
        house.shutdown()
