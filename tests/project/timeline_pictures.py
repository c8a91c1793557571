"""Draws the timelines of README.md and docs/strategies.md: four learners, one of them slow, on the virtual clock.

python -m tests.project.timeline_pictures
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from murmur.commands.timeline import ClusterOptions
from murmur.report.swim_lanes import stand_alone
from murmur.run.configuration import strategy_of
from murmur.simulation.scenario import Scenario
from murmur.simulation.timeline import strategy_timeline
from murmur.strategies import ALL
from tests.project.generated_block import ROOT

FOLDER = ROOT / "docs" / "timelines"
FREQUENT = {  # strategies that average too rarely for a short picture, with settings that do it more often
    **{name: f"{name}(K=4)" for name in ("KAVG", "BMUF", "SlowMo", "DiLoCo", "NoLoCo")},
    "StreamingDiLoCo": "StreamingDiLoCo(K=4, fragments=2, tau=1)",
    "AdaptiveKAVG": "AdaptiveKAVG(K=Stages((4,)))",
    "ParameterAveraging": "ParameterAveraging(frames_per_iteration=4, jobs=Jobs(4))",
    "GossipPGA": "GossipPGA(H=4)",
    "DecoupledDiLoCo": "DecoupledDiLoCo(K=4, fragments=2)",
    "Compressed": "Compressed(KAVG(K=2), 'int8')",
}


def drawn(strategies: tuple[str, ...], straggler: str, gradients: int) -> str:
    """Return a picture as `murmur timeline` writes it."""
    cluster = Scenario(**vars(ClusterOptions()), stragglers=(straggler,)).cluster_of_loops()
    return stand_alone(strategy_timeline({text: strategy_of(text) for text in strategies}, cluster, gradients))


PICTURES: Mapping[Path, Callable[[], str]] = {
    FOLDER / "slow_learner.svg": partial(drawn, ("SyncSGD()", "KAVG(K=4)", "ADPSGD()"), "0=3x", 16),
    **{FOLDER / f"{name}.svg": partial(drawn, (FREQUENT.get(name, f"{name}()"),), "1=2x", 12) for name in ALL},
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, draw in PICTURES.items():
        new = draw()
        if not path.exists() or new != path.read_text(encoding="utf-8"):
            path.write_text(new, encoding="utf-8")
            sys.stdout.write(f"{path.relative_to(ROOT)}\n")
