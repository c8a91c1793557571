"""`murmur train`."""

from __future__ import annotations

import logging
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from murmur.commands.options import Settings, Source, Threads, grouped
from murmur.core.errors import SettingError
from murmur.core.path_checks import folder_to_write
from murmur.core.printable import say
from murmur.engine.experiment import Experiment
from murmur.engine.task import ContinuesTraining
from murmur.run.dry_run import dry_run
from murmur.run.folder.contents import LATEST
from murmur.run.learner import RECOGNISED
from murmur.run.preparation import task_to_do, tell_preparation
from murmur.run.request import RunRequest
from murmur.run.saved_model import Choice, model_to_read, tested_model
from murmur.run.training import train
from murmur.worlds.process.environment import place_of
from murmur.worlds.process.secret import from_file

log = logging.getLogger(__name__)

app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class RunOptions:
    """The run; the fields are those of a run request.

    Attributes:
        strategy: Strategy in place of the experiment's, such as 'KAVG(K=8)'.
        learners: Processes to start on this host.
        out: Folder for records, trace, checkpoints and models. By default a new folder runs/DATE-NAME, with the link
            runs/latest to it; with --resume the folder that runs/latest points to.
        resume: Continue from the newest checkpoint in --out.
        force: Replace the run in --out; other files there stay.
        restarts: Maximal number of restarts of each learner.
        init: Start from the weights of a trained model: a run's folder or a .safetensors file.
        tested: Model that is tested and represents the run: lowest (the one of the lowest held-out loss), last, best
            (best checkpoint) or averaged (mean of the best checkpoints).
    """

    strategy: str | None = None
    learners: Annotated[int, typer.Option(min=1)] = 1
    out: Path = LATEST
    threads: Threads = None
    resume: bool = False
    force: bool = False
    restarts: Annotated[int, typer.Option(min=0)] = 0
    init: Path | None = None
    tested: Annotated[Choice, typer.Option("--weights")] = "lowest"


@dataclass(frozen=True)
class DryRun:
    """A look at the run before it is trained.

    Attributes:
        dry: Show shapes, the first minibatch, memory and time; train nothing.
        prepare: With --dry-run: prepare missing data first, or show only what is known without it.
        steps: With --dry-run: compute first gradients, or leave out loss and time, for a large network.
    """

    dry: Annotated[bool, typer.Option("--dry-run")] = False
    prepare: bool = True
    steps: bool = True

    def __post_init__(self) -> None:
        if not self.prepare and not self.dry:
            raise SettingError("--no-prepare is for --dry-run: training needs its data prepared")
        if not self.steps and not self.dry:
            raise SettingError("--no-steps is for --dry-run: training computes gradients")


@dataclass(frozen=True)
class Together:
    """Processes that train together; the fields are those of a run request.

    Attributes:
        world: Transport of vectors between learners: gloo or NCCL under any launcher, or MPI under mpiexec.
        secret_file: File with a secret, readable by you alone, that authenticates learners on several hosts.
        lease_seconds: A learner counts as lost when it is silent for this long and for ten median gradients; default 1
            (MPI: 30).
        start_seconds: Longest wait for the other learners at start; default 300.
        grace_seconds: Longest wait for the learners to save when the run is stopped; by default no limit.
    """

    world: Literal["torch", "mpi"] = "torch"
    secret_file: Path | None = None
    lease_seconds: Annotated[float | None, typer.Option(min=0.1)] = None
    start_seconds: Annotated[float | None, typer.Option(min=1)] = None
    grace_seconds: Annotated[float | None, typer.Option(min=0)] = None


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
@grouped
def train_command(
    source: Source, *, settings: Settings = (), what: RunOptions, look: DryRun, together: Together
) -> None:
    request = RunRequest(source=source, settings=settings, **vars(what), **vars(together))
    experiment = checked_experiment(request, look.dry)
    if look.dry:
        raise typer.Exit(dry_run(request, experiment, prepared_only=not look.prepare, steps=look.steps))
    status = train(request, experiment)
    if status == 0 and place_of() is None:
        for line in next_commands(source, what.out):
            say(line, err=True)
    raise typer.Exit(status)


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
    """Return the experiment of a request, after a check of all paths and names; nothing is prepared yet."""
    folder_to_write(request.out, "--out")
    if request.init is not None:
        model_to_read(request.init)
    if request.secret_file is not None:
        from_file(request.secret_file)
    experiment = request.experiment()
    tested_model(experiment, request.tested)
    task_to_do(experiment.task)
    task = experiment.task
    if experiment.initial is None and isinstance(task, ContinuesTraining) and task.continues and not request.resume:
        log.warning("training begins with random weights: give --init %s", task.continues)
    if place_of() is None and not dry:
        tell_preparation(experiment.task)
    return experiment
