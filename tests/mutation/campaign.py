"""Errors planted in the sources, one at a time, and the tests that find them.

    python tests/mutation/campaign.py --rows runs/mutants.jsonl

A seed draws the same number of errors from each package: a comparison that is turned, a sum that becomes a difference,
a number that is one larger, a condition that is negated, a call that is left out. Each error is tried on the tests that
mirror its module, then on those of its package that name the module or its classes, then on the others of its package,
as `make test` runs them; an error that they miss is tried on the long campaigns of `make test-all` too. An error is
caught when a test fails that passes without it, or when the tests do not end in time. Rows are appended as they come,
and a second call goes on where the first one ended.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from measure import bar, close  # noqa: E402 - benchmarks are no package
from murmur.core.whole_files import FinishedLines  # noqa: E402

PACKAGES = ("strategies", "worlds", "engine", "elastic", "speech")
TESTS_OF = {  # packages whose tests also exercise a package
    "strategies": ("strategies", "testing"),
    "worlds": ("worlds", "strategies/test_oracles.py"),
    "engine": ("engine", "strategies/test_every_minibatch.py", "run"),
    "elastic": ("elastic", "engine", "worlds/process"),
    "speech": ("speech",),
}
LIMIT_SECONDS = 900.0
ATTEMPTS = 3
QUICK, SLOW = "not slow and not gpu and not cluster", "slow and not gpu and not cluster"
MISSED: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "only by long tests": lambda row: not row["by"] and bool(row["by_slow"]),
    "by no test": lambda row: not row["by"] and not row["by_slow"],
}
TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
SWAPPED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv,
}


@dataclass(frozen=True)
class Mutant:
    """One planted error.

    Attributes:
        path: module below `src/murmur`.
        number: number of the place among the module's places.
        what: line and text before and after.
    """

    path: str
    number: int
    what: str

    @property
    def package(self) -> str:
        """Package of the module."""
        return self.path.partition("/")[0]

    def source(self) -> str:
        """The module's text with the error."""
        tree = ast.parse((ROOT / "src/murmur" / self.path).read_text(encoding="utf-8"))
        parent, name, index = next(islice(places(tree), self.number, None))
        held = getattr(parent, name)
        new = changed(held if index is None else held[index])
        assert new is not None
        if index is None:
            setattr(parent, name, new)
        else:
            held[index] = new
        return ast.unparse(ast.fix_missing_locations(tree))


def changed(node: ast.AST) -> ast.AST | None:
    """The node with an error; None if it is no place for one."""
    new: Any = copy.deepcopy(node)
    match node:
        case ast.Compare(ops=[op]) if type(op) in TURNED:
            new.ops = [TURNED[type(op)]()]
        case ast.BinOp(op=op) if type(op) in SWAPPED:
            new.op = SWAPPED[type(op)]()
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            new.value = value + 1
        case ast.If(test=test):
            new.test = ast.UnaryOp(ast.Not(), test)
        case ast.BoolOp(op=op):
            new.op = ast.Or() if isinstance(op, ast.And) else ast.And()
        case ast.Expr(value=ast.Call() | ast.Await()):
            new = ast.Pass()
        case _:
            return None
    return ast.copy_location(new, node)


def places(tree: ast.Module) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Parent, field and index of all nodes inside functions, without annotations and raised messages."""

    def below(node: ast.AST, inside: bool) -> Iterator[tuple[ast.AST, str, int | None]]:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list") or isinstance(node, ast.Raise | ast.JoinedStr):
                continue
            for index, child in enumerate(value) if isinstance(value, list) else ((None, value),):
                if isinstance(child, ast.AST):
                    if inside:
                        yield node, name, index
                    yield from below(child, inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))

    return below(tree, False)


def mutants_of(path: Path) -> Iterator[Mutant]:
    """All errors that can be planted in a module."""
    for number, (parent, name, index) in enumerate(places(ast.parse(path.read_text(encoding="utf-8")))):
        held = getattr(parent, name)
        node = held if index is None else held[index]
        new = changed(node)
        if new is None or "log." in ast.unparse(node):
            continue
        before, after = ast.unparse(node).partition("\n")[0], ast.unparse(new).partition("\n")[0]
        what = f"{node.lineno}: {before} -> {after}"  # type: ignore[attr-defined] - such nodes have a line
        yield Mutant(path.relative_to(ROOT / "src" / "murmur").as_posix(), number, what)


def drawn(seed: int, count: int) -> list[Mutant]:
    """`count` errors, as many from each package; the packages alternate."""
    draw = random.Random(seed)
    by_package = []
    for package in PACKAGES:
        found = [m for path in sorted((ROOT / "src/murmur" / package).rglob("*.py")) for m in mutants_of(path)]
        by_package.append(draw.sample(found, count // len(PACKAGES)))
    return [mutant for group in zip(*by_package, strict=True) for mutant in group]


def tests_for(mutant: Mutant, tests: Path) -> list[list[str]]:
    """Files of tests for three calls of pytest: those that mirror the module, name it, and the package's others."""
    module = Path(mutant.path)
    near = [path for path in [tests / module.parent / f"test_{module.stem}.py"] if path.exists()]
    wide = [tests / name for name in TESTS_OF[mutant.package]]
    files = sorted({file for path in wide for file in ([path] if path.is_file() else path.rglob("test_*.py"))})
    named = [file for file in files if file not in near and names(mutant.path).search(file.read_text("utf-8"))]
    others = [file for file in files if file not in near and file not in named]
    return [[str(path) for path in paths] for paths in (near, named, others)]


def names(path: str) -> re.Pattern[str]:
    """The pattern of a module's dotted name and of its public classes and functions."""
    tree = ast.parse((ROOT / "src/murmur" / path).read_text(encoding="utf-8"))
    made = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    dotted = f"murmur.{path.removesuffix('.py').replace('/', '.')}"
    return re.compile(rf"\b({'|'.join([re.escape(dotted), *(name for name in made if not name.startswith('_'))])})\b")


def attempt(mutant: Mutant) -> dict[str, Any]:
    """Run the tests with an error in place, and the long ones if the others miss it."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        checkout = Path(place) / "murmur"
        for name in ("src", "tests", "benchmarks", "examples", "docs"):
            shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "Makefile"):
            shutil.copy(ROOT / name, checkout / name)
        by, by_slow = caught(mutant, checkout)
    row = {"path": mutant.path, "number": mutant.number, "what": mutant.what, "by": by, "by_slow": by_slow}
    return {**row, "seconds": round(time.monotonic() - began, 1)}


def caught(mutant: Mutant, checkout: Path) -> tuple[str, str]:
    """The quick test and the long test that catch an error, "" for none.

    Raises:
        RuntimeError: A test fails without the error, too, in each of `ATTEMPTS` attempts.
    """
    module = checkout / "src/murmur" / mutant.path
    groups = tests_for(mutant, checkout / "tests")
    for _ in range(ATTEMPTS):
        module.write_text(mutant.source(), encoding="utf-8")
        by = next(filter(None, (failing(checkout, paths, QUICK) for paths in groups)), "")
        by_slow = "" if by else failing(checkout, [path for paths in groups for path in paths], SLOW)
        shutil.copy(ROOT / "src/murmur" / mutant.path, module)
        name = by or by_slow
        if "::" not in name or not failing(checkout, [f"tests/{name}"], QUICK if by else SLOW):
            return by, by_slow
    raise RuntimeError(f"{name} fails without a planted error, too")


def failing(checkout: Path, paths: Sequence[str], marks: str) -> str:
    """The first test of these marks that fails, "too long" if the tests do not end, "" if all pass."""
    if not paths:
        return ""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    options = ["-x", "-n2", "-m", marks, "-p", "no:cacheprovider", "--tb=no", "-rfE"]
    command = [sys.executable, "-m", "pytest", *options, *paths]
    try:
        ended = subprocess.run(
            command, cwd=checkout, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return "too long"
    if ended.returncode in (0, 5):  # all passed, or there were none
        return ""
    lines = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[0].split(" - ")[0].partition("tests/")[2] if lines else f"pytest ended with {ended.returncode}"


def read(path: Path) -> dict[tuple[str, int], Mapping[str, Any]]:
    """Rows of a file, by module and number."""
    lines = FinishedLines(path) if path.exists() else []
    return {(row["path"], row["number"]): row for row in map(json.loads, lines)}


def main() -> None:
    """Try the errors that the file of rows lacks; then print the figures of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True, help="file of results, appended to")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    asked = parser.parse_args()
    known = read(asked.rows)
    for mutant in drawn(asked.seed, asked.count):
        if (mutant.path, mutant.number) in known:
            continue
        row = attempt(mutant)
        print(json.dumps(row), flush=True)
        with asked.rows.open("a") as file:
            file.write(json.dumps(row) + "\n")
    tell(list(read(asked.rows).values()))


def tell(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print figures, with the errors that only long tests find and those that no test finds."""
    lines = {key: [f"{row['path']}:{row['what']}" for row in rows if wanted(row)] for key, wanted in MISSED.items()}
    figures = {"errors": len(rows), "caught": sum(bool(row["by"]) for row in rows), **lines}
    close("mutants", figures, [bar("errors that only the long tests find", len(lines["only by long tests"]), 0)])


if __name__ == "__main__":
    main()
