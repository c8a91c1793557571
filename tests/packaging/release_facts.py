"""Facts of a release that are read from the checkout in seconds: agreement of files, and what is left to set."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACEHOLDER = ".invalid"  # a domain that can never exist (RFC 2606)
OLD = (  # names under which a package index has other software
    re.compile(r"""pip +install +[^\n`|&;#)]*(?<![-\w/.@'"])['"]?murmur(?![-\w/.])"""),
    re.compile(r"\bmurmur\\*\["),
    re.compile(r"""(version|requires|distribution|metadata)\((?:"murmur"|'murmur')\)"""),
)


def tracked(root: Path = ROOT) -> list[Path]:
    """Return the files of a checkout that belong to it."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)
    return [root / name for name in done.stdout.split("\0") if name and (root / name).is_file()]


def texts(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Yield the path and the contents of each file that is UTF-8 text."""
    for path in tracked(root):
        content = path.read_bytes()
        if b"\0" not in content:
            yield str(path.relative_to(root)), content.decode("utf-8", errors="replace")


def project(root: Path = ROOT) -> dict[str, object]:
    found: dict[str, object] = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def address(root: Path = ROOT) -> str:
    content = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return str(content["tool"]["hatch"]["metadata"]["hooks"]["custom"]["address"])


def old_names(text: str) -> list[str]:
    """Return the lines of a text that install, or look up, a distribution called murmur."""
    return [line.strip() for line in text.splitlines() if "murmur" in line and any(form.search(line) for form in OLD)]


def disagreements(root: Path = ROOT) -> list[str]:
    """Compare version and date in pyproject.toml, CITATION.cff, CHANGELOG.md and the laboratory's distribution."""
    version, heading = str(project(root)["version"]), newest(root)
    citation = dict(re.findall(r"(?m)^(version|date-released): *\"?([^\"\n]+)", _read(root, "CITATION.cff")))
    lab = tomllib.loads(_read(root, "papers/pyproject.toml"))["project"]["version"]
    told = {"CITATION.cff": citation.get("version"), "CHANGELOG.md": heading[0], "papers/pyproject.toml": lab}
    found = [f"{name} is of {other}, pyproject.toml of {version}" for name, other in told.items() if other != version]
    if heading[1] != "unreleased" and citation.get("date-released") != heading[1]:
        found.append(f"CHANGELOG.md has the date {heading[1]}, CITATION.cff {citation.get('date-released')}")
    return found


def to_set(root: Path = ROOT) -> list[str]:
    """Return what is set at publication, and is not set."""
    found = []
    if PLACEHOLDER in address(root):
        found.append("the address of the repository: [tool.hatch.metadata.hooks.custom] of pyproject.toml")
    if newest(root)[1] == "unreleased":
        found.append("the date: the heading of CHANGELOG.md, and date-released of CITATION.cff")
    return found


def newest(root: Path) -> tuple[str, str]:
    """Version and date of the first section of CHANGELOG.md."""
    match = re.search(r"(?m)^## (\S+) \(([^)]+)\)", _read(root, "CHANGELOG.md"))
    return (match[1], match[2]) if match is not None else ("none", "none")


def _read(root: Path, name: str) -> str:
    return (root / name).read_text(encoding="utf-8")
