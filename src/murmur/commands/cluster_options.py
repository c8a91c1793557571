"""Options about a cluster on paper, for the commands that plan and simulate."""

from __future__ import annotations

from typing import Annotated

import typer

from murmur.worlds.virtual.presets import PRESETS

KINDS = f"One of {', '.join(PRESETS)}."
Step = Annotated[float | None, typer.Option("--step-seconds", help="Of one learner's gradient.")]
ModelBytes = Annotated[float | None, typer.Option(help="Of the weights.")]
Jitter = Annotated[float, typer.Option(min=0.0, help="Spread (sigma of the logarithm) of compute times.")]
Stragglers = Annotated[
    list[str] | None, typer.Option("--straggler", help="0=10x: learner 0 is 10 times slower; repeatable.")
]
Chosen = Annotated[list[str] | None, typer.Option("--strategy", help="Such as 'KAVG(K=16)'; repeatable.")]
