"""The names that `murmur` itself offers: all there, all documented, none imported before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import murmur
from tests.project.public_names_page import PAGE, page

pytestmark = pytest.mark.interpreter


def test_every_public_name_has_a_home() -> None:
    assert sorted(murmur.HOMES) == sorted(murmur.__all__)
    assert [name for name in murmur.__all__ if getattr(murmur, name, None) is None] == []


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.project.public_names_page"


def test_importing_murmur_imports_nothing_heavy() -> None:
    program = "import sys, murmur; print([m for m in ('torch', 'numpy', 'typer', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(murmur, "Flock")
