"""A command of murmur in the process of a test."""

from __future__ import annotations

from typer.testing import CliRunner

from murmur.cli import app


def run(*words: object) -> str:
    """Run a command that must succeed; return all that it prints."""
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.output
