"""Run the tests of the core on other versions of Python and PyTorch, each in an environment of its own.

python tests/packaging/matrix.py [3.12:2.13.0 ...]    # pairs of Python and PyTorch; all of PAIRS otherwise

An environment is made in .venv-matrix/ and kept. A pair whose interpreter or whose PyTorch cannot be had is named
with the reason, and the exit status is then 3; a pair whose tests fail gives 1.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".venv-matrix"
PAIRS = ("3.11:2.6.0", "3.12:2.13.0", "3.13:2.13.0")
NEEDS = ("numpy", "safetensors", "rich", "typer", "pytest", "pytest-timeout", "pytest-xdist", "hypothesis")
TESTS = ("tests/core", "tests/elastic", "tests/strategies", "tests/testing", "tests/worlds/virtual", "tests/engine")
MISSED = 3


def interpreter(version: str) -> str | None:
    """Return the path of a Python of this version: on the path, or among those of pyenv."""
    found = shutil.which(f"python{version}")
    if found is not None and _runs(found):
        return found
    kept = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python{version}"))
    return str(kept[-1]) if kept else None


def _runs(python: str) -> bool:
    return subprocess.run([python, "--version"], check=False, capture_output=True).returncode == 0


def environment(python: str, torch: str, folder: Path) -> str | None:
    """Make the environment of a pair; return why it could not be made, or None."""
    pip = [str(folder / "bin" / "pip"), "--quiet", "--disable-pip-version-check", "install"]
    steps = [[python, "-m", "venv", str(folder)], [*pip, f"torch=={torch}"], [*pip, *NEEDS]]
    if (folder / "complete").exists():
        return None
    for step in steps:
        done = subprocess.run(step, check=False, capture_output=True, text=True)
        if done.returncode:
            return (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]
    (folder / "complete").touch()
    return None


def run(pair: str) -> int:
    """Test one pair; return 0, 1 if tests fail, or `MISSED`."""
    version, torch = pair.split(":")
    python = interpreter(version)
    if python is None:
        print(f"{pair}: there is no Python {version} here")
        return MISSED
    folder = FOLDER / f"python{version}-torch{torch}"
    if (why := environment(python, torch, folder)) is not None:
        print(f"{pair}: could not be installed: {why}")
        return MISSED
    tests = [*TESTS, "-n", "2", "-m", "not slow and not gpu and not cluster and not processes"]
    command = [str(folder / "bin" / "python"), "-m", "pytest", *tests]
    done = subprocess.run(command, check=False, cwd=ROOT, env={"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"})
    print(f"{pair}: {'passed' if done.returncode == 0 else f'failed with status {done.returncode}'}")
    return min(done.returncode, 1)


if __name__ == "__main__":
    results = [run(pair) for pair in sys.argv[1:] or PAIRS]
    sys.exit(1 if 1 in results else max(results))
