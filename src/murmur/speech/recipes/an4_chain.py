"""Chain model on AN4: lattice-free MMI from a flat start, at a third of the frame rate.

Chain models are experimental until they are better than cross-entropy on AN4.

    murmur train an4_chain --set task.corpus=FOLDER --out runs/chain
    murmur train an4_chain --set task.corpus=FOLDER --set 'task.criterion.tree=TreeConfig()' --out runs/chain_tree

Set and grammar are those of the recipe `an4`, features its cepstra, normalised after derivatives. The
settings have not been tuned.

Word error rates of test with seeds 0, 1 and 2: from a flat start 16.3, 14.7 and 15.4 %, with a tree 14.2, 13.7 and 14.2
%, where `an4` has 5.7, 5.6 and 6.1 %. A run from nothing takes 0.15 hours on one core of an AMD EPYC with AVX-512,
beside other work; that with a tree one or two minutes more for its Gaussian systems.
"""

from __future__ import annotations

from dataclasses import replace

from murmur.engine.experiment import Experiment
from murmur.speech.features.chunks import Chunks
from murmur.speech.models import TdnnF
from murmur.speech.recipes import an4
from murmur.speech.recipes.hybrid import trained
from murmur.speech.tasks.graph_sources import CHAIN_SCALES
from murmur.speech.tasks.hybrid.config import ChainMmi, FrontEnd


def experiment() -> Experiment:
    """Twenty epochs of a factored TDNN on minibatches of 16 utterances."""
    system = an4.system()
    task = replace(
        system,
        front=FrontEnd(normalised="all"),
        chunks=Chunks(size=16),
        network=TdnnF(hidden=256, bottleneck=64, stack=3),
        criterion=ChainMmi(),
        decoding=replace(system.decoding, network=replace(system.decoding.network, scales=CHAIN_SCALES), scored="none"),
    )
    return trained(task, epochs=20, rate=1e-3)
