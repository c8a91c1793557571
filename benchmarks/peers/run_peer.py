"""One learner of a peer system on the cross-check: run_peer.py accelerate|torchft LEARNER PORT. Prints the checksum."""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from oracle import LEARNERS, RATE, K, batches, checksum, model
from torch.nn.functional import cross_entropy


def accelerate(learner: int, port: int) -> float:
    from accelerate import Accelerator
    from accelerate.local_sgd import LocalSGD

    place = {"RANK": learner, "LOCAL_RANK": learner, "WORLD_SIZE": LEARNERS, "MASTER_PORT": port}
    os.environ.update({k: str(v) for k, v in place.items()}, MASTER_ADDR="127.0.0.1", ACCELERATE_USE_CPU="true")
    accelerator = Accelerator(cpu=True)
    torch.set_num_threads(1)  # it has just chosen another number, and sums would be rounded differently
    net = model()
    net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=RATE))
    with LocalSGD(accelerator=accelerator, model=net, local_sgd_steps=K, enabled=True) as local:
        for x, y in batches(learner):
            optimizer.zero_grad()
            accelerator.backward(cross_entropy(net(x), y))
            optimizer.step()
            local.step()
    return checksum(accelerator.unwrap_model(net))


def torchft(learner: int, port: int) -> float:
    from torchft.coordination import LighthouseServer
    from torchft.local_sgd import LocalSGD
    from torchft.manager import Manager
    from torchft.process_group import ProcessGroupGloo

    house = LighthouseServer(bind=f"127.0.0.1:{port}", min_replicas=LEARNERS) if learner == 0 else None
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    manager = Manager(
        pg=ProcessGroupGloo(),
        load_state_dict=net.load_state_dict,
        state_dict=net.state_dict,
        min_replica_size=LEARNERS,
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
    with LocalSGD(manager, net, optimizer, sync_every=K):
        for x, y in batches(learner):
            optimizer.zero_grad()
            cross_entropy(net(x), y).backward()
            optimizer.step()
    result = checksum(net)
    manager.shutdown()
    if house is not None:
        house.shutdown()
    return result


if __name__ == "__main__":
    torch.set_num_threads(1)
    system = {"accelerate": accelerate, "torchft": torchft}[sys.argv[1]]
    print(f"checksum {system(int(sys.argv[2]), int(sys.argv[3]))!r}", flush=True)
