"""Stop signals at random moments of every command, on tiny inputs; the repeated command must give the same result.

    python benchmarks/signals.py --rows /tmp/signals.jsonl --moments 20         # continues an interrupted campaign
    python benchmarks/signals.py --rows /tmp/signals.jsonl --moments 2 --case decode --case train

A moment passes if the command ends in time with status 79 (or had finished), prints no traceback, tells the user how
to go on, leaves no process, and if the continued command ends with the bytes of an undisturbed one. In time means 5 s,
times the ratio of elapsed to processor time of a Python loop run beside it. Three of four commands run in a fork of
this process, which has imported everything; every fourth starts an interpreter, so that imports are hit as well.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import kaldi_hmm_gmm  # noqa: F401 - imported before forks

from measure import bar, close
from murmur.__main__ import main as program
from murmur.core.stop_signals import STOPPED_STATUS
from murmur.core.whole_files import FinishedLines

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.plateaus import make_experiment
from tests.support.tones import HYBRID, make_tones

KIND = "long"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
END_SECONDS = 5.0
HANG_SECONDS = 120.0
ORPHAN_SECONDS = 3.0  # in which the children of a dead process must end
CHANGING = ("seconds", "real-time", "real_time", "commit", "date", "started", "hardware", "command", "libraries")
SENTENCES = "YES NO YES\nNO NO\nYES YES NO SON\nSON NO\n" * 50


@dataclass(frozen=True)
class Case:
    """A command, and its results that must not change.

    Attributes:
        name: name of the case.
        words: words of the command; {file}, {out}, {done} and {text} are filled in.
        made: patterns of files below {out}; empty: the printed output.
        resumed: add --resume to continue.
        moments: largest number of moments; small for a command of minutes.
    """

    name: str
    words: str
    made: tuple[str, ...] = ()
    resumed: bool = False
    moments: int = 1000


TRAIN = "train {file} --set task.cache={out}/cache --threads 1 --out {out}/run"
RUN = ("run/*.safetensors", "run/score.json", "run/recognised.jsonl")
CASES = (
    Case("prepare", "prepare {file} --set task.cache={out}/cache --jobs 2", ("cache/**/*.np?",)),
    Case("align", "align {file} --set task.cache={out}/cache --out {out}/align", ("align/*/*",)),
    Case("train", TRAIN, RUN, resumed=True),
    Case(
        "train, two learners",
        "train toy --strategy SyncSGD --learners 2 --threads 1 --set budget.epochs=3 --out {out}/run",
        ("run/model.safetensors", "run/score.json"),
        resumed=True,
    ),
    Case(
        "decode",
        "decode {file} --model {done}/run --set task.cache={done}/cache --scale 0.3 --out {out}/decoded",
        ("decoded/*",),
    ),
    Case(
        "simulate",
        "simulate toy --strategy KAVG(4) --learners 4 --step-seconds 0.1 --threads 1 --out {out}/run",
        ("run/model.safetensors", "run/score.json"),
        resumed=True,
    ),
    Case(
        "compare",
        "compare toy --strategies KAVG(4) --virtual 2 --step-seconds 0.1 --threads 1 --out {out}/grid",
        ("grid/runs/*/model.safetensors", "grid/table.csv"),
    ),
    Case("plan", "plan --step-seconds 0.07 --model-bytes 1e6 --corpus-hours 10 --frames-per-minibatch 2688"),
    Case("lm", "lm train {text} --order 3 --out {out}/lm.arpa", ("lm.arpa",)),
    Case("lexicon", "lexicon {text} --guess graphemes --out {out}/lexicon", ("lexicon/*",)),
    Case("transcribe", "transcribe {done}/tones {speech} --format json --out {out}/text", ("text/*",)),
    Case("export", "export {done}/tones --out {out}/exported", ("exported/*",)),
    Case("demo", "demo --out {out}/demo", ("demo/*/model.safetensors", "demo/*/recognised.jsonl"), moments=3),
    Case("report", "report {done}/run --out {out}/report.html", ("report.html",)),
)


@dataclass(frozen=True)
class Ended:
    """The end of a command: its status, its output, and seconds from the signal (0: from the start) to the end."""

    status: int
    said: str
    errors: str
    seconds: float
    left: int
    hit: bool


class Bench:
    """A folder of inputs, and the commands on them."""

    def __init__(self, work: Path) -> None:
        self.work, self.out, self.done = work, work / "out", work / "done"
        work.mkdir(parents=True, exist_ok=True)
        self.file = work / "plateaus_experiment.py"
        if not self.file.exists():  # a set that is written again counts as another one
            make_experiment(work)
        (work / "text.txt").write_text(SENTENCES)
        self.tones = work / "tones.py"
        if not (work / "tones/lexicon.txt").exists():
            make_tones(work / "tones", {"train": 60, "dev": 8, "test": 8})
        self.tones.write_text(HYBRID.format(corpus=str(work / "tones"), cache=str(self.done / "tones_cache")))

    def words(self, case: Case, go_on: bool = False, out: Path | None = None) -> list[str]:
        """The words of a case's command."""
        places = {"file": self.file, "out": out or self.out, "done": self.done, "text": self.work / "text.txt"}
        speech = sorted(map(str, (self.work / "tones/wav").glob("test*.wav")))
        found = ([*speech] if word == "{speech}" else [word.format(**places)] for word in shlex.split(case.words))
        words = [word for words in found for word in words]
        return [*words, "--resume"] if go_on and case.resumed else words

    def prepared(self) -> None:
        """A trained run for the commands that need one."""
        if not (self.done / "run" / "score.json").exists():
            ended = run(self.words(CASES[2], out=self.done), self.work, fresh=False)
            assert ended.status == 0, ended.errors
        if not (self.done / "tones" / "score.json").exists():
            words = ["train", str(self.tones), "--threads", "1", "--out", str(self.done / "tones")]
            ended = run(words, self.work, fresh=False)
            assert ended.status == 0, ended.errors

    def result(self, case: Case, ended: Ended) -> dict[str, str]:
        """Digests of the files of a case, without values that depend on the clock and the machine."""
        if not case.made:
            return {"the printed output": hashlib.sha256(ended.said.encode()).hexdigest()}
        paths = {path for pattern in case.made for path in self.out.glob(pattern)}
        return {str(path.relative_to(self.out)): _content(path) for path in sorted(paths)}

    def keep(self, name: str) -> Path:
        """Keep the folder of a moment with a fault."""
        kept = self.work / "kept" / name.replace(" ", "_")
        shutil.rmtree(kept, ignore_errors=True)
        if self.out.exists():
            shutil.copytree(self.out, kept)
        return kept


def _content(path: Path) -> str:
    if path.suffix == ".json":
        return json.dumps(_constant(json.loads(path.read_text())), sort_keys=True)
    if path.suffix == ".md":  # one line says how long its runs took
        return "".join(line for line in path.read_text().splitlines() if "processor minutes" not in line)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _constant(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _constant(v) for k, v in value.items() if not any(word in k for word in CHANGING)}
    if isinstance(value, list):
        return [_constant(v) for v in value if not isinstance(v, str) or "real-time" not in v]
    return value


def run(
    words: Sequence[str], work: Path, fresh: bool, after: float | None = None, number: int = signal.SIGTERM
) -> Ended:
    """Run a command in a separate session, and send it a signal at a given time after it listens."""
    said, errors = work / "said.txt", work / "errors.txt"
    with said.open("wb") as out, errors.open("wb") as err:
        pid = (_start if fresh else _fork)(words, out.fileno(), err.fileno())
    while not _listens(pid):
        time.sleep(0.005)
    began, hit = time.monotonic(), False
    status = _wait(pid, HANG_SECONDS * 10 if after is None else after)
    if status is None:
        began, hit = time.monotonic(), True
        os.kill(pid, number)
        status = _wait(pid, HANG_SECONDS)
    seconds = time.monotonic() - began
    if status is None:
        os.kill(pid, signal.SIGKILL)
        status = _wait(pid, HANG_SECONDS)
    end = time.monotonic() + ORPHAN_SECONDS * slowness()
    while (left := _in_session(pid)) and time.monotonic() < end:
        time.sleep(0.05)
    for orphan in left:
        os.kill(orphan, signal.SIGKILL)
    return Ended(status or 0, said.read_text(), errors.read_text(), seconds, len(left), hit)


def _fork(words: Sequence[str], out: int, err: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()
        os.dup2(out, 1)
        os.dup2(err, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["murmur", *words]
        program()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # an interpreter would print it, too
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def _start(words: Sequence[str], out: int, err: int) -> int:
    listen: Callable[[], Any] = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
    command = [sys.executable, "-m", "murmur", *words]
    started = subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True, preexec_fn=listen)  # noqa: PLW1509
    started.returncode = 0  # `_wait` waits for its process number
    return started.pid


def _wait(pid: int, seconds: float) -> int | None:
    """The exit status; None if it still runs."""
    end = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            return None
        time.sleep(0.002)


def _listens(pid: int) -> bool:
    """True if a process handles SIGUSR1 or has ended; before that, the interpreter itself is starting."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), "")
    return not caught or bool(int(caught, 16) >> (signal.SIGUSR1 - 1) & 1) or "State:\tZ" in status


def _in_session(session: int) -> list[int]:
    """Processes of a session that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has just ended
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def slowness() -> float:
    """Elapsed seconds per second of processor time, here and now."""
    clock, cpu = time.monotonic(), time.thread_time()
    while time.thread_time() - cpu < 0.05:
        sum(range(1000))
    return max(1.0, (time.monotonic() - clock) / (time.thread_time() - cpu))


def moment(bench: Bench, case: Case, trial: int, whole: Mapping[str, Any]) -> dict[str, Any]:
    """Stop a case at a random moment, continue it, and judge both."""
    draw = random.Random(f"{case.name} {trial}")
    after, number, fresh = draw.uniform(0, whole["seconds"]), draw.choice(SIGNALS), trial % 4 == 0
    shutil.rmtree(bench.out, ignore_errors=True)
    slow = slowness()
    first = run(bench.words(case), bench.work, fresh, after, number)
    slow = max(slow, slowness())
    faults = judged(first, slow)
    last = first if first.status == 0 else run(bench.words(case, go_on=True), bench.work, False)
    result = bench.result(case, last)
    differing = sorted(path for path, _ in result.items() ^ whole["result"].items())
    if last.status != 0:
        faults.append(f"going on ended with {last.status}: {last.errors[-300:]}")
    elif differing:
        faults.append(f"another result than that of an undisturbed command: {', '.join(dict.fromkeys(differing))}")
    if faults:
        print(f"kept: {bench.keep(f'{case.name} {trial}')}")
    about = {"case": case.name, "trial": trial, "signal": signal.Signals(number).name, "fresh": fresh}
    about |= {"after": after, "status": first.status, "hit": first.hit}
    return {**about, "seconds": first.seconds, "slowness": slow, "faults": faults}


def judged(ended: Ended, slow: float) -> list[str]:
    """Faults in the end of a stopped command."""
    faults = []
    if ended.hit and ended.seconds > END_SECONDS * slow:
        faults.append(f"ended {ended.seconds:.1f} s after the signal, on a machine {slow:.1f} times as slow as idle")
    if ended.status not in (0, STOPPED_STATUS):
        faults.append(f"status {ended.status}: {ended.errors[-300:]}")
    if "Traceback" in ended.errors:
        faults.append(f"a traceback: {ended.errors[-300:]}")
    told = any(word in ended.errors for word in ("the same command", "--resume"))
    if ended.status == STOPPED_STATUS and not told:
        faults.append(f"nothing tells how to go on: {ended.errors[-300:]}")
    return [*faults, f"{ended.left} processes are left"] if ended.left else faults


def undisturbed(bench: Bench, case: Case) -> dict[str, Any]:
    """Seconds and result of a command without a stop signal."""
    shutil.rmtree(bench.out, ignore_errors=True)
    ended = run(bench.words(case), bench.work, fresh=False)
    assert ended.status == 0, f"{case.name}: {ended.errors}"
    return {"seconds": ended.seconds, "result": bench.result(case, ended)}


def main() -> None:
    """Run the moments missing from the file of rows; then print all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES])
    parser.add_argument("--work", type=Path, default=Path("runs/signals"))
    asked = parser.parse_args()
    rows = [json.loads(line) for line in FinishedLines(asked.rows)] if asked.rows.exists() else []
    known = {(row["case"], row["trial"]) for row in rows}
    bench = Bench(asked.work.resolve())
    bench.prepared()
    wholes: dict[str, dict[str, Any]] = {}
    chosen = [case for case in CASES if not asked.case or case.name in asked.case]
    for trial, case in product(range(asked.moments), chosen):
        if (case.name, trial) in known or trial >= case.moments:
            continue
        whole = wholes[case.name] = wholes.get(case.name) or undisturbed(bench, case)
        rows.append(moment(bench, case, trial, whole))
        print(json.dumps(rows[-1]), flush=True)
        with asked.rows.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
    tell(rows)


def tell(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print figures by case, and the bars over all."""
    figures: dict[str, Any] = {}
    for name in dict.fromkeys(row["case"] for row in rows):
        own = [row for row in rows if row["case"] == name]
        seconds = [row["seconds"] for row in own if row["hit"]]
        figures[name] = {
            "moments": len(own),
            "stopped": len(seconds),
            "slowest seconds": round(max(seconds, default=0.0), 2),
            "faults": sum(bool(row["faults"]) for row in own),
        }
    shares = [row["seconds"] / (END_SECONDS * row["slowness"]) for row in rows if row["hit"]]
    faults = sum(bool(row["faults"]) for row in rows)
    bars = [
        bar("moments with a fault", faults, 0),
        bar("slowest end over its allowance", max(shares, default=0.0), 1.0),
    ]
    close("signals", figures, bars)


if __name__ == "__main__":
    main()
