"""The commit that records name, against git itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from murmur.run.folder.provenance import commit

AUTHOR = {f"GIT_{who}_{what}": "someone@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def git(folder: Path, *words: str) -> str:
    """Run git in a folder; return its output."""
    done = subprocess.run(
        ["git", *words], cwd=folder, env=os.environ | AUTHOR, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one commit."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "--quiet")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "first")
    return folder


def test_a_branch_a_packed_branch_and_a_commit_without_branch(checkout: Path) -> None:
    expected = git(checkout, "rev-parse", "HEAD")
    assert commit(checkout) == expected
    git(checkout, "pack-refs", "--all")
    assert commit(checkout) == expected
    git(checkout, "checkout", "--quiet", "--detach")
    assert commit(checkout) == expected


def test_worktrees(checkout: Path, tmp_path: Path) -> None:
    git(checkout, "worktree", "add", "--quiet", "-b", "branch", str(tmp_path / "other"))
    git(tmp_path / "other", "commit", "--quiet", "--allow-empty", "--message", "second")
    assert commit(tmp_path / "other") == git(tmp_path / "other", "rev-parse", "HEAD") != commit(checkout)
    git(checkout, "worktree", "add", "--quiet", "--detach", str(tmp_path / "detached"))
    assert commit(tmp_path / "detached") == commit(checkout)


def test_a_folder_that_is_no_checkout_has_none(tmp_path: Path) -> None:
    assert commit(tmp_path) is None
