"""Origin of a run: command, date, versions, and the commit of the checkout that this package runs from.

The commit is read from git's files; git itself need not be installed.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[4]
OWN = "murmur-asr"  # distribution of the package murmur: the name murmur of package indexes belongs to other software


def commit(checkout: Path = CHECKOUT) -> str | None:
    """Return the hash of the current commit; None for a folder that is no checkout, such as an installed package.

    A linked worktree has a file `.git` that names its folder, and shares branches with the main checkout. Branches may
    be packed into one file.
    """
    git = checkout / ".git"
    if git.is_file():
        git = checkout / git.read_text(encoding="utf-8").strip().removeprefix("gitdir: ")
    head = git / "HEAD"
    if not head.is_file():
        return None
    text = head.read_text(encoding="utf-8").strip()
    return _of_branch(git, text[5:]) if text.startswith("ref: ") else text


def _of_branch(git: Path, name: str) -> str | None:
    shared = git / "commondir"
    common = git / shared.read_text(encoding="utf-8").strip() if shared.is_file() else git
    if (common / name).is_file():
        return (common / name).read_text(encoding="utf-8").strip()
    packed = common / "packed-refs"
    lines = packed.read_text(encoding="utf-8").splitlines() if packed.is_file() else []
    return next((line.partition(" ")[0] for line in lines if line.partition(" ")[2] == name), None)


def versions(names: Sequence[str]) -> dict[str, str]:
    """Versions of distributions, of this one under its name murmur; "source" for one that is not installed."""
    found = {}
    for name in names:
        try:
            found[name] = version(OWN if name == "murmur" else name)
        except PackageNotFoundError:
            found[name] = "source"
    return found


def provenance(records: Path, program: str = "murmur") -> dict[str, Any]:
    """Return the entries of run.json on the origin of a launch, and the size of the records of earlier ones."""
    return {
        "command": [program, *sys.argv[1:]],
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(("murmur", "torch", "numpy")),
        "commit": commit(),
        "python": sys.version.split()[0],
        "records_bytes": records.stat().st_size if records.is_file() else 0,
    }


def hardware() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} cores of {models[0] if models else platform.machine()}"
