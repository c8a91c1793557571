"""`murmur demo`: from an empty folder to word error rates and a report, with one learner and with two.

The phases are those of any hybrid system: a corpus (digits spoken by espeak-ng), features, an alignment by Gaussian
monophones, a network trained on it, decoding, scoring. Finished work is not repeated: the first three phases are
stored in `<out>/cache`, training continues from its newest checkpoint, and a finished run is recognised by its
score.json and the digest of its experiment in run.json.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from murmur.core.plain_files import UNREADABLE, read_json, read_plain
from murmur.core.whole_files import write_whole
from murmur.execution.workers import cores_here
from murmur.report.page import check_installed, write_curve, write_report
from murmur.report.read import Run, read_run
from murmur.report.terminal_table import TerminalTable
from murmur.report.verdict import ranking
from murmur.run.folder.contents import opened, read_facts, refuse_work
from murmur.run.folder.lock import LOCK, locked
from murmur.run.request import RunRequest
from murmur.run.timed import busy_line
from murmur.run.training import command_of_learner, missing_from, write_run
from murmur.speech.corpus.synth import SynthesisError
from murmur.speech.features.feature_store import UTTERANCES_PER_SHARD
from murmur.speech.tasks.hybrid.task import HybridTask
from murmur.worlds.process.launcher import Launch
from murmur.worlds.process.signals import STOPPED_STATUS

NAMES = {1: "one-learner", 2: "two-learners"}  # the same experiment: the rule of scaling sets the rest
LIVE_SECONDS, QUIET_SECONDS = 0.5, 5.0  # between progress lines, on a terminal and in a file
FRAMES_PER_MINUTE = 6000
WAYS = "Give another --out, or replace the run with --force (which removes the files of that run and nothing else)"
Count = Callable[[], str]


@dataclass(frozen=True)
class Demo:
    """The demo; the defaults are those of `murmur demo`, other values make a smaller one.

    Attributes:
        out: folder of all files.
    """

    out: Path = Path("runs/demo")
    settings: tuple[str, ...] = ()
    force: bool = False
    console: Console = field(default_factory=lambda: Console(highlight=False))

    def run(self) -> int:
        """Do all unfinished work, print the result and write the report.

        Returns:
            The exit status.

        Raises:
            ReportError: matplotlib or jinja2 is missing.
            SynthesisError: espeak-ng is missing.
        """
        check_installed()
        began = time.monotonic()
        requests = [self.request(learners) for learners in NAMES]
        open_requests = [request for request in requests if not finished(request)]
        for request in open_requests:
            if not self.force and not is_same(request.out, request.experiment().digest()):
                refuse_work(request.out, WAYS)
        busy = busy_line() if open_requests else ""
        if open_requests:
            self.prepare()
        for request in requests:
            if request not in open_requests:
                self.say(f"[bold]training[/] {request.out.name}: finished before")
                continue
            code = self.train(request)
            if code != 0:
                self.say(f"[red]{request.out.name} ended with status {code}[/]; `murmur demo` continues from there")
                return code
        folders = [request.out for request in requests]
        write_curve(folders, self.out / "learning.svg")
        page = write_report(folders, self.out / "report.html")
        self.console.print(table([read_run(folder) for folder in folders]))
        if busy:
            self.say(busy)
        self.say(f"{time.monotonic() - began:.0f} s in all; the report: {escape(str(page))}")
        return 0

    def request(self, learners: int) -> RunRequest:
        """The request of the equivalent `murmur train` command."""
        settings, out = (f"task.cache={self.out / 'cache'}", *self.settings), self.out / NAMES[learners]
        return RunRequest(source="digits_demo", settings=settings, learners=learners, out=out, threads=1, resume=True)

    def prepare(self) -> None:
        """Corpus, features and alignment, with two processes where there are two cores."""
        task = self.request(1).experiment().task
        assert isinstance(task, HybridTask)
        task = replace(task, jobs=min(2, cores_here()))
        size = task.digits
        strings = size.train + size.dev + size.test
        for half_made in task.cache.glob("digits-*.unfinished.*"):  # left by a launch that was killed
            shutil.rmtree(half_made)
        with self.phase("corpus", f"espeak-ng speaks {strings} strings of digits, with noise, some in rooms") as watch:
            watch.count = lambda: f"{sum(1 for _ in task.cache.glob('digits-*/wav/*/*.flac'))} of {strings} recordings"
            parts = (task.material.train, task.material.dev, task.material.test)
        with self.phase("features", "cepstra for Gaussians, log-mel energies for networks") as watch:
            shards = 2 * sum(-(-len(part) // UTTERANCES_PER_SHARD) for part in parts)
            watch.count = lambda: f"{sum(1 for _ in task.cache.glob('features-*/*.json'))} of {shards} shards"
            frames = []
            for part in parts:
                task.hmms.features(part)
                frames.append(sum(map(len, task.hmms.network_features(part).values())))
        minutes = ", ".join(f"{count / FRAMES_PER_MINUTE:.1f}" for count in frames)
        self.say(f"    minutes of train, dev and test: {minutes}")
        with self.phase("alignment", "Gaussian monophones by EM from a flat start find the state of every frame"):
            states = task.targets.pdfs
        self.say(f"    {states} states")

    def train(self, request: RunRequest) -> int:
        """Train, decode and score in processes of their own.

        Returns:
            The exit status.

        Raises:
            Stopped: a signal came; the learners have saved their state and ended.
        """
        experiment = request.experiment()
        many = "1 learner, one process" if request.learners == 1 else f"{request.learners} learners, a process each"
        self.say(f"[bold]training[/] {request.out.name}: {many}; then decoding and scoring")
        began = time.monotonic()
        same = is_same(request.out, experiment.digest())
        with opened(request.out, request.name, same, self.force and not same, WAYS) as run:
            run.begin()
            write_run(request, experiment)
            write_whole(request.out / "phases.json", json.dumps(read_phases(self._phases), indent=1).encode())
            asks, missing, lock = signal.SIGUSR1, missing_from(request.out), (run.lock.descriptor,)
            command = command_of_learner(request)
            launch = Launch(command, request.learners, threads=1, stop_signal=asks, missing=missing, inherited=lock)
            code = run.end(launch.run())
        if code == STOPPED_STATUS:
            launch.stop()
        self.say(f"    {time.monotonic() - began:.1f} s")
        return code

    def say(self, text: str) -> None:
        """Print a line at once."""
        self.console.print(text, soft_wrap=True)
        self.console.file.flush()

    @property
    def _phases(self) -> Path:
        return self.out / "phases.json"

    @contextmanager
    def phase(self, name: str, what: str) -> Iterator[PhaseClock]:
        """Announce a phase, show its progress, print and store its duration.

        Among several launches, the one that worked longest on the phase counts: the others found it finished.
        """
        self.say(f"[bold]{name}[/] {what}")
        began = time.monotonic()
        with PhaseClock() as watch:
            yield watch
        seconds = time.monotonic() - began
        self.say(f"    {seconds:.1f} s")
        phases = read_phases(self._phases)
        phases[name] = max(round(seconds, 3), phases.get(name, 0.0))
        write_whole(self._phases, json.dumps(phases, indent=1).encode())


class PhaseClock:
    """Shows the elapsed time and the progress on standard error at intervals."""

    def __init__(self) -> None:
        self.count: Count = str
        self._stream = sys.stderr
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._began = time.monotonic()

    def __enter__(self) -> PhaseClock:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _show(self) -> None:
        live = self._stream.isatty()
        while not self._ended.wait(LIVE_SECONDS if live else QUIET_SECONDS):
            line = f"    {time.monotonic() - self._began:.0f} s  {self.count()}".rstrip()
            self._stream.write(f"\r\033[K{line}" if live else line + "\n")
            self._stream.flush()
        if live:
            self._stream.write("\r\033[K")


def finished(request: RunRequest) -> bool:
    """True if the folder of a request holds the score of the same experiment."""
    try:
        json.loads(read_plain(request.out / "score.json"))
    except (OSError, *UNREADABLE):
        return False  # missing, or not written by a run
    return is_same(request.out, request.experiment().digest())


def is_same(folder: Path, digest: str) -> bool:
    """True if a folder holds a run of the experiment with this digest."""
    return read_facts(folder).get("digest") == digest


def read_phases(path: Path) -> dict[str, float]:
    """Seconds of the phases before training; empty if none are stored."""
    found: dict[str, float] = read_json(path, "remove it") if path.is_file() else {}
    return found


def table(runs: list[Run]) -> TerminalTable:
    """The runs, the one with the fewest errors first."""
    numbers = ("WER %", "95 % interval", "held-out log-prob.", "training s")
    title = "digits of voices and an accent that were never in training"
    made = TerminalTable(("", *numbers), title, right=numbers)
    for run in ranking(runs):
        rate = run.headline
        interval = "" if rate is None or rate.low is None else f"{rate.low:.2f} to {rate.high:.2f}"
        logprob = run.heldout.get("logprob")
        made.add_row(
            run.name,
            "" if rate is None else f"{rate.percent:.2f}",
            interval,
            "" if logprob is None else f"{logprob:.4f}",
            f"{run.records.last_seconds:.1f}",
        )
    return made


def run_demo(out: Path, force: bool = False) -> int:
    """Run the demo with its defaults; print an error if the corpus cannot be synthesised.

    Returns:
        The exit status.
    """
    demo = Demo(out, force=force)
    try:
        with locked(out / LOCK):
            return demo.run()
    except SynthesisError as error:
        demo.say(f"[red]no corpus:[/] {escape(str(error))}")
        return 1
