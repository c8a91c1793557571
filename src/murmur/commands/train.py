"""`murmur train`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from murmur.commands.options import Settings, Source, TestedWeights
from murmur.core.errors import SettingError
from murmur.core.path_checks import folder_to_write
from murmur.run.dry_run import dry_run
from murmur.run.folder.opened import LATEST
from murmur.run.preparation import tell_preparation
from murmur.run.task_checks import model_to_read, task_to_do, tested_model
from murmur.run.training import RECOGNISED, RunRequest, train
from murmur.worlds.process.launch.environment import place_of
from murmur.worlds.process.launch.secret import from_file

app = typer.Typer(add_completion=False)


Strategy = Annotated[str | None, typer.Option(help="A strategy instead of the file's, such as 'KAVG(K=8)'.")]
Learners = Annotated[int, typer.Option(min=1, help="Processes to start on this host.")]
Out = Annotated[
    Path,
    typer.Option(
        help="Folder for records, trace, checkpoints and models. runs/latest is a link to the newest run without this"
        " option: a new folder runs/DATE-NAME, or with --resume the one that it points to."
    ),
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Compute threads a learner; the cores are shared out otherwise.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue from the newest checkpoint in --out.")]
Force = Annotated[
    bool, typer.Option("--force", help="Replace a run that is in --out: its files are removed, and nothing else.")
]
Restarts = Annotated[int, typer.Option(min=0, help="How often each learner may be started again.")]
Init = Annotated[
    Path | None,
    typer.Option(help="Start from the weights of a trained model: a run's folder or a .safetensors file."),
]
Dry = Annotated[
    bool, typer.Option("--dry-run", help="Only show shapes, the first minibatch, memory and time; train nothing.")
]
Prepare = Annotated[
    bool, typer.Option("--prepare/--no-prepare", help="With --dry-run: prepare data that is not prepared yet, or not.")
]
World = Annotated[
    Literal["torch", "mpi"],
    typer.Option(help="What moves vectors between learners: gloo or NCCL under any launcher, or MPI under mpiexec."),
]
SecretFile = Annotated[
    Path | None,
    typer.Option(help="A file that only you may read; learners on several hosts know each other by what stands in it."),
]
LeaseSeconds = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        help="A learner silent for so long, and for ten median gradients, is lost; 1 (MPI: 30) otherwise.",
    ),
]

StartSeconds = Annotated[
    float | None,
    typer.Option(min=1, help="How long learners wait for one another at start, with a line every 10 s; 300 otherwise."),
]


HELP = """Train an experiment with one or more learners.

Example: murmur train ctc --learners 2 --strategy 'KAVG(K=8)' --set budget.epochs=4 --out runs/two

Look first, and continue from a trained model:

murmur train ctc --dry-run              (--no-prepare: what is known without preparing the data)

murmur train ctc --init runs/two --set optimizer.lr=0.001 --out runs/three

A run leaves model (the last consensus), best (of the lowest held-out loss) and averaged (the mean of the
averaged_checkpoints best checkpoints), each as .safetensors and .json, and score.json with the test figures of one.

The same file runs under torchrun, srun and mpiexec:

torchrun --nproc-per-node 2 -m murmur train FILE

mpiexec -n 2 murmur train FILE

On several hosts give all of them one secret, so that nobody else can take part:

(umask 077; head -c 32 /dev/urandom | base64 > secret); srun murmur train FILE --secret-file secret

Vectors then travel by gloo or NCCL all the same; --world mpi lets MPI itself move them (extra `mpi`). That pays
where MPI knows a network which gloo does not; but MPI does not outlive a lost learner, so the run then ends.

Exit codes: 0 the run has come to its end, model and score are written; 79 stopped by SIGTERM, SIGINT (Ctrl-C) or
SIGUSR1, saved, go on with --resume (a second SIGTERM or SIGINT ends at once); 75 a learner or the store was lost, go on
with --resume from the newest checkpoint; 1 a mistake, or training that diverged.
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
    world: World = "torch",
    secret_file: SecretFile = None,
    lease_seconds: LeaseSeconds = None,
    start_seconds: StartSeconds = None,
) -> None:
    request = RunRequest(
        source,
        tuple(settings or ()),
        strategy,
        learners,
        out,
        resume,
        restarts,
        threads,
        init,
        weights,
        world,
        secret_file,
        lease_seconds,
        start_seconds,
        force,
    )
    raise typer.Exit(run(request, dry, prepare))


def run(request: RunRequest, dry: bool, prepare: bool) -> int:
    """Train, or only look, after all paths and names have been checked.

    Returns:
        The exit status.

    Raises:
        SettingError: data is not to be prepared, but to be trained on.
    """
    if not prepare and not dry:
        raise SettingError("--no-prepare is for --dry-run: training needs its data prepared")
    check(request, dry)
    if dry:
        return dry_run(request, prepared_only=not prepare)
    status = train(request)
    if status == 0 and place_of() is None:
        for line in next_commands(request.source, request.out):
            typer.echo(line, err=True)
    return status


def next_commands(source: str, out: Path) -> list[str]:
    """What can be done with a run that has ended, as commands; those for speech where it has recognised some."""
    out = out.parent / out.readlink() if out.is_symlink() else out  # the link will point to later runs
    run_folder, experiment = shlex.quote(str(out)), shlex.quote(source)
    speech = [
        f"murmur decode {experiment} --model {run_folder} --out {shlex.quote(str(out / 'decoded'))}",
        f"murmur transcribe {run_folder} FILE.wav",
        f"murmur export {run_folder} --out {shlex.quote(str(out / 'exported'))}",
    ]
    commands = [f"murmur report {run_folder}", *(speech if (out / RECOGNISED).is_file() else [])]
    return ["next:", *(f"  {command}" for command in commands)]


def check(request: RunRequest, dry: bool) -> None:
    """Check paths and names of a training, before anything is prepared.

    Raises:
        SettingError, ValueError: names what is missing or does not fit.
    """
    folder_to_write(request.out, "--out")
    if request.init is not None:
        model_to_read(request.init)
    if request.secret_file is not None:
        from_file(request.secret_file)
    experiment = request.experiment()
    tested_model(experiment, request.tested)
    task_to_do(experiment.task)
    if place_of() is None and not dry:
        tell_preparation(experiment.task)
