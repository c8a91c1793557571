"""Random frames: each once a pass, as the network sees them."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import numpy as np
import torch

from murmur.speech.models import Dnn
from murmur_papers.tasks.random_frames import FrameTask


class Utterances:
    """Two utterances of 7 and 6 frames, three values a frame."""

    lengths = (7, 6)

    def __len__(self) -> int:
        return 2

    def feats(self, u: int) -> np.ndarray:
        return np.random.default_rng(u).standard_normal((self.lengths[u], 3), dtype=np.float32)

    def targets(self, u: int) -> np.ndarray:
        return np.arange(self.lengths[u], dtype=np.uint16) + 10 * u


def test_frames_are_those_that_the_network_sees_each_once_a_pass() -> None:
    network = Dnn(hidden=4, layers=2, context=2)
    material = SimpleNamespace(network=network, data=SimpleNamespace(train=Utterances()))
    task = FrameTask(material, frames=4, seed=3)
    model = network.build(3, 20)
    spliced = {
        10 * u + t: frame
        for u in range(2)
        for t, frame in enumerate(model.spliced(torch.from_numpy(Utterances().feats(u))[None])[0])
    }
    for epoch in range(2):
        seen = []
        for n, place in product(range(task.per_epoch), range(4)):
            x, y = task.minibatch(epoch * task.per_epoch + n)
            assert torch.equal(x[place], spliced[int(y[place])])
            seen.append(int(y[place]))
        assert len(seen) == len(set(seen)) == 12
    assert not torch.equal(task.minibatch(0)[1], task.minibatch(3)[1])
    assert torch.equal(task.minibatch(0)[0], FrameTask(material, 4, 3).minibatch(0)[0])
    x, y = task.minibatch(0)
    logits = {
        10 * u + t: logit
        for u in range(2)
        for t, logit in enumerate(model(torch.from_numpy(Utterances().feats(u))[None])[0])
    }
    wanted = sum(-logits[int(s)].log_softmax(0)[s] for s in y)
    assert torch.allclose(task.loss(model, (x, y)).total, wanted)
