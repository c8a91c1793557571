"""The glossary defines every public name of the core."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import murmur.core

GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"
ROW = re.compile(r"\| `(\w+)` \| `(\w+)` \| [^|\\]*(?:\\.[^|\\]*)*\. \|")


def defined_in(module: Path) -> Iterator[str]:
    """Public names that a module defines at its top level."""
    for statement in ast.parse(module.read_text(encoding="utf-8")).body:
        match statement:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names = [name]
            case ast.Assign(targets=targets):
                names = [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                names = [name]
            case _:
                names = []
        yield from (name for name in names if not name.startswith("_"))


def test_every_public_name_of_the_core_is_defined() -> None:
    """Rows for names that the core does not have are listed too."""
    core = Path(next(iter(murmur.core.__path__)))
    public = {f"{module.stem}.{name}" for module in core.glob("*.py") for name in defined_in(module)}
    rows = [f"{module}.{name}" for name, module in ROW.findall(GLOSSARY.read_text(encoding="utf-8"))]
    assert sorted(public ^ set(rows)) == []
    assert len(rows) == len(set(rows))
