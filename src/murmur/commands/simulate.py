"""`murmur simulate`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import typer

from murmur.commands.options import Chosen, Kind, Settings, Spread, Step, grouped
from murmur.core.errors import SettingError
from murmur.execution.workers import cores_here
from murmur.run.configuration import recipe_names
from murmur.run.folder.contents import LATEST
from murmur.simulation.scenario import LEARNERS, Scenario, Simulation
from murmur.simulation.script_run import ScriptSimulation, is_script
from murmur.simulation.several_strategies import simulate_each
from murmur.worlds.process.environment import threads_per_learner

app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class ClusterOptions:
    """The machines; the fields are those of a scenario.

    Attributes:
        nodes: Number of nodes; by default as many as the learners need.
        trace: Folder of a real run; replay the compute times of its learners, scaled to this run's pieces.
        model_bytes: Bytes of a vector on the wire, in place of the model's own size.
    """

    panel: ClassVar[str] = "Cluster"
    learners: Annotated[
        int | None, typer.Option(min=1, help=f"Number of learners; by default the experiment's, or {LEARNERS}.")
    ] = None
    kind: Kind = None
    nodes: Annotated[int | None, typer.Option(min=1)] = None
    trace: Path | None = None
    model_bytes: float | None = None


@dataclass(frozen=True)
class FaultOptions:
    """Lost learners; the fields are those of a scenario.

    Attributes:
        kills: 5@30s: learner 5 is killed after 30 s; repeatable.
        stops: 3@10s+20s: learner 3 is suspended after 10 s for 20 s; repeatable.
        rejoins: 5@60s: the killed learner 5 starts again after 60 s; repeatable.
        lease_seconds: A learner silent for this long counts as lost.
    """

    panel: ClassVar[str] = "Faults"
    kills: Annotated[tuple[str, ...], typer.Option("--kill")] = ()
    stops: Annotated[tuple[str, ...], typer.Option("--stop")] = ()
    rejoins: Annotated[tuple[str, ...], typer.Option("--rejoin")] = ()
    lease_seconds: float | None = None


@dataclass(frozen=True)
class SimulationOptions:
    """The way to simulate, and the folder; all fields but `jobs` are those of a simulation.

    Attributes:
        timing_only: Compute no gradients and no loss; for many learners.
        timed_minibatches: With --timing-only: time this many minibatches of all learners; the hours of the budget
            follow from their pace. By default the whole budget.
        batched: Compute the gradients of many learners in one call, if the task supports it.
        jobs: Strategies simulated at the same time.
        threads: Compute threads per job; an equal share of the cores by default.
        out: Folder for records, trace, models and pictures; with several strategies, one folder below it for each. By
            default a new folder runs/DATE-NAME, with the link runs/latest to it.
        resume: Continue from the newest checkpoint in --out.
        force: Replace the runs in --out; other files there stay.
        tested: Model that is tested at the end, as in murmur train; none: no test.
    """

    panel: ClassVar[str] = "Execution"
    timing_only: bool = False
    timed_minibatches: Annotated[int | None, typer.Option(min=1)] = None
    batched: bool = False
    jobs: Annotated[int, typer.Option(min=1)] = 1
    threads: Annotated[int | None, typer.Option(min=1)] = None
    out: Path = LATEST
    resume: bool = False
    force: bool = False
    tested: Annotated[Literal["lowest", "last", "best", "averaged", "none"], typer.Option("--weights")] = "lowest"


Simulated = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT",
        help=f"A Python file with experiment(), a recipe ({', '.join(recipe_names())}), or a script of murmur.join.",
    ),
]
Arguments = Annotated[tuple[str, ...], typer.Argument(help="Words after -- are the arguments of a script.")]


def check_for_script(source: str, settings: Settings, chosen: Chosen, how: SimulationOptions) -> None:
    """Refuse options that are for experiments."""
    plain = SimulationOptions(threads=how.threads, out=how.out, force=how.force)
    given = [f.name for f in fields(how) if getattr(how, f.name) != getattr(plain, f.name)]
    names = ["--set"] * bool(settings) + ["--strategy"] * bool(chosen)
    names += [f"--{'weights' if name == 'tested' else name.replace('_', '-')}" for name in given]
    if names:
        raise SettingError(
            f"{names[0]} is for experiments, and {source} is a script, for it defines no experiment(): its own"
            " murmur.join sets strategy and training; leave the option out"
        )


HELP = """Train an experiment on a simulated cluster: real gradients, modelled seconds and bytes, bitwise repeatable.

Example: murmur simulate ctc --learners 16 --cluster v100-ethernet --straggler 0=10x
--strategy 'KAVG(K=8)' --strategy 'ADPSGD(mixing=randomized_ring)' --jobs 2 --out runs/sixteen

The seconds of a gradient come from --step-seconds, from --trace RUN of a real run, or from the experiment's own
cluster; otherwise they are measured on this machine. A simulation takes as long as the gradients of all learners one
after another; --timing-only skips them.

A script with your own loop (murmur.join) runs unchanged, once for each learner; words after -- are its arguments:
murmur simulate my_loop.py --learners 16 --straggler 0=10x --step-seconds 0.1 -- --lr 0.01

A step of its loop takes --step-seconds, those of --trace RUN, or the time that it takes here. What cannot be simulated
is refused with the reason.

A learner that is killed and restarted: murmur simulate toy --strategy ADPSGD --step-seconds 1 --lease-seconds 5
--kill 5@10s --rejoin 5@30s

The folder holds the files of murmur train, with virtual seconds, and simulated.json and simulated.png: loss against
virtual hours, staleness, consensus distance, idle learners, bytes. murmur report reads it like a real run.
"""


@app.command("simulate", help=HELP)
@grouped
def simulate_command(
    source: Simulated,
    arguments: Arguments = (),
    *,
    settings: Settings = (),
    chosen: Chosen = (),
    cluster: ClusterOptions,
    step: Step = None,
    spread: Spread,
    faults: FaultOptions,
    how: SimulationOptions,
) -> None:
    scenario = Scenario(step_seconds=step, **vars(cluster), **vars(spread), **vars(faults))
    if is_script(source):
        check_for_script(source, settings, chosen, how)
        threads = how.threads or cores_here()
        raise typer.Exit(ScriptSimulation(source, arguments, scenario, how.out, threads, how.force).run())
    if arguments:
        raise SettingError(f"{' '.join(arguments)}: an experiment takes no words of its own; --set changes its fields")
    values = vars(how) | {
        "threads": how.threads or threads_per_learner(cores_here(), how.jobs),
        "tested": None if how.tested == "none" else how.tested,
    }
    jobs = values.pop("jobs")
    raise typer.Exit(simulate_each(Simulation(source, settings, scenario=scenario, **values), chosen or [None], jobs))
