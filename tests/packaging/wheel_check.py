"""Installs a wheel into clean environments and looks whether it works there: the core alone, and each extra.

    python tests/packaging/wheel_check.py dist/murmur_asr-*.whl --scratch FOLDER [--extras speech,viz]

Packages come from wherever pip finds them, at the versions of constraints.txt. The core is installed once; each extra
gets an environment of its own that looks into the core's, so that PyTorch is unpacked once. Only the standard library
is used here.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Written beside the code that it is given: imports all modules and says which third-party module each one lacks.
IMPORTS = """
import importlib, json, pathlib, pkgutil, murmur
lacking = {}
for found in pkgutil.walk_packages(murmur.__path__, "murmur."):
    if found.name == "murmur.__main__":
        continue
    try:
        importlib.import_module(found.name)
    except ModuleNotFoundError as error:
        lacking[found.name] = error.name.split(".")[0]
print(json.dumps([str(pathlib.Path(murmur.__file__).parent), lacking]))
"""
SPEECH = {
    *("soundfile", "soxr", "lhotse", "kaldi_native_fbank", "kaldi_native_io", "kaldi_hmm_gmm", "kaldifst"),
    *("kaldi_decoder", "kaldilm", "jiwer", "kaldialign"),
}
MAY_LACK = {
    "viz": {"matplotlib", "jinja2", "tensorboard"},
    "speech": SPEECH,
    "mpi": {"mpi4py"},
    "cluster": {"distributed", "dask_jobqueue"},
    "synth": {"espeakng_loader"},
    "deploy": {"onnx", "onnxruntime", "sherpa_onnx"},
    "lightning": {"lightning", "pytorch_lightning"},
    "remote": {"fsspec", "s3fs", "gcsfs", "aiohttp"},
}
NEED_EXTRAS = {
    "speech",
    "commands",
    "integrations",
    "report",
    "worlds",
}  # in some modules
WORKS = {  # what a user of each extra does first
    "core": (["--help"], ["doctor", "--learners", "1"], ["train", "toy", "--set", "budget.minibatches=8"]),
    "speech": (["prepare", "--list"], ["lm", "--help"], ["score", "--help"]),
    "viz": (["train", "toy", "--set", "budget.minibatches=8", "--out", "run"], ["report", "run", "--out", "r.html"]),
    "mpi": (["--help"],),
    "cluster": (["--help"],),
    "synth": (["--help"],),
    "deploy": (["--help"],),
    "lightning": (["--help"],),
    "remote": (["--help"],),
}


class Failed(Exception):
    """Something that a user of the wheel would stumble over."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--scratch", type=Path, help="folder for the environments; kept (about 2 GB)")
    parser.add_argument("--extras", default=",".join(MAY_LACK), help="comma between; empty: the core alone")
    given = parser.parse_args()
    scratch = given.scratch or Path(tempfile.mkdtemp(prefix="wheel-check-"))
    try:
        check(given.wheel.resolve(), scratch.resolve(), [extra for extra in given.extras.split(",") if extra])
    except Failed as problem:
        sys.exit(f"wheel check: {problem}")
    finally:
        if given.scratch is None:
            shutil.rmtree(scratch)


def check(wheel: Path, scratch: Path, extras: Sequence[str]) -> None:
    """All checks, in order of their price.

    Raises:
        Failed: the first that does not hold.
    """
    check_content(wheel)
    core = environment(scratch / "core", wheel, "", None)
    check_environment(core, "core", set().union(*MAY_LACK.values()))
    for extra in extras:
        python = environment(scratch / extra, wheel, extra, core)
        present = MAY_LACK[extra]
        run([str(python), "-c", f"import {', '.join(sorted(present))}"], python.parents[1])
        check_environment(python, extra, set().union(*MAY_LACK.values()) - present)
    print(f"{wheel.name} works: core, {', '.join(extras)}")


def check_content(wheel: Path) -> None:
    """Data files, licence, entry point, and no file that belongs to development alone."""
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        facts = next(name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = file.read(facts).decode()
    files = (p for p in (ROOT / "src/murmur").rglob("*") if p.is_file() and p.suffix != ".pyc")
    missing = sorted({str(p.relative_to(ROOT / "src")) for p in files} - names)
    if missing:
        raise Failed(f"the wheel lacks {', '.join(missing[:5])}")
    stray = [name for name in names if not name.startswith(("murmur/", "murmur_asr-")) or "__pycache__" in name]
    if stray:
        raise Failed(f"the wheel holds {', '.join(sorted(stray)[:5])}")
    if not any(name.endswith("licenses/LICENSE") for name in names):
        raise Failed("the wheel holds no licence")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for line in (
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"License-Expression: {project['license']}",
    ):
        if line not in metadata:
            raise Failed(f"the metadata lacks {line!r}")


def environment(folder: Path, wheel: Path, extra: str, core: Path | None) -> Path:
    """The Python of a new environment with the wheel and an extra; one with a core sees what is installed there."""
    print(f"-- {folder.name}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    if core is not None:
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        own, shared = (run([str(p), "-c", ask], folder).strip() for p in (python, core))
        (Path(own) / "core.pth").write_text(f"{shared}\n")
    what = f"{wheel}[{extra}]" if extra else str(wheel)
    quiet = ["--quiet", "--disable-pip-version-check", "--no-warn-script-location"]
    force = ["--force-reinstall", "--no-deps"]
    run([str(python), "-m", "pip", "install", *quiet, "-c", str(ROOT / "constraints.txt"), what], folder)
    if core is not None:  # pip takes the core's copy for installed; the program murmur has to be here too
        run([str(python), "-m", "pip", "install", *quiet, *force, "--ignore-installed", str(wheel)], folder)
    run([str(python), "-m", "pip", "check"], folder)
    return python


def check_environment(python: Path, extra: str, may_lack: set[str]) -> None:
    """Every module imports or lacks only what belongs to another extra, and first commands work."""
    folder = python.parents[1]
    where, lacking = json.loads(run([str(python), "-c", IMPORTS], folder).splitlines()[-1])
    if not Path(where).is_relative_to(folder):
        raise Failed(f"{extra}: murmur was imported from {where}, not from the wheel")
    wrong = {module: name for module, name in lacking.items() if name not in may_lack}
    if wrong:
        raise Failed(f"{extra}: cannot be imported: {wrong}")
    if extra == "core" and (layers := {m.split(".")[1] for m in lacking} - NEED_EXTRAS):
        raise Failed(f"the core needs an extra in {', '.join(sorted(layers))}")
    for words in WORKS[extra]:
        run([str(folder / "bin" / "murmur"), *words], folder)
    print(f"   {len(lacking)} modules need another extra", flush=True)


def run(words: Sequence[str], folder: Path) -> str:
    """Standard output of a command in a folder.

    Raises:
        Failed: it ended with another status than 0.
    """
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(words)[:300]} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
