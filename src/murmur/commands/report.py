"""`murmur report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from murmur.commands.options import grouped
from murmur.core.errors import SettingError
from murmur.core.path_checks import file_to_write, folder_to_write, not_an_input
from murmur.core.plain_files import refuse_link
from murmur.core.printable import say
from murmur.report.events import write_events
from murmur.report.page import write_report
from murmur.run.timed import timed

app = typer.Typer(add_completion=False)


Runs = Annotated[
    tuple[Path, ...], typer.Argument(metavar="RUN...", help="Folders written by murmur train, simulate or compare.")
]


@dataclass(frozen=True)
class Output:
    """The page, or event files.

    Attributes:
        out: Page to write; by default RUN/report.html of the first run.
        audio: Folder of UTTERANCE.wav, .flac, ..., or a wav.scp; shows recordings beside the worst utterances.
        tensorboard: Write TensorBoard event files into DIR, one folder per run, instead of a page.
    """

    out: Path | None = None
    audio: tuple[Path, ...] = ()
    tensorboard: Annotated[Path | None, typer.Option(metavar="DIR")] = None


@app.command()
@grouped
def report(runs: Runs, *, output: Output) -> None:
    """Make one self-contained HTML page of one or more runs: best run, curves, time, averaging, worst words.

    Example: murmur report runs/one runs/two --out report.html

    A folder of murmur compare gives a page of all its cells. Unfinished runs are reported up to their latest record.
    The page needs no network.

    murmur report runs/two --audio data/test/wav.scp

    murmur report runs/one runs/two --tensorboard runs/events; tensorboard --logdir runs/events
    """
    out, audio, tensorboard = output.out, output.audio, output.tensorboard
    for run in runs:
        if not run.is_dir():
            raise SettingError(f"there is no folder {run}: name the --out of a murmur train")
    for path in audio:
        if not path.exists():
            raise SettingError(f"--audio {path} does not exist: name a folder of recordings or a wav.scp")
    if tensorboard is not None:
        if out is not None or audio:
            raise SettingError("--tensorboard writes event files and no page: leave out --out and --audio")
        folder_to_write(tensorboard, "--tensorboard")
        with timed("writing events"):
            written = write_events(runs, tensorboard)
        for folder in written:
            say(f"{folder}")
        return
    page = out or runs[0] / "report.html"
    if out is None:
        refuse_link(page, ", or name it with --out to replace the file that it leads to")
    file_to_write(page, "--out")
    not_an_input(page, "--out", inputs(page, runs, audio))
    with timed("drawing figures"):
        write_report(runs, page, audio)
    say(f"{page}")


def inputs(page: Path, runs: Sequence[Path], audio: Sequence[Path]) -> list[Path]:
    """Return the files that a report may read and a page may be: older pages are none, and may be replaced."""
    found = [path for run in runs for path in run.rglob("*") if path.suffix != ".html"]
    recordings = [page for path in audio if page.resolve().is_relative_to(path.resolve()) and page.suffix != ".html"]
    return [*found, *recordings]
