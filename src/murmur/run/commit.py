"""The commit of the checkout that this package runs from, read from git's files; git itself need not be installed."""

from __future__ import annotations

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]


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
