"""Who may import whom, and how large things may grow."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "murmur"
FILES = sorted(ROOT.rglob("*.py"))
VOCABULARY = {
    "deal",
    "drawing",
    "exchange",
    "flat",
    "gossip",
    "request",
    "group",
    "handover",
    "learner",
    "mistakes",
    "mixing",
    "node",
    "overlap",
    "regroup",
    "reunion",
    "roll",
    "source",
    "together",
    "trace",
    "weights",
    "world",
}
GLUE = {
    "recipes",
    "cli",
    "commands",
    "compared",
    "adding",
    "joined",
    "settings",
    "simulated",
    "trained",
    "training",
    "demo",
    "__main__",
    "__init__",
} | {"conformance"}
MAY_IMPORT = {  # package -> other packages of murmur; its own files always
    "strategies": {"vocabulary"},
    "worlds": {"vocabulary"},
    "engine": {"vocabulary"},
    "speech": set[str](),
    "plan": {"vocabulary", "worlds"},
    "theory": {"vocabulary"},
    "report": {"vocabulary"},
    "vocabulary": set[str](),
}
NOT_IN_STRATEGIES = {"time", "os", "threading", "torch.distributed", "socket", "subprocess", "multiprocessing"}
READS_ENVIRONMENT = {"worlds/torch/environment.py"}
MAX_FILE_LINES, MAX_FUNCTION_LINES = 500, 40


def layer(module: str) -> str:
    """The layer of a dotted module of murmur, without the leading `murmur.`."""
    first = module.split(".", maxsplit=1)[0]
    return "vocabulary" if first in VOCABULARY else "glue" if first in GLUE else first


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def name_of(path: Path) -> str:
    dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return dotted.removesuffix(".__init__") or "__init__"


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(path: Path) -> set[str]:
    known = {name_of(p) for p in FILES}
    found = {i.removeprefix("murmur.") for i in imports(path) if i.startswith("murmur.")}
    return {i for i in found if i in known} - {name_of(path)}


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (n for n in ast.walk(tree(path)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_go_downwards(path: Path) -> None:
    here = layer(name_of(path))
    if here == "glue":
        return
    allowed = MAY_IMPORT[here] | {here}
    for other in own_imports(path):
        assert layer(other) in allowed, f"{name_of(path)} ({here}) imports {other} ({layer(other)})"
    if here == "plan":
        assert not {o for o in own_imports(path) if layer(o) == "worlds" and not o.startswith("worlds.virtual")}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_strategies_know_no_machine(path: Path) -> None:
    here = layer(name_of(path))
    used = set(imports(path))
    if here == "strategies":
        assert not used & NOT_IN_STRATEGIES
    if here in ("vocabulary", "engine", "speech", "report", "strategies"):
        assert not any(i.startswith("torch.distributed") or "_distributed_c10d" in i for i in used)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_environment_is_read_in_one_file(path: Path) -> None:
    reads = any(
        isinstance(n, ast.Attribute) and n.attr in ("environ", "getenv") and getattr(n.value, "id", "") == "os"
        for n in ast.walk(tree(path))
    )
    assert not reads or str(path.relative_to(ROOT)) in READS_ENVIRONMENT


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_sizes(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_FILE_LINES
    for f in functions(path):
        assert f.end_lineno is not None
        assert f.end_lineno - f.lineno + 1 <= MAX_FUNCTION_LINES, f"{name_of(path)}.{f.name} is too long"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_stand_at_the_top(path: Path) -> None:
    optional = {
        "matplotlib",
        "tensorboard",
        "torch.utils.tensorboard",
        "espeakng_loader",
        "sherpa_onnx",
        "onnx",
        "mpi4py",
    }
    for f in functions(path):
        for node in ast.walk(f):
            if isinstance(node, ast.Import | ast.ImportFrom):
                module = node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name
                assert any(module == o or module.startswith(o + ".") for o in optional), f"{name_of(path)}: {module}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_grab_bags_and_no_pickles(path: Path) -> None:
    assert path.stem not in ("utils", "common", "helpers", "misc")
    text = path.read_text()
    assert "pickle.load" not in text
    assert "allow_pickle=True" not in text
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
            assert any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in node.keywords)


def test_no_cycles() -> None:
    graph = {name_of(p): own_imports(p) for p in FILES}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path, module])
        if module not in done:
            for other in graph[module]:
                visit(other, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())
