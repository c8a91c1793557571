"""One file, one algorithm, one equation. `ALL` is the registry used by the command line and the invariant tests."""

from collections.abc import Callable, Mapping
from typing import Any

from murmur.core import mixing
from murmur.core.learner import Strategy
from murmur.strategies.a2cid2 import A2CiD2
from murmur.strategies.adaptive_kavg import AdaComm, AdaptiveKAVG, Geometric, PostLocal, Quadratic, Stages
from murmur.strategies.adpsgd import ADPSGD
from murmur.strategies.asgd import ASGD, by_age, undamped
from murmur.strategies.bmuf import BMUF
from murmur.strategies.compressed import Compressed
from murmur.strategies.decoupled_diloco import DecoupledDiLoCo
from murmur.strategies.delay_by_one import DelayByOne
from murmur.strategies.diloco import DiLoCo
from murmur.strategies.downpour import Downpour
from murmur.strategies.easgd import EASGD
from murmur.strategies.gossip_pga import GossipPGA
from murmur.strategies.kavg import KAVG
from murmur.strategies.noloco import NoLoCo
from murmur.strategies.own_shares import OwnShares
from murmur.strategies.parameter_averaging import (
    Jobs,
    MaxChange,
    ParameterAveraging,
    ProportionalShrink,
    RunningMean,
    SaturationShrink,
    WeightedMean,
)
from murmur.strategies.quasi_global import QuasiGlobal
from murmur.strategies.slow_mo import SlowMo
from murmur.strategies.streaming_diloco import StreamingDiLoCo
from murmur.strategies.super_learners import SuperLearners
from murmur.strategies.sync_sgd import SyncSGD

ALL: Mapping[str, Callable[..., Strategy]] = {
    made.__name__: made
    for made in (
        SyncSGD,
        KAVG,
        BMUF,
        SlowMo,
        DiLoCo,
        StreamingDiLoCo,
        AdaptiveKAVG,
        ParameterAveraging,
        DelayByOne,
        GossipPGA,
        NoLoCo,
        ADPSGD,
        A2CiD2,
        QuasiGlobal,
        ASGD,
        Downpour,
        EASGD,
        DecoupledDiLoCo,
        SuperLearners,
        Compressed,
        OwnShares,
    )
}
PARTS: Mapping[str, Any] = {  # what strategies take as arguments, by the names that the command line understands
    **mixing.ALL,
    **{
        made.__name__: made
        for made in (
            *(by_age, undamped),
            *(AdaComm, Geometric, PostLocal, Quadratic, Stages),
            *(Jobs, MaxChange, ProportionalShrink, SaturationShrink, RunningMean, WeightedMean),
        )
    },
}

__all__ = [
    "ADPSGD",
    "ALL",
    "ASGD",
    "BMUF",
    "EASGD",
    "KAVG",
    "PARTS",
    "A2CiD2",
    "AdaptiveKAVG",
    "Compressed",
    "DecoupledDiLoCo",
    "DelayByOne",
    "DiLoCo",
    "Downpour",
    "GossipPGA",
    "NoLoCo",
    "OwnShares",
    "ParameterAveraging",
    "QuasiGlobal",
    "SlowMo",
    "StreamingDiLoCo",
    "SuperLearners",
    "SyncSGD",
]
