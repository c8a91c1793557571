"""Run the tests that compute as they would run on other processors, and with more threads.

python tests/processors/campaign.py [--variant avx2 ...] [tests/speech/hmm ...]    # all variants and `TESTS` otherwise

A variant limits the instructions of PyTorch, oneDNN, MKL, OpenBLAS and NumPy together, or gives PyTorch and OpenBLAS
another number of threads. The limits are looked up in a new interpreter before the tests. Prints one line a variant;
the exit status is 1 if a variant failed. A variant whose instructions this processor lacks is named and left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = tuple(
    f"tests/{name}"
    for name in (
        *("core", "elastic", "strategies", "engine", "user_loop", "testing", "simulation", "comparison"),
        *("papers", "speech", "worlds/virtual"),
    )
)
LEVELS = ("DEFAULT", "AVX2", "AVX512")  # as PyTorch names them, each with the instructions of those before
LOOKED_UP = """import json, numpy, torch
found = numpy.show_config("dicts")["SIMD Extensions"]
print(json.dumps({"torch": torch.backends.cpu.get_cpu_capability(), "numpy": found.get("found", [])}))"""


@dataclass(frozen=True)
class Variant:
    """A processor to be imitated: variables of its environment, threads of PyTorch, and the capability to be found."""

    variables: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    capability: str | None = None


def limited(level: str, onednn: str, mkl: str, openblas: str) -> Variant:
    """The variant whose libraries use no more than the instructions of this level."""
    names = {"ATEN_CPU_CAPABILITY": level.lower(), "ONEDNN_MAX_CPU_ISA": onednn, "MKL_ENABLE_INSTRUCTIONS": mkl}
    return Variant({**names, "OPENBLAS_CORETYPE": openblas}, capability=level)


def variants(numpy_features: Sequence[str]) -> dict[str, Variant]:
    """All variants by name, for a processor with these dispatchable features of NumPy, which refuses others."""
    return {
        "default": limited("DEFAULT", "SSE41", "SSE4_2", "Nehalem"),
        "avx2": limited("AVX2", "AVX2", "AVX2", "Haswell"),
        "avx512": limited("AVX512", "AVX512_CORE", "AVX512", "SkylakeX"),
        "numpy-baseline": Variant({"NPY_DISABLE_CPU_FEATURES": " ".join(numpy_features)}),
        **{f"threads-{n}": Variant({"OPENBLAS_NUM_THREADS": str(n)}, threads=n) for n in (1, 2, 4)},
    }


def lookup(variables: Mapping[str, str]) -> dict[str, object]:
    """PyTorch's capability and NumPy's features in an interpreter with these variables."""
    done = subprocess.run(
        [sys.executable, "-c", LOOKED_UP], env={**os.environ, **variables}, check=True, capture_output=True, text=True
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def missing(variant: Variant, here: Mapping[str, object]) -> str | None:
    """The instructions that a variant needs and this processor lacks, if any."""
    if variant.capability is None or LEVELS.index(variant.capability) <= LEVELS.index(str(here["torch"])):
        return None
    return f"this processor has no {variant.capability}"


def not_limited(variant: Variant) -> str | None:
    """Why the variables of a variant have no effect in a new interpreter, or None."""
    found = lookup(variant.variables)
    if variant.capability not in (None, found["torch"]):
        return f"PyTorch uses {found['torch']}, not {variant.capability}"
    if "NPY_DISABLE_CPU_FEATURES" in variant.variables and found["numpy"]:
        return f"NumPy uses {found['numpy']}"
    return None


def run(name: str, variant: Variant, tests: Sequence[str]) -> bool:
    """Run the tests of a variant, print its line, and return True if they passed."""
    if (why := not_limited(variant)) is not None:
        print(f"{name}: failed: {why}", flush=True)
        return False
    began, kinds = time.monotonic(), "not slow and not gpu and not cluster and not processes"
    command = [sys.executable, "-m", "pytest", "-n", "2", "--threads", str(variant.threads), "-m", kinds, *tests]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variant.variables}, check=False, capture_output=True, text=True
    )
    lines = (done.stdout.strip() or done.stderr.strip() or f"status {done.returncode}").splitlines()
    if done.returncode:
        print("\n".join(lines), flush=True)
    print(f"{name}: {lines[-1]} ({time.monotonic() - began:.0f} s)", flush=True)
    return done.returncode == 0


def main() -> int:
    """The command line."""
    here = lookup({})
    every = variants([str(each) for each in here["numpy"]] if isinstance(here["numpy"], list) else [])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", default=TESTS, help="files and folders of tests")
    parser.add_argument("--variant", action="append", choices=every, help="only this one; repeatable")
    given = parser.parse_args()
    passed = []
    for name in given.variant or every:
        if (why := missing(every[name], here)) is not None:
            print(f"{name}: left out: {why}", flush=True)
        else:
            passed.append(run(name, every[name], given.tests))
    return int(not all(passed))


if __name__ == "__main__":
    raise SystemExit(main())
