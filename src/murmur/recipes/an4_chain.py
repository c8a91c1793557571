"""Chain model on AN4: lattice-free MMI from a flat start, at a third of the frame rate.

    murmur train an4_chain --set task.hybrid.corpus=FOLDER --out runs/chain
    murmur train an4_chain --set task.hybrid.corpus=FOLDER --set 'task.tree=TreeConfig()' --out runs/chain_tree

Set and grammar are those of the recipe `an4`, features its cepstra, normalised after derivatives. The
settings have not been tuned.

Word error rates of test with seeds 0, 1 and 2: from a flat start 16.3, 14.7 and 15.4 %, with a tree 14.2, 13.7 and 14.2
%, where `an4` has 5.7, 5.6 and 6.1 %. A run from nothing takes 0.15 hours on one core of an AMD EPYC with AVX-512,
beside other work; that with a tree one or two minutes more for its Gaussian systems.
"""

from __future__ import annotations

from dataclasses import replace

from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import Adam
from murmur.recipes import an4
from murmur.speech.models import TdnnF
from murmur.tasks.chain.task import ChainTask
from murmur.tasks.hybrid.config import Chunks, FrontEnd
from murmur.tasks.hybrid.graphs import CHAIN_SCALES
from murmur.tasks.hybrid.task import HybridTask


def experiment() -> Experiment:
    """Twenty epochs of a factored TDNN on minibatches of 16 utterances."""
    first = an4.experiment()
    assert isinstance(first.task, HybridTask)
    decoding = first.task.decoding
    hybrid = replace(
        first.task,
        front=FrontEnd(normalised="all"),
        chunks=Chunks(size=16),
        decoding=replace(decoding, network=replace(decoding.network, scales=CHAIN_SCALES)),
    )
    task = ChainTask(hybrid, TdnnF(hidden=256, bottleneck=64, stack=3))
    return replace(first, task=task, budget=Budget(epochs=20), optimizer=Adam(lr=1e-3), evaluate_every_epochs=1.0)
