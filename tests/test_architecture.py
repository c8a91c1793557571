"""Allowed imports between packages, and limits on the size of files and functions."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
ROOT = REPOSITORY / "src" / "murmur"
FILES = sorted(ROOT.rglob("*.py"))
PAPERS = sorted((REPOSITORY / "papers").rglob("*.py"))
TRAINER: dict[str, set[str]] = {  # package -> other packages of murmur; its own files always
    "accelerator": set(),
    "core": {"accelerator"},
    "execution": set(),
    "plugins": set(),
    "elastic": {"core"},
    "strategies": {"core"},
    "worlds": {"accelerator", "core", "elastic"},
    "engine": {"accelerator", "core", "elastic"},
    "run.folder": {"core"},
    "report": {"core", "run.folder"},
    "run": {"accelerator", "core", "engine", "execution", "plugins", "report", "run.folder", "strategies", "worlds"},
    "user_loop": {"core", "elastic", "engine", "run.folder", "worlds"},
    "integrations": {"core", "engine", "user_loop", "worlds"},
    "tasks": {"engine"},
    "recipes": {"core", "engine", "strategies", "tasks"},
    "testing": {"core", "engine", "worlds.virtual"},
    "simulation": {
        "core",
        "elastic",
        "engine",
        "execution",
        "report",
        "run",
        "run.folder",
        "worlds.process.environment",
        "worlds.virtual",
    },
    "comparison": {"core", "engine", "execution", "report", "run", "run.folder", "simulation", "worlds"},
    "commands": {
        "comparison",
        "core",
        "engine",
        "execution",
        "plugins",
        "report",
        "run",
        "run.folder",
        "simulation",
        "worlds",
    },
}
RECOGNISER: dict[str, set[str]] = {
    "speech": {
        "core.counted",
        "core.model_mode",
        "core.plain_files",
        "core.torch_private",
        "core.whole_files",
        "execution",
        "report.error_rate",
    },
    "speech.tasks": {"core", "engine", "execution", "report.error_rate", "run.folder", "speech"},
    "speech.recognition": {"core", "engine", "execution", "report", "run", "run.folder", "speech", "speech.tasks"},
    "speech.recipes": {
        "core",
        "engine",
        "execution",
        "report",
        "run",
        "run.folder",
        "speech",
        "speech.tasks",
        "strategies",
        "worlds",
    },
    "speech.commands": {
        "commands",
        "core",
        "engine",
        "execution",
        "report.error_rate",
        "run",
        "run.folder",
        "speech",
        "speech.recipes",
        "speech.recognition",
        "speech.tasks",
    },
    "speech.plugin": {"plugins"},
}
MAY_IMPORT = TRAINER | RECOGNISER
ANYTHING = {"cli", "__init__", "__main__"}  # of the trainer
NOT_IN_STRATEGIES = {"time", "os", "threading", "torch.distributed", "socket", "subprocess", "multiprocessing"}
OPTIONAL = {
    "matplotlib",
    "tensorboard",
    "torch.utils.tensorboard",
    "espeakng_loader",
    "sherpa_onnx",
    "onnx",
    "mpi4py",
    "fsspec",
}  # extras, imported where they are used
TORCH_PRIVATE = "core/torch_private.py"
READS_ENVIRONMENT = {"worlds/process/environment.py"}
ACCELERATOR = re.compile(r"cuda|\bhip\b|rocm|\bmps\b|\bxpu\b|torch\.(accelerator|Stream|Event)\b", re.IGNORECASE)
CLASSES_OF_ONE_NAME = {  # names of several classes, still
    *(
        "Arc",
        "Arrival",
        "Decoding",
        "Layout",
        "Limits",
        "Material",
        "Origin",
        "Piece",
        "Published",
        "Reference",
        "Sound",
        "Stream",
        "Unit",
        "Wanted",
        "_Token",
    ),
}
WITHOUT_PRIVATE_CALLS = {"core", "elastic", "engine", "worlds", "user_loop"}
# Of named tuples and os, documented by Python; of atexit, which has no other way to call its functions.
PUBLIC_THOUGH_PRIVATE = {"_replace", "_asdict", "_fields", "_exit", "_run_exitfuncs"}
RELATIVE_WORDS = {"Who", "What", "Which", "How", "Where", "Whether"}  # no docstring begins with one
MAX_FILE_LINES, MAX_FUNCTION_LINES = 500, 40


def layer(module: str) -> str:
    """The package of a dotted module of murmur; a part of a package where the table names one."""
    parts = ".".join(module.split(".")[:2])
    return parts if parts in MAY_IMPORT else module.split(".", maxsplit=1)[0]


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def name_of(path: Path) -> str:
    dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return dotted.removesuffix(".__init__") or "__init__"


@cache
def imports(path: Path) -> tuple[str, ...]:
    found: list[str] = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
    return tuple(found)


@cache
def modules() -> frozenset[str]:
    return frozenset(name_of(path) for path in FILES)


def own_imports(path: Path) -> set[str]:
    found = {i.removeprefix("murmur.") for i in imports(path) if i.startswith("murmur.")}
    return (found & modules()) - {name_of(path)}


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (n for n in ast.walk(tree(path)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def offenders(found: Callable[[Path], Iterator[str]]) -> list[str]:
    """Complaints about all files, each with the module's name."""
    return [f"{name_of(path)}: {complaint}" for path in FILES for complaint in found(path)]


def upward(path: Path) -> Iterator[str]:
    here = layer(name_of(path))
    for other in own_imports(path):
        allowed = here in ANYTHING or any(
            layer(other) == layer(p) and (is_in(other, p) or is_in(p, other)) for p in MAY_IMPORT[here] | {here}
        )
        if not allowed:
            yield f"{here} imports {other}"


def test_every_package_is_in_the_table() -> None:
    assert {layer(name_of(path)) for path in FILES} == set(MAY_IMPORT) | ANYTHING


def test_imports_go_downwards() -> None:
    assert offenders(upward) == []


def recogniser_in_the_trainer(path: Path) -> Iterator[str]:
    if not is_in(name_of(path), "speech"):
        yield from (i for i in imports(path) if is_in(i, "murmur.speech"))


def test_the_trainer_imports_nothing_of_the_recogniser() -> None:
    assert not any(is_in(p, "speech") for package in TRAINER for p in TRAINER[package])
    assert offenders(recogniser_in_the_trainer) == []


def of_papers(path: Path) -> Iterator[str]:
    yield from (i for i in imports(path) if is_in(i, "murmur_papers"))


def test_nothing_installed_imports_the_studies_of_papers() -> None:
    assert offenders(of_papers) == []
    assert PAPERS
    assert any(list(of_papers(path)) for path in PAPERS)


def machine(path: Path) -> Iterator[str]:
    here, used = layer(name_of(path)), set(imports(path))
    if str(path.relative_to(ROOT)) == TORCH_PRIVATE:
        return
    if here == "strategies":
        yield from sorted(used & NOT_IN_STRATEGIES)
    if here in ("core", "elastic", "engine", "report", "strategies") or is_in(here, "speech"):
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


def accelerators(path: Path) -> Iterator[str]:
    """Names of accelerators in code; texts of documentation may name them as examples."""
    documents = {id(n.value) for n in ast.walk(tree(path)) if isinstance(n, ast.Expr)}
    for n in ast.walk(tree(path)):
        code = isinstance(n, ast.Name | ast.Attribute | ast.ClassDef | ast.FunctionDef | ast.alias)
        text = isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in documents
        said = n.value if text else getattr(n, "name", "") or ast.unparse(n) if code else ""
        if len(said.split()) == 1 and ACCELERATOR.search(said):
            yield f"{said} in line {n.lineno}"


def test_accelerators_are_named_in_one_package() -> None:
    assert list(accelerators(ROOT / "accelerator" / "device.py"))
    files = [p for p in [*FILES, *PAPERS] if p.parent != ROOT / "accelerator"]
    assert [f"{path.name}: {complaint}" for path in files for complaint in accelerators(path)] == []


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
    assert offenders(too_long) + [f"{p.stem}: {c}" for p in PAPERS for c in too_long(p)] == []


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


def folder_of(module: str) -> str:
    """The folder of a module; a module at the root stands for itself."""
    known = {name_of(p) for p in FILES if p.name == "__init__.py"}
    return module if module in known or "." not in module else module.rpartition(".")[0]


def cycles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Largest sets of nodes each of which reaches all others."""
    reached = graph
    while (further := {node: near.union(*(reached[o] for o in near)) for node, near in reached.items()}) != reached:
        reached = further
    return {frozenset({node, *(o for o in r if node in reached[o])}) for node, r in reached.items() if node in r}


def test_no_cycles_between_folders() -> None:
    graph: dict[str, set[str]] = {folder_of(name_of(p)): set() for p in FILES}
    for path in FILES:
        here = folder_of(name_of(path))
        graph[here] |= {folder_of(other) for other in own_imports(path)} - {here}
    found = cycles(graph)
    assert sorted(map(sorted, found)) == []


def test_class_names_occur_once() -> None:
    """Groups of options are private to their command."""
    files = [p for p in FILES if p.parent.name != "commands"]
    count = Counter(n.name for p in files for n in ast.walk(tree(p)) if isinstance(n, ast.ClassDef))
    assert {name for name, times in count.items() if times > 1} == CLASSES_OF_ONE_NAME
