"""Checks of one host (versions against pins, imports, cores, memory, disk, GPU) and of the learners together."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor

from murmur.accelerator import device
from murmur.core.counted import counted
from murmur.core.group import Group, PeerLost
from murmur.core.world import Seat
from murmur.execution.workers import cores_here
from murmur.run.folder.provenance import OWN
from murmur.worlds.process.environment import Place
from murmur.worlds.process.launcher import Launch
from murmur.worlds.process.world import ProcessWorld

Level = Literal["ok", "warn", "bad"]
# Libraries of one OpenFst generation: a mix of newer and older ones deadlocks silently on import.
OPENFST = ("kaldi-hmm-gmm", "kaldifst", "kaldi-decoder", "kaldilm")
IMPORTS = ("torch", "kaldifst", "kaldilm", "kaldi_decoder", "kaldi_hmm_gmm")
IMPORT_SECONDS = 60.0
CORE = ("torch", "numpy", "safetensors", "rich", "typer")
SPEECH = ("soundfile", "soxr", "lhotse", "kaldi-native-fbank", "kaldi-native-io", "kaldialign", "jiwer", *OPENFST)
LOW_DISK_GB, LOW_MEMORY_GB = 5.0, 2.0
GB = 1e9
ROUNDS = 50
TIMEOUT_SECONDS = 60.0
VECTOR_BYTES = 8 << 20
TRANSFERS = 5
TEXT_BYTES = 1 << 14  # size of the vector that carries the facts of a learner
SLOW_ROUND_SECONDS, SLOW_BYTES_PER_SECOND = 0.01, 50e6


@dataclass(frozen=True)
class HostFinding:
    """One line of `murmur doctor`: level, subject, result and remedy."""

    level: Level
    what: str
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        line = f"{self.level:<4} {self.what}: {self.found}"
        return f"{line}; {self.remedy}" if self.remedy else line


def warned(about: bool, what: str, found: str, remedy: str) -> HostFinding:
    """Return a finding that is a warning, with its remedy, or else all right."""
    return HostFinding("warn", what, found, remedy) if about else HostFinding("ok", what, found)


def check_host(folder: Path, learners: int) -> list[HostFinding]:
    pins, where = read_pins()
    installed = installed_versions({*CORE, *SPEECH, *pins})
    return [
        *check_versions(pins, installed, where),
        check_imports(installed),
        check_cores(cores_here(), torch.get_num_threads(), learners),
        check_memory(),
        check_disk(folder),
        check_gpu(),
    ]


def read_pins() -> tuple[dict[str, str], str]:
    """Versions that work together, and their source: constraints.txt of a checkout, else the package's requirements."""
    file = Path(__file__).resolve().parents[3] / "constraints.txt"
    if file.is_file():
        return parse_pins(file.read_text(encoding="utf-8").splitlines()), "constraints.txt"
    try:
        lines = requires(OWN) or []
    except PackageNotFoundError:
        lines = []
    return parse_pins(lines), "the package's requirements"


def parse_pins(lines: Iterable[str]) -> dict[str, str]:
    """Parse lines such as `kaldifst==1.7.17` to {package: version}."""
    matches = (re.match(r"\s*([A-Za-z0-9_.-]+)\s*==\s*([^\s;#]+)", line) for line in lines)
    return {m[1].lower(): m[2] for m in matches if m is not None}


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = version(name).partition("+")[0]  # torch's "+cpu" names the build, not the version
        except PackageNotFoundError:
            continue
    return found


def check_versions(pins: Mapping[str, str], installed: Mapping[str, str], where: str) -> list[HostFinding]:
    """Compare core and speech libraries with their pins; the OpenFst set must match exactly."""
    found = []
    for name, kind in ((n, k) for k, names in (("core", CORE), ("speech", SPEECH)) for n in names):
        wanted, have = pins.get(name), installed.get(name)
        if have is None and kind == "core":
            found.append(HostFinding("bad", name, "not installed", f"pip install -c constraints.txt {name}"))
        elif have is not None and wanted is not None and have != wanted:
            level: Level = "bad" if name in OPENFST else "warn"
            why = "other generations of OpenFst deadlock on import: " if name in OPENFST else ""
            remedy = f"{why}pip install {name}=={wanted}"
            found.append(HostFinding(level, name, f"{have}, {where} has {wanted}", remedy))
    missing = [name for name in SPEECH if name not in installed]
    if missing:
        remedy = "pip install 'murmur-asr[speech,synth]' for prepare, align, decode, score, lm"
        found.append(HostFinding("warn", "speech libraries", f"without {', '.join(missing)}", remedy))
    present = len([name for name in (*CORE, *SPEECH) if name in installed])
    if not found:
        found.append(HostFinding("ok", "versions", f"{present} libraries match {where}"))
    return found


def check_imports(installed: Mapping[str, str]) -> HostFinding:
    if any(name not in installed for name in OPENFST):
        return HostFinding("warn", "imports", "not tried: the OpenFst libraries are not all installed")
    program = "; ".join(f"import {name}" for name in IMPORTS)
    remedy = "pip install -c constraints.txt " + " ".join(OPENFST)
    try:
        done = subprocess.run([sys.executable, "-c", program], timeout=IMPORT_SECONDS, capture_output=True, check=False)
    except subprocess.TimeoutExpired:
        return HostFinding("bad", "imports", f"{', '.join(IMPORTS)} deadlock when imported together", remedy)
    if done.returncode != 0:
        reason = (done.stderr.decode(errors="replace").strip() or f"status {done.returncode}").splitlines()[-1]
        return HostFinding("bad", "imports", reason, remedy)
    return HostFinding("ok", "imports", f"{', '.join(IMPORTS)} import together")


def check_cores(cores: int, threads: int, learners: int) -> HostFinding:
    found = (
        f"{counted(cores, 'core')}, {counted(learners, 'learner')} here, PyTorch uses {counted(threads, 'thread')} in"
        " this process"
    )
    remedy = f"start at most {counted(cores, 'learner')} here: more slow each other down"
    return warned(learners > cores, "cores", found, remedy)


def check_memory() -> HostFinding:
    info = Path("/proc/meminfo")
    if not info.is_file():
        return HostFinding("warn", "memory", "this system does not report its free memory")
    rows = dict(line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
    free, total = (int(rows[name].split()[0]) * 1024 / GB for name in ("MemAvailable", "MemTotal"))
    remedy = "a learner with a corpus needs 1-3 GB: start fewer, or end other programs"
    return warned(free < LOW_MEMORY_GB, "memory", f"{free:.1f} of {total:.1f} GB free", remedy)


def check_disk(folder: Path) -> HostFinding:
    there = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(there).free / GB
    if not os.access(there, os.W_OK):
        return HostFinding("bad", "disk", f"{there} cannot be written to", "choose another --out")
    remedy = "features, graphs and checkpoints take gigabytes: choose another --out"
    return warned(free < LOW_DISK_GB, "disk", f"{free:.1f} GB free in {there}", remedy)


def check_gpu() -> HostFinding:
    found = device.names()
    told = f"{len(found)}: {', '.join(found)}" if found else "none seen by PyTorch: learners train on the processor"
    return HostFinding("ok", "GPU", told)


@dataclass(frozen=True)
class Learned:
    """Facts that one learner sends to the others."""

    host: str
    python: str
    torch: str
    digest: str
    findings: tuple[HostFinding, ...]


def launched(source: str | None, settings: Sequence[str], learners: int) -> list[HostFinding]:
    """Start learners on this host that examine the network between them."""
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch) / "found.json"

        def command(place: Place, resume: bool) -> list[str]:  # noqa: ARG001 - all learners are started alike
            words = [sys.executable, "-m", "murmur", "doctor", "--json", str(answer)]
            words += [] if source is None else [source]
            return [*words, *(word for setting in settings for word in ("--set", setting))]

        status = Launch(command, learners).run()
        if not answer.is_file():
            remedy = "look at the messages above; is a firewall between processes of this host?"
            return [HostFinding("bad", "learners", f"ended with status {status} before they had met", remedy)]
        return [HostFinding(**each) for each in json.loads(answer.read_text(encoding="utf-8"))]


def examined(place: Place, digest: str, out: Path) -> list[HostFinding] | HostFinding:
    """Findings of one learner of a launch, the same on all; one finding if the learners did not meet."""
    own = () if place.store == "murmur" or place.local_rank > 0 else tuple(check_host(out, place.local_size))
    mine = Learned(socket.gethostname(), platform.python_version(), torch.__version__, digest, own)

    async def program(seat: Seat) -> list[HostFinding]:
        return await examine(seat, mine)

    try:
        return ProcessWorld(place, timeout_seconds=TIMEOUT_SECONDS).run(program)[0]
    except (PeerLost, ConnectionError) as error:
        remedy = "is the store's host reachable from here, and its port open?"
        return HostFinding("bad", "store", f"learner {place.rank}: {error}", remedy)


async def examine(seat: Seat, mine: Learned) -> list[HostFinding]:
    """Measure the network and compare the learners; the same list on every learner."""
    gathered = await gather(seat.group, asdict(mine))
    told = [Learned(**{**each, "findings": tuple(HostFinding(**f) for f in each["findings"])}) for each in gathered]
    size = seat.group.size
    hosts = sorted({each.host for each in told})
    found = [HostFinding("ok", "store", f"{counted(size, 'learner')} on {counted(len(hosts), 'host')} met")]
    for host in hosts:
        own = next((each.findings for each in told if each.host == host and each.findings), ())
        found += [replace(each, what=f"{host}, {each.what}") if len(hosts) > 1 else each for each in own]
    if size > 1:
        found += [await latency(seat.group), await bandwidth(seat.group)]
    found += compare_learners(told)
    return found


async def gather(group: Group, mine: dict[str, Any]) -> list[dict[str, Any]]:
    """Gather one JSON object from every member, in order of rank; each travels as a vector."""
    raw = json.dumps(mine).encode()
    if len(raw) > TEXT_BYTES:
        raise ValueError(f"the facts of a learner take {len(raw)} bytes, the limit is {TEXT_BYTES}")
    vector = torch.zeros(TEXT_BYTES)
    vector[: len(raw)] = torch.tensor(list(raw), dtype=torch.float32)
    told = []
    for rank in range(group.size):
        theirs = await group.broadcast(vector.clone(), root=rank)
        told.append(json.loads(bytes(theirs.to(torch.uint8).tolist()).rstrip(b"\0")))
    return told


async def seconds_of_means(group: Group, vector: Tensor, times: int) -> list[float]:
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        await group.mean(vector)
        seconds.append(time.perf_counter() - begin)
    return seconds


async def latency(group: Group) -> HostFinding:
    seconds = await seconds_of_means(group, torch.zeros(1), ROUNDS)
    middle = median(seconds)
    found = f"{1000 * middle:.2f} ms a round of all learners (slowest {1000 * max(seconds):.2f} ms)"
    remedy = "average rarely: KAVG with a large K, or an asynchronous strategy; are the cores busy with other work?"
    return warned(middle > SLOW_ROUND_SECONDS, "latency", found, remedy)


async def bandwidth(group: Group) -> HostFinding:
    """Measure the bandwidth of a mean over all learners: bytes of the vector per second, median of a few means."""
    seconds = median(await seconds_of_means(group, torch.zeros(VECTOR_BYTES // 4), TRANSFERS))
    speed = VECTOR_BYTES / seconds
    found = f"{speed / 1e6:.0f} MB/s of averaged weights ({VECTOR_BYTES >> 20} MiB in {1000 * seconds:.1f} ms)"
    remedy = "average rarely (KAVG), or send less often than every minibatch"
    return warned(speed < SLOW_BYTES_PER_SECOND, "bandwidth", found, remedy)


def compare_learners(told: Sequence[Learned]) -> list[HostFinding]:
    return [
        _same(told, "Python", lambda t: t.python, "install the same Python on every host"),
        _same(told, "PyTorch", lambda t: t.torch, "install the same PyTorch on every host (constraints.txt)"),
        _same(told, "experiment", lambda t: t.digest, "start every learner with the same file, --set and version"),
    ]


def _same(told: Sequence[Learned], what: str, of: Callable[[Learned], str], remedy: str) -> HostFinding:
    values = {of(each) for each in told}
    if len(values) == 1:
        return HostFinding("ok", what, f"{values.pop()} everywhere")
    shown = ", ".join(f"learner {rank} ({each.host}): {of(each)}" for rank, each in enumerate(told))
    return HostFinding("bad", what, shown, remedy)
