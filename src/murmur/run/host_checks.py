"""Checks of one host: versions against pins, imports, cores, memory, disk, GPU."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

import torch

from murmur.core.counted import counted
from murmur.execution.cores import cores_here

Level = Literal["ok", "warn", "bad"]
# Libraries of one OpenFst generation: a mix of newer and older ones deadlocks silently on import.
OPENFST = ("kaldi-hmm-gmm", "kaldifst", "kaldi-decoder", "kaldilm")
IMPORTS = ("torch", "kaldifst", "kaldilm", "kaldi_decoder", "kaldi_hmm_gmm")
IMPORT_SECONDS = 60.0
CORE = ("torch", "numpy", "safetensors", "rich", "typer")
SPEECH = ("soundfile", "soxr", "lhotse", "kaldi-native-fbank", "kaldi-native-io", "kaldialign", "jiwer", *OPENFST)
LOW_DISK_GB, LOW_MEMORY_GB = 5.0, 2.0
GB = 1e9


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


def check_host(folder: Path, learners: int) -> list[HostFinding]:
    """Run all checks of this host that need no other learner."""
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
        lines = requires("murmur") or []
    except PackageNotFoundError:
        lines = []
    return parse_pins(lines), "the package's requirements"


def parse_pins(lines: Iterable[str]) -> dict[str, str]:
    """Parse lines such as `kaldifst==1.7.17` to {package: version}."""
    matches = (re.match(r"\s*([A-Za-z0-9_.-]+)\s*==\s*([^\s;#]+)", line) for line in lines)
    return {m[1].lower(): m[2] for m in matches if m is not None}


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    """Versions of the packages that are installed."""
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
        remedy = "pip install -c constraints.txt 'murmur[speech,synth]' for prepare, align, decode, score, lm"
        found.append(HostFinding("warn", "speech libraries", f"without {', '.join(missing)}", remedy))
    present = len([name for name in (*CORE, *SPEECH) if name in installed])
    if not found:
        found.append(HostFinding("ok", "versions", f"{present} libraries match {where}"))
    return found


def check_imports(installed: Mapping[str, str]) -> HostFinding:
    """Import the OpenFst libraries together, in a process with a time limit."""
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
    """Check that each learner of this host has a core; the finding also names PyTorch's threads."""
    found = (
        f"{counted(cores, 'core')}, {counted(learners, 'learner')} here, PyTorch uses {counted(threads, 'thread')} in"
        " this process"
    )
    if learners > cores:
        return HostFinding(
            "warn", "cores", found, f"start at most {counted(cores, 'learner')} here: more slow each other down"
        )
    return HostFinding("ok", "cores", found)


def check_memory() -> HostFinding:
    """Check the free memory of this host."""
    info = Path("/proc/meminfo")
    if not info.is_file():
        return HostFinding("warn", "memory", "this system does not report its free memory")
    rows = dict(line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
    free, total = (int(rows[name].split()[0]) * 1024 / GB for name in ("MemAvailable", "MemTotal"))
    found = f"{free:.1f} of {total:.1f} GB free"
    if free < LOW_MEMORY_GB:
        return HostFinding(
            "warn", "memory", found, "a learner with a corpus needs 1-3 GB: start fewer, or end other programs"
        )
    return HostFinding("ok", "memory", found)


def check_disk(folder: Path) -> HostFinding:
    """Check the free space and the write permission of the folder for runs."""
    there = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(there).free / GB
    found = f"{free:.1f} GB free in {there}"
    if not os.access(there, os.W_OK):
        return HostFinding("bad", "disk", f"{there} cannot be written to", "choose another --out")
    if free < LOW_DISK_GB:
        return HostFinding(
            "warn", "disk", found, "features, graphs and checkpoints take gigabytes: choose another --out"
        )
    return HostFinding("ok", "disk", found)


def check_gpu() -> HostFinding:
    """List the GPUs that PyTorch sees."""
    if not torch.cuda.is_available():
        return HostFinding("ok", "GPU", "none seen by PyTorch: learners train on the processor")
    names = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    return HostFinding("ok", "GPU", f"{len(names)}: {', '.join(names)}")
