"""Every wait of the accelerator code is needed: without it, a program on the late device gives another result."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

import murmur
from murmur.accelerator import device as accelerator
from murmur.core import weights
from murmur.core.learner import Strategy
from murmur.engine import prefetch
from murmur.engine.checkpoints import checkpoint
from murmur.run import dry_run
from murmur.strategies import ADPSGD, KAVG, SyncSGD
from murmur.worlds.process import group
from tests.support.late_device import DEVICE, LateDevice, installed
from tests.support.late_programs import PROGRAMS, in_processes, joined_loop, prefetch_makes_nothing_wait, trained
from tests.support.pool import Pool

# Calls that order work, or that keep memory until it has run: of the interface's classes, and of PyTorch.
WAITS = {"wait_event", "wait_stream", "record", "record_stream", "record_event", "synchronize", "pinned", "pin_memory"}
INTERFACE = {"StreamEvent", "Stream", "Accelerator", "Cuda"}  # they do not call; what they name is called elsewhere
SEEDS = [None, *range(6)]
Program = Callable[[LateDevice], None]
SEEDED = [
    program for program in PROGRAMS if program is not prefetch_makes_nothing_wait
]  # with a seed, work runs unasked


@dataclass(frozen=True)
class Wait:
    """A call of a wait in a function of a module."""

    module: ModuleType
    function: str
    name: str
    number: int  # among the calls of this name in the function

    def __str__(self) -> str:
        return f"{self.module.__name__.removeprefix('murmur.')}.{self.function}: {self.name} #{self.number}"


class Without(ast.NodeTransformer):
    """Removes one call of a method, which gives None or what it was given, or one use of a function by its name."""

    def __init__(self, wait: Wait) -> None:
        self._wait, self._seen = wait, 0

    def _is_it(self, name: str) -> bool:
        self._seen += name == self._wait.name
        return name == self._wait.name and self._seen == self._wait.number

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Attribute) or not self._is_it(node.func.attr):
            return node
        return node.args[0] if self._wait.name == "pinned" else ast.Constant(None)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.parse("lambda x: x", mode="eval").body if self._is_it(node.id) else node


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef) and node.name not in INTERFACE:
            yield from functions(node, f"{node.name}.")


def methods_called(node: ast.AST) -> list[str]:
    return [n.func.attr for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]


def waits_of(module: ModuleType, names: set[str]) -> list[Wait]:
    """Every wait of a module, from its source."""
    found = []
    for function, node in functions(ast.parse(inspect.getsource(module))):
        used = methods_called(node) + [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
        found += [Wait(module, function, name, k + 1) for name in sorted(names) for k in range(used.count(name))]
    return found


ALL_WAITS = [
    *waits_of(accelerator, WAITS),
    *(
        wait
        for module in (weights, prefetch, dry_run)
        for wait in waits_of(module, {"keep", "await_copies", "synchronize"})
    ),
    *(wait for wait in waits_of(group, {"wait"}) if wait.function == "TorchGroup._complete"),
]


def code_of(code: CodeType, path: list[str]) -> CodeType:
    if not path:
        return code
    inner = next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == path[0])
    return code_of(inner, path[1:])


@contextmanager
def without(wait: Wait) -> Iterator[None]:
    """Run the module's function without the wait inside the block."""
    tree = ast.fix_missing_locations(_only(wait))
    path = wait.function.split(".")
    function: Any = wait.module
    for name in path:
        function = inspect.getattr_static(function, name)
    function = inspect.unwrap(function)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(function, "__code__", code_of(compile(tree, str(wait), "exec"), path))
        yield


def _only(wait: Wait) -> ast.Module:
    tree = ast.parse(inspect.getsource(wait.module))
    for name, node in functions(tree):
        if name == wait.function:
            Without(wait).visit(node)
    return tree


def failures(seed: int | None = None) -> list[str]:
    """Names of the programs that fail on a late device."""
    failed = []
    for program in PROGRAMS if seed is None else SEEDED:
        with installed(seed) as device:
            try:
                program(device)
            except AssertionError:
                failed.append(program.__name__)
    return failed


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_with_all_waits_the_results_are_those_of_the_processor(program: Program) -> None:
    for seed in SEEDS if program in SEEDED else [None]:
        with installed(seed) as device:
            program(device)


@pytest.mark.parametrize("wait", ALL_WAITS, ids=str)
def test_without_a_wait_a_program_fails(wait: Wait) -> None:
    """All work is late at first; with seeds, work that should have waited may also come too early."""
    with without(wait):
        failed = next((found for seed in SEEDS if (found := failures(seed))), [])
    print(f"| {wait} | {', '.join(failed)} |")
    assert failed, f"no program fails without {wait}: it is not needed, or a program is missing"


def test_the_list_of_waits_is_not_empty() -> None:
    assert {w.name for w in ALL_WAITS} == {*(WAITS - {"record_event", "pin_memory"}), "wait", "keep", "await_copies"}


def test_waits_are_in_the_accelerator_module_alone() -> None:
    root = Path(murmur.__file__).parent
    elsewhere = WAITS - {"record", "pinned"}
    found = {
        str(path.relative_to(root)): elsewhere.intersection(methods_called(ast.parse(path.read_text())))
        for path in root.rglob("*.py")
        if "accelerator" not in path.parts
    }
    assert not {path: names for path, names in found.items() if names}


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("strategy", [SyncSGD(), ADPSGD()], ids=lambda s: type(s).__name__)
def test_training_and_its_checkpoints_have_the_bits_of_the_processor(
    strategy: Strategy, seed: int | None, tmp_path: Path
) -> None:
    here = trained(strategy, "cpu", tmp_path / "here")
    with installed(seed) as device:
        there = trained(strategy, DEVICE, tmp_path / "there")
        assert device.ran > 200
    assert len(here) > 2
    assert here == there


def test_a_checkpoint_waits_for_its_tensors(tmp_path: Path) -> None:
    """With copies that do not wait, the files of the late device are others."""
    here = trained(SyncSGD(), "cpu", tmp_path / "here")
    source = inspect.getsource(checkpoint)
    assert source.count(".cpu()") == 1
    tree = compile(source.replace(".cpu()", ".to('cpu', non_blocking=True)"), "without", "exec")
    function = next(f for f, node in functions(ast.parse(source)) if "cpu" in methods_called(node))
    with pytest.MonkeyPatch.context() as patch, installed():
        patch.setattr(getattr(checkpoint, function), "__code__", code_of(tree, [function]))
        assert trained(SyncSGD(), DEVICE, tmp_path / "there") != here


@pytest.mark.parametrize("seed", [None, 7])
def test_a_joined_loop_has_the_bits_of_the_processor(seed: int | None) -> None:
    here = joined_loop("cpu")
    with installed(seed) as device:
        assert joined_loop(DEVICE) == here
        assert device.ran > 100


@pytest.mark.processes
@pytest.mark.parametrize(("seed", "own_streams"), [(None, False), (None, True), (7, True)])
@pytest.mark.parametrize("strategy", [KAVG(2), ADPSGD()], ids=lambda s: type(s).__name__)
def test_processes_have_the_weights_of_the_processor(
    pool: Pool, strategy: Strategy, seed: int | None, own_streams: bool
) -> None:
    here = pool.call(in_processes, 2, strategy, "cpu", None, False)[0]
    there = pool.call(in_processes, 2, strategy, DEVICE, seed, own_streams)[0]
    assert there == (here if isinstance(strategy, KAVG) else pytest.approx(here, rel=1e-9))
