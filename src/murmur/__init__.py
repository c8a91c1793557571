"""Distributed training of acoustic models: strategies, worlds, and everything around them.

The public names below are imported when they are first used. `import murmur` itself imports neither torch nor numpy,
so that the store process of a launch and the help of the program start quickly.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from murmur.core.errors import DamagedCheckpoint, IncompleteRun, SettingError
    from murmur.core.facts import Facts
    from murmur.core.group import Group, PeerLost, WorldMismatch
    from murmur.core.learner import Learner, Strategy
    from murmur.core.mixing import exponential, pairwise, random_pairs, randomized_ring, ring, uniform
    from murmur.core.stop_signals import STOPPED_STATUS
    from murmur.core.world import World
    from murmur.engine.budget import Budget
    from murmur.engine.experiment import Experiment
    from murmur.engine.optim.optimizer import SGD, Adam, NaturalGradientSGD, PreconditionedSGD
    from murmur.engine.scaling import Auto, Fixed, scaling
    from murmur.engine.schedule import Constant, Cosine, Exponential, LargeBatch, NewBob, WarmUpAnneal
    from murmur.engine.task import Loss, Score, Task
    from murmur.engine.trainer import Trainer
    from murmur.strategies import (
        ADPSGD,
        ASGD,
        BMUF,
        EASGD,
        KAVG,
        A2CiD2,
        AdaptiveKAVG,
        Compressed,
        DecoupledDiLoCo,
        DelayByOne,
        DiLoCo,
        Downpour,
        GossipPGA,
        NoLoCo,
        OwnShares,
        ParameterAveraging,
        QuasiGlobal,
        SlowMo,
        StreamingDiLoCo,
        SuperLearners,
        SyncSGD,
    )
    from murmur.user_loop.joined import Joined, Plan, join
    from murmur.user_loop.routed import routed
    from murmur.worlds.mpi.world import MpiWorld
    from murmur.worlds.process.environment import take_place
    from murmur.worlds.process.world import ProcessWorld
    from murmur.worlds.threads import ThreadWorld
    from murmur.worlds.virtual.cluster import Cluster
    from murmur.worlds.virtual.world import VirtualWorld

NAMES = {  # module -> public names
    "core.errors": ("DamagedCheckpoint", "IncompleteRun", "SettingError"),
    "core.facts": ("Facts",),
    "core.group": ("Group", "PeerLost", "WorldMismatch"),
    "core.learner": ("Learner", "Strategy"),
    "core.mixing": ("exponential", "pairwise", "random_pairs", "randomized_ring", "ring", "uniform"),
    "core.stop_signals": ("STOPPED_STATUS",),
    "core.world": ("World",),
    "engine.budget": ("Budget",),
    "engine.experiment": ("Experiment",),
    "engine.optim.optimizer": ("SGD", "Adam", "NaturalGradientSGD", "PreconditionedSGD"),
    "engine.scaling": ("Auto", "Fixed", "scaling"),
    "engine.schedule": ("Constant", "Cosine", "Exponential", "LargeBatch", "NewBob", "WarmUpAnneal"),
    "engine.task": ("Loss", "Score", "Task"),
    "engine.trainer": ("Trainer",),
    "strategies": (
        *("ADPSGD", "ASGD", "BMUF", "KAVG", "A2CiD2", "AdaptiveKAVG", "Compressed", "DecoupledDiLoCo", "DelayByOne"),
        *("DiLoCo", "Downpour", "EASGD", "GossipPGA", "NoLoCo", "OwnShares", "ParameterAveraging", "QuasiGlobal"),
        "SlowMo",
        *("StreamingDiLoCo", "SuperLearners", "SyncSGD"),
    ),
    "user_loop.joined": ("Joined", "Plan", "join"),
    "user_loop.routed": ("routed",),
    "worlds.mpi.world": ("MpiWorld",),
    "worlds.process.environment": ("take_place",),
    "worlds.process.world": ("ProcessWorld",),
    "worlds.threads": ("ThreadWorld",),
    "worlds.virtual.cluster": ("Cluster",),
    "worlds.virtual.world": ("VirtualWorld",),
}
HOMES = {name: module for module, names in NAMES.items() for name in names}

__all__ = [
    "ADPSGD",
    "ASGD",
    "BMUF",
    "EASGD",
    "KAVG",
    "SGD",
    "STOPPED_STATUS",
    "A2CiD2",
    "Adam",
    "AdaptiveKAVG",
    "Auto",
    "Budget",
    "Cluster",
    "Compressed",
    "Constant",
    "Cosine",
    "DamagedCheckpoint",
    "DecoupledDiLoCo",
    "DelayByOne",
    "DiLoCo",
    "Downpour",
    "Experiment",
    "Exponential",
    "Facts",
    "Fixed",
    "GossipPGA",
    "Group",
    "IncompleteRun",
    "Joined",
    "LargeBatch",
    "Learner",
    "Loss",
    "MpiWorld",
    "NaturalGradientSGD",
    "NewBob",
    "NoLoCo",
    "OwnShares",
    "ParameterAveraging",
    "PeerLost",
    "Plan",
    "PreconditionedSGD",
    "ProcessWorld",
    "QuasiGlobal",
    "Score",
    "SettingError",
    "SlowMo",
    "Strategy",
    "StreamingDiLoCo",
    "SuperLearners",
    "SyncSGD",
    "Task",
    "ThreadWorld",
    "Trainer",
    "VirtualWorld",
    "WarmUpAnneal",
    "World",
    "WorldMismatch",
    "exponential",
    "join",
    "pairwise",
    "random_pairs",
    "randomized_ring",
    "ring",
    "routed",
    "scaling",
    "take_place",
    "uniform",
]


def __getattr__(name: str) -> Any:
    if name in HOMES:
        return getattr(import_module(f"murmur.{HOMES[name]}"), name)
    raise AttributeError(f"module 'murmur' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
