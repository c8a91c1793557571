"""Options that describe a simulated cluster, shared by the commands that plan, simulate and compare."""

from __future__ import annotations

from typing import Annotated

import typer

from murmur.worlds.virtual.presets import PRESETS

KINDS = f"One of {', '.join(PRESETS)}."
Step = Annotated[float | None, typer.Option("--step-seconds", help="Seconds per gradient of one learner.")]
ModelBytes = Annotated[float | None, typer.Option(help="Size of the weights in bytes.")]
Jitter = Annotated[float, typer.Option(min=0.0, help="Spread of compute times (sigma of their logarithm).")]
Stragglers = Annotated[
    list[str] | None, typer.Option("--straggler", help="0=10x: learner 0 is 10 times slower; repeatable.")
]
Chosen = Annotated[list[str] | None, typer.Option("--strategy", help="Such as 'KAVG(K=16)'; repeatable.")]
