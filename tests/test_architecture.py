"""Allowed imports between packages, and limits on the size of files and functions."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "murmur"
FILES = sorted(ROOT.rglob("*.py"))
MAY_IMPORT: dict[str, set[str]] = {  # package -> other packages of murmur; its own files always
    "core": set(),
    "execution": set(),
    "elastic": {"core"},
    "strategies": {"core"},
    "worlds": {"core", "elastic"},
    "engine": {"core", "elastic"},
    "speech": {
        "core.counted",
        "core.model_mode",
        "core.plain_files",
        "core.torch_private",
        "core.whole_files",
        "execution",
    },
    "tasks": {"core", "engine", "execution", "speech"},
    "run.folder": {"core"},
    "report": {"core", "run.folder"},
    "run": {"core", "engine", "execution", "report", "run.folder", "speech.models", "strategies", "worlds"},
    "recognition": {"core", "engine", "execution", "report", "run", "run.folder", "speech", "tasks"},
    "recipes": {
        "core",
        "engine",
        "execution",
        "report",
        "run",
        "run.folder",
        "speech",
        "strategies",
        "tasks",
        "worlds",
    },
    "user_loop": {"core", "elastic", "engine", "worlds"},
    "simulation": {"core", "engine", "execution", "report", "run", "run.folder", "worlds.virtual"},
    "testing": {"core", "engine", "worlds.virtual"},
}
ANYTHING = {"studies", "commands", "cli", "__init__", "__main__"}  # commands use studies, never the other way round
NOT_IN_STRATEGIES = {"time", "os", "threading", "torch.distributed", "socket", "subprocess", "multiprocessing"}
OPTIONAL = {
    "matplotlib",
    "tensorboard",
    "torch.utils.tensorboard",
    "espeakng_loader",
    "sherpa_onnx",
    "onnx",
    "mpi4py",
}  # extras, imported where they are used
TORCH_PRIVATE = "core/torch_private.py"
READS_ENVIRONMENT = {"worlds/process/launch/environment.py"}
WITHOUT_PRIVATE_CALLS = {"core", "elastic", "engine", "worlds", "user_loop"}
# Of named tuples and os, documented by Python; of atexit, which has no other way to call its functions.
PUBLIC_THOUGH_PRIVATE = {"_replace", "_asdict", "_fields", "_exit", "_run_exitfuncs"}
RELATIVE_WORDS = {"Who", "What", "Which", "How", "Where", "Whether"}  # no docstring begins with one
MAX_FILE_LINES, MAX_FUNCTION_LINES = 500, 40


def layer(module: str) -> str:
    """The package of a dotted module of murmur; a part of a package where the table names one."""
    return "run.folder" if is_in(module, "run.folder") else module.split(".", maxsplit=1)[0]


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


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


def offenders(found: Callable[[Path], Iterator[str]]) -> list[str]:
    """Complaints about all files, each with the module's name."""
    return [f"{name_of(path)}: {complaint}" for path in FILES for complaint in found(path)]


def upward(path: Path) -> Iterator[str]:
    here = layer(name_of(path))
    for other in own_imports(path):
        allowed = here in ANYTHING or any(is_in(other, p) or is_in(p, other) for p in MAY_IMPORT[here] | {here})
        if not allowed:
            yield f"{here} imports {other}"
        if here == "studies" and layer(other) == "commands":
            yield f"studies imports {other}"


def test_every_package_is_in_the_table() -> None:
    assert {layer(name_of(path)) for path in FILES} == set(MAY_IMPORT) | ANYTHING


def test_imports_go_downwards() -> None:
    assert offenders(upward) == []


def machine(path: Path) -> Iterator[str]:
    here, used = layer(name_of(path)), set(imports(path))
    if str(path.relative_to(ROOT)) == TORCH_PRIVATE:
        return
    if here == "strategies":
        yield from sorted(used & NOT_IN_STRATEGIES)
    if here in ("core", "elastic", "engine", "speech", "report", "strategies"):
        yield from (i for i in used if i.startswith("torch.distributed") or "_distributed_c10d" in i)


def test_strategies_know_no_machine() -> None:
    assert offenders(machine) == []


def private_torch(path: Path) -> Iterator[str]:
    if str(path.relative_to(ROOT)) == TORCH_PRIVATE:
        return
    yield from (i for i in imports(path) if i.startswith("torch.") and any(part[:1] == "_" for part in i.split(".")))
    for n in ast.walk(tree(path)):
        if isinstance(n, ast.Attribute) and n.attr.startswith("_") and not n.attr.startswith("__"):
            name = ast.unparse(n)
            if name.startswith(("torch.", "c10d.")):
                yield f"{name} in line {n.lineno}"


def test_private_interfaces_of_torch_are_used_in_one_module() -> None:
    assert offenders(private_torch) == []


def environment(path: Path) -> Iterator[str]:
    if str(path.relative_to(ROOT)) in READS_ENVIRONMENT:
        return
    for n in ast.walk(tree(path)):
        if isinstance(n, ast.Attribute) and n.attr in ("environ", "getenv") and getattr(n.value, "id", "") == "os":
            yield f"reads the environment in line {n.lineno}"


def test_environment_is_read_in_one_file() -> None:
    assert offenders(environment) == []


def private_of_others(path: Path) -> Iterator[str]:
    """Private attributes of other objects; a private name of this class is reached by self or cls."""
    if layer(name_of(path)) not in WITHOUT_PRIVATE_CALLS or str(path.relative_to(ROOT)) == TORCH_PRIVATE:
        return
    for n in ast.walk(tree(path)):
        private = isinstance(n, ast.Attribute) and n.attr.startswith("_") and not n.attr.startswith("__")
        if private and ast.unparse(n.value) not in ("self", "cls", "super()") and n.attr not in PUBLIC_THOUGH_PRIVATE:
            yield f"{ast.unparse(n)} in line {n.lineno}"


def test_objects_use_no_private_attributes_of_others() -> None:
    assert offenders(private_of_others) == []


def too_long(path: Path) -> Iterator[str]:
    lines = len(path.read_text().splitlines())
    if lines > MAX_FILE_LINES:
        yield f"{lines} lines"
    for f in functions(path):
        assert f.end_lineno is not None
        if f.end_lineno - f.lineno + 1 > MAX_FUNCTION_LINES:
            yield f"{f.name} has {f.end_lineno - f.lineno + 1} lines"


def test_sizes() -> None:
    assert offenders(too_long) == []


def imports_within(path: Path) -> Iterator[str]:
    for f in functions(path):
        for node in ast.walk(f):
            if isinstance(node, ast.Import | ast.ImportFrom):
                module = node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name
                if not any(module == o or module.startswith(o + ".") for o in OPTIONAL):
                    yield f"{f.name} imports {module}"


def test_imports_stand_at_the_top() -> None:
    assert offenders(imports_within) == []


def pickles(path: Path) -> Iterator[str]:
    if path.stem in ("utils", "common", "helpers", "misc"):
        yield "a module without one idea"
    text = path.read_text()
    yield from (word for word in ("pickle.load", "allow_pickle=True") if word in text)
    for node in ast.walk(tree(path)):
        loads = isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"
        if loads and not any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in node.keywords):
            yield f"torch.load in line {node.lineno}"


def test_no_grab_bags_and_no_pickles() -> None:
    assert offenders(pickles) == []


def docstrings_in_relative_clauses(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            words = (ast.get_docstring(node) or "").split(maxsplit=1)
            if words and words[0].strip(",:;.?'\"") in RELATIVE_WORDS:
                yield f"line {node.body[0].lineno}: {words[0]} {words[1].splitlines()[0] if words[1:] else ''}"


def test_docstrings_begin_with_what_the_thing_is() -> None:
    assert offenders(docstrings_in_relative_clauses) == []


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
