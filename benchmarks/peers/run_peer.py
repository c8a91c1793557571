"""One learner of a peer system on the cross-check: run_peer.py accelerate|torchft LEARNER PORT. Prints the checksum."""

from __future__ import annotations

import os
import sys

import torch
from oracle import LEARNERS, RATE, K, batches, checksum, model
from torch.nn.functional import cross_entropy
from torchft_manager import managed


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
    from torchft.local_sgd import LocalSGD

    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    with managed(net, learner, LEARNERS, port) as manager:
        with LocalSGD(manager, net, optimizer, sync_every=K):
            for x, y in batches(learner):
                optimizer.zero_grad()
                cross_entropy(net(x), y).backward()
                optimizer.step()
        return checksum(net)


if __name__ == "__main__":
    torch.set_num_threads(1)
    system = {"accelerate": accelerate, "torchft": torchft}[sys.argv[1]]
    print(f"checksum {system(int(sys.argv[2]), int(sys.argv[3]))!r}", flush=True)
