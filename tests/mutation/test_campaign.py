"""Planted errors: each is one change that compiles, and a module is as before after all were made."""

from __future__ import annotations

import ast
from collections import Counter
from difflib import ndiff
from pathlib import Path

import pytest

from tests.mutation import campaign
from tests.mutation.campaign import PACKAGES, ROOT, Mutant, drawn, mutants_of

MODULE = ROOT / "src/murmur/strategies/bmuf.py"


def test_every_error_is_one_change_that_compiles() -> None:
    plain = ast.unparse(ast.parse(MODULE.read_text()))
    mutants = list(mutants_of(MODULE))
    assert len(mutants) > 5
    for mutant in mutants:
        source = mutant.source()
        compile(source, mutant.path, "exec")
        assert source != plain
        before, after = mutant.what.partition(": ")[2].split(" -> ", 1)
        changes = [line[2:] for line in ndiff(plain.splitlines(), source.splitlines()) if line[0] in "+-"]
        assert 2 <= len(changes) <= 2 * max(before.count("\n") + 1, 4), mutant.what
        assert any(after in line for line in changes), mutant.what
    assert len({mutant.source() for mutant in mutants}) == len(mutants)


@pytest.mark.slow
def test_all_packages_get_as_many_errors_and_a_seed_repeats() -> None:
    errors = drawn(0, 10)
    assert Counter(mutant.package for mutant in errors) == dict.fromkeys(PACKAGES, 2)
    assert drawn(0, 10) == errors
    assert drawn(1, 10) != errors


def test_an_error_is_tried_on_the_tests_of_its_module_those_that_name_it_and_the_others(
    tmp_path: Path,
) -> None:
    texts = {
        "test_adpsgd.py": "",
        "test_rings.py": "ADPSGD(mixing='ring')",
        "test_kavg.py": "KAVG(8)",
        "deep/test_x.py": "",
    }
    for name, text in texts.items():
        path = tmp_path / "strategies" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    groups = campaign.tests_for(Mutant("strategies/adpsgd.py", 0, ""), tmp_path)
    named = [[Path(path).name for path in group] for group in groups]
    assert named == [["test_adpsgd.py"], ["test_rings.py"], ["test_x.py", "test_kavg.py"]]
