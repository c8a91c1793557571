"""Checks of a release that take minutes, on the files in dist/.

    python -m tests.packaging.release_check [--scratch FOLDER] [--steps build,page,...]       (make release-check)

Steps: `build` (a second build has the same bytes), `page` (the package page), `environments` (the core, and each
extra), `demo` (from an empty folder), `licences` and `bill` (of all dependencies, in release/). Status 3: all hold, and
something is left to set at publication.
"""

from __future__ import annotations

import argparse
import email
import hashlib
import json
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.packaging.licences import NAMED, refused
from tests.packaging.release_facts import ROOT, disagreements, project, to_set, tracked
from tests.packaging.wheel_check import MAY_LACK, Failed, check, environment, run

DIST, FOUND = ROOT / "dist", ROOT / "release"
EXTRAS = sorted(MAY_LACK)
LEFT = 3


def build(scratch: Path) -> None:
    """Build again from a copy of the tracked files, in another folder; the bytes are those of dist/.

    Raises:
        Failed: they are not.
    """
    copy, again = scratch / "copy", scratch / "again"
    for path in tracked():
        (copy / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy / path.relative_to(ROOT))
    run([sys.executable, "-m", "build", "--outdir", str(again), str(copy)], scratch)
    first, second = digests(DIST), digests(again)
    if different := sorted(name for name in first | second if first.get(name) != second.get(name)):
        raise Failed(f"two builds have other bytes: {', '.join(different)}")


def page(scratch: Path) -> None:
    """Render the description as a package index does, and look at its links.

    Raises:
        Failed: it does not render, or has a relative link.
    """
    from readme_renderer import markdown

    run([sys.executable, "-m", "twine", "check", "--strict", *map(str, files())], scratch)
    html = markdown.render(description(wheel()))
    if html is None or (relative := relative_links(html)):
        raise Failed(f"the package page has relative links, or does not render: {relative[:5] if html else html}")


def environments(scratch: Path) -> None:
    """Install the wheel with each extra, as wheel_check does."""
    check(wheel(), scratch, EXTRAS)


def demo(scratch: Path) -> None:
    """Run `murmur demo` in an empty folder.

    Raises:
        Failed: it ended badly, or left no report.
    """
    folder = scratch / "empty"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    run([str(everything(scratch).with_name("murmur")), "demo"], folder)
    if not (folder / "runs" / "demo" / "report.html").is_file():
        raise Failed("murmur demo wrote no report")


def licences(scratch: Path) -> None:
    """Write release/licences.md: all distributions that the extras bring.

    Raises:
        Failed: a licence is not known to be compatible.
    """
    rows = json.loads(run([str(everything(scratch)), str(ROOT / "tests/packaging/licences.py")], scratch))
    lines = ["| distribution | version | licence | note |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {version} | {stated or '-'} | {NAMED.get(name.lower(), ('', ''))[1]} |"
        for name, version, stated in rows
    ]
    FOUND.mkdir(exist_ok=True)
    (FOUND / "licences.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if wrong := refused(rows):
        raise Failed(f"licences that are not known to be compatible: {'; '.join(wrong)}")


def bill(scratch: Path) -> None:
    """Write the CycloneDX bill of materials of all extras to release/.

    Raises:
        Failed: it lacks a dependency.
    """
    FOUND.mkdir(exist_ok=True)
    out = FOUND / "bill_of_materials.cdx.json"
    words = ["environment", str(everything(scratch)), "--pyproject", str(ROOT / "pyproject.toml"), "--of", "JSON"]
    run([sys.executable, "-m", "cyclonedx_py", *words, "--output-reproducible", "-o", str(out)], scratch)
    listed = {normal(each["name"]) for each in json.loads(out.read_text(encoding="utf-8"))["components"]}
    wanted = {normal(re.split(r"[^\w.-]", line)[0]) for line in requirements()}
    if wanted - listed:
        raise Failed(f"the bill of materials lacks {', '.join(sorted(wanted - listed))}")


STEPS: dict[str, Callable[[Path], None]] = {
    step.__name__: step for step in (build, page, environments, demo, licences, bill)
}


def everything(scratch: Path) -> Path:
    """Python of the environment with all extras for users; made once, beside the core's."""
    core, whole = (scratch / name / "bin" / "python" for name in ("core", "everything"))
    if not core.exists():
        environment(scratch / "core", wheel(), "", None)
    return whole if whole.exists() else environment(scratch / "everything", wheel(), ",".join(EXTRAS), core)


def requirements() -> list[str]:
    """Return the requirements of the core and of the extras for users."""
    facts = project()
    extras = facts["optional-dependencies"]
    return [*facts["dependencies"], *(line for name in EXTRAS for line in extras[name])]


def files() -> list[Path]:
    return sorted(DIST.glob("murmur_asr-*"))


def wheel() -> Path:
    return next(path for path in files() if path.suffix == ".whl")


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def description(path: Path) -> str:
    """Return the text of a wheel's package page."""
    with zipfile.ZipFile(path) as file:
        name = next(name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        return str(email.message_from_bytes(file.read(name)).get_payload(decode=True), "utf-8")


def relative_links(html: str) -> list[str]:
    """Return the addresses in a page that lead nowhere outside its repository."""
    return [link for link in re.findall(r'(?:href|src)="([^"]*)"', html) if not link.startswith(("https://", "#"))]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=Path, help="folder for the environments; kept (about 4 GB)")
    parser.add_argument("--steps", default=",".join(STEPS), help="comma between")
    given = parser.parse_args(words)
    scratch = given.scratch or Path(tempfile.mkdtemp(prefix="release-check-"))
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        if wrong := disagreements():
            raise Failed("; ".join(wrong))
        for name in given.steps.split(","):
            print(f"== {name}", flush=True)
            STEPS[name](scratch.resolve())
    except Failed as problem:
        sys.exit(f"release check: {problem}")
    finally:
        if given.scratch is None:
            shutil.rmtree(scratch)
    left = to_set()
    print("\n".join(["all steps hold", *(f"left to set at publication: {each}" for each in left)]))
    return LEFT if left else 0


if __name__ == "__main__":
    sys.exit(main())
