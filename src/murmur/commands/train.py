"""`murmur train`."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from murmur.commands.options import Settings, Source, TestedWeights
from murmur.core.errors import SettingError
from murmur.core.path_checks import folder_to_write
from murmur.core.printable import say
from murmur.engine.experiment import Experiment
from murmur.engine.task import FineTunes
from murmur.run.dry_run import dry_run
from murmur.run.folder.opened import LATEST
from murmur.run.preparation import tell_preparation
from murmur.run.request import RunRequest
from murmur.run.score import RECOGNISED
from murmur.run.task_checks import model_to_read, task_to_do, tested_model
from murmur.run.training import train
from murmur.worlds.process.launch.environment import place_of
from murmur.worlds.process.launch.secret import from_file

log = logging.getLogger(__name__)

app = typer.Typer(add_completion=False)


Strategy = Annotated[str | None, typer.Option(help="Strategy in place of the experiment's, such as 'KAVG(K=8)'.")]
Learners = Annotated[int, typer.Option(min=1, help="Processes to start on this host.")]
Out = Annotated[
    Path,
    typer.Option(
        help="Folder for records, trace, checkpoints and models. By default a new folder runs/DATE-NAME, with the link"
        " runs/latest to it; with --resume the folder that runs/latest points to."
    ),
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Compute threads per learner; an equal share of the cores by default.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue from the newest checkpoint in --out.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the run in --out; other files there stay.")]
Restarts = Annotated[int, typer.Option(min=0, help="Maximal number of restarts of each learner.")]
Init = Annotated[
    Path | None,
    typer.Option(help="Start from the weights of a trained model: a run's folder or a .safetensors file."),
]
Dry = Annotated[
    bool, typer.Option("--dry-run", help="Show shapes, the first minibatch, memory and time; train nothing.")
]
Prepare = Annotated[
    bool,
    typer.Option(
        "--prepare/--no-prepare",
        help="With --dry-run: prepare missing data first, or show only what is known without it.",
    ),
]
Steps = Annotated[
    bool,
    typer.Option(
        "--steps/--no-steps",
        help="With --dry-run: compute first gradients, or leave out loss and time, for a large network.",
    ),
]
World = Annotated[
    Literal["torch", "mpi"],
    typer.Option(help="Transport of vectors between learners: gloo or NCCL under any launcher, or MPI under mpiexec."),
]
SecretFile = Annotated[
    Path | None,
    typer.Option(help="File with a secret, readable by you alone, that authenticates learners on several hosts."),
]
LeaseSeconds = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        help="A learner counts as lost when it is silent for this long and for ten median gradients; default 1"
        " (MPI: 30).",
    ),
]

StartSeconds = Annotated[
    float | None,
    typer.Option(min=1, help="Longest wait for the other learners at start; default 300."),
]

GraceSeconds = Annotated[
    float | None,
    typer.Option(min=0, help="Longest wait for the learners to save when the run is stopped; by default no limit."),
]


HELP = """Train an experiment with one or more learners.

Example: murmur train ctc --learners 2 --strategy 'KAVG(K=8)' --set budget.epochs=4 --out runs/two

Check an experiment without training it (--no-prepare: without preparing its data), or continue from a trained model:

murmur train ctc --dry-run --no-prepare

murmur train ctc --init runs/two --set optimizer.lr=0.001 --out runs/three

A run writes three models, each as .safetensors and .json: model (the last consensus), best (of the lowest held-out
loss) and averaged (the mean of the averaged_checkpoints best checkpoints). score.json holds the test figures of one.

The same file runs under torchrun, srun and mpiexec:

torchrun --nproc-per-node 2 -m murmur train FILE

mpiexec -n 2 murmur train FILE

On several hosts, give all learners the same secret, so that no other process can join:

(umask 077; head -c 32 /dev/urandom | base64 > secret); srun murmur train FILE --secret-file secret

Under mpiexec, vectors still travel by gloo or NCCL; --world mpi sends them by MPI itself (extra `mpi`). Use it on
networks that MPI supports and gloo does not. A run under MPI does not tolerate the loss of a learner.

Exit status: 0, the run is complete, model and score are written; 79, stopped by SIGTERM, SIGINT (Ctrl-C) or SIGUSR1
and saved, continue with --resume (a second SIGTERM or SIGINT ends the run at once); 75, a learner or the store was
lost, continue with --resume from the newest checkpoint; 1, a user error, or training diverged.
"""


@app.command("train", help=HELP)
def train_command(
    source: Source,
    settings: Settings = None,
    strategy: Strategy = None,
    learners: Learners = 1,
    out: Out = LATEST,
    threads: Threads = None,
    resume: Resume = False,
    force: Force = False,
    restarts: Restarts = 0,
    init: Init = None,
    weights: TestedWeights = "lowest",
    dry: Dry = False,
    prepare: Prepare = True,
    steps: Steps = True,
    world: World = "torch",
    secret_file: SecretFile = None,
    lease_seconds: LeaseSeconds = None,
    start_seconds: StartSeconds = None,
    grace_seconds: GraceSeconds = None,
) -> None:
    request = RunRequest(
        source=source,
        settings=tuple(settings or ()),
        strategy=strategy,
        learners=learners,
        out=out,
        resume=resume,
        restarts=restarts,
        threads=threads,
        init=init,
        tested=weights,
        world=world,
        secret_file=secret_file,
        lease_seconds=lease_seconds,
        start_seconds=start_seconds,
        grace_seconds=grace_seconds,
        force=force,
    )
    raise typer.Exit(run(request, dry, prepare, steps))


def run(request: RunRequest, dry: bool, prepare: bool, steps: bool = True) -> int:
    """Check all paths and names, then train or make a dry run.

    Returns:
        The exit status.

    Raises:
        SettingError: `prepare` or `steps` is False without `dry`.
    """
    if not prepare and not dry:
        raise SettingError("--no-prepare is for --dry-run: training needs its data prepared")
    if not steps and not dry:
        raise SettingError("--no-steps is for --dry-run: training computes gradients")
    experiment = checked_experiment(request, dry)
    if dry:
        return dry_run(request, experiment, prepared_only=not prepare, steps=steps)
    status = train(request, experiment)
    if status == 0 and place_of() is None:
        for line in next_commands(request.source, request.out):
            say(line, err=True)
    return status


def next_commands(source: str, out: Path) -> list[str]:
    """Return the commands that can follow a finished run; those for speech if the run has recognised speech."""
    out = out.parent / out.readlink() if out.is_symlink() else out  # the link will point to later runs
    run_folder, experiment = shlex.quote(str(out)), shlex.quote(source)
    speech = [
        f"murmur decode {experiment} --model {run_folder} --out {shlex.quote(str(out / 'decoded'))}",
        f"murmur transcribe {run_folder} FILE.wav",
        f"murmur export {run_folder} --out {shlex.quote(str(out / 'exported'))}",
    ]
    commands = [f"murmur report {run_folder}", *(speech if (out / RECOGNISED).is_file() else [])]
    return ["next:", *(f"  {command}" for command in commands)]


def checked_experiment(request: RunRequest, dry: bool) -> Experiment:
    """Return the experiment of a request, after a check of all paths and names; nothing is prepared yet.

    Raises:
        SettingError, ValueError: something is missing or does not fit; the message names it.
    """
    folder_to_write(request.out, "--out")
    if request.init is not None:
        model_to_read(request.init)
    if request.secret_file is not None:
        from_file(request.secret_file)
    experiment = request.experiment()
    tested_model(experiment, request.tested)
    task_to_do(experiment.task)
    if isinstance(experiment.task, FineTunes) and request.init is None and not request.resume:
        log.warning("training begins with random weights: give --init %s", experiment.task.begins_with)
    if place_of() is None and not dry:
        tell_preparation(experiment.task)
    return experiment
