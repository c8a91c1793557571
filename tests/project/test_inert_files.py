"""Files on disk are data: no loader that could run code is used."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(p for folder in ("src", "benchmarks", "examples") for p in (ROOT / folder).rglob("*.py"))
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml"}
CALLS = {"eval", "exec", "compile", "__import__", "extractall", "unpack_archive"}
TEMPLATES_ONLY = {"Markup"}
SIMULATED = "src/murmur/simulation"  # runs the script that its user names, as Python would
ASKED = {f"{SIMULATED}/script_learner.py": "exec", f"{SIMULATED}/script_run.py": "compile"}


def offences(tree: ast.Module) -> Iterator[str]:
    """Uses of loaders that run code, one line each."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"{node.lineno}: import {a.name}" for a in node.names if a.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            yield f"{node.lineno}: from {node.module}"
        elif isinstance(node, ast.Call):
            yield from (f"{node.lineno}: {what}" for what in wrong_call(node))


def wrong_call(node: ast.Call) -> Iterator[str]:
    name = ast.unparse(node.func)
    if (isinstance(node.func, ast.Name) and name in CALLS | TEMPLATES_ONLY) or name.rpartition(".")[2] in CALLS - {
        "compile",
        "eval",
    }:
        yield name
    if not name.endswith(("load", "read_array", "PackageImporter")):
        return
    said = {k.arg: ast.unparse(k.value) for k in node.keywords}
    if name == "torch.load" and said.get("weights_only") != "True":
        yield "torch.load without weights_only=True"
    if name in ("np.load", "numpy.load", "np.lib.format.read_array") and said.get("allow_pickle", "False") != "False":
        yield f"{name} that unpickles"
    if name in ("torch.hub.load", "torch.jit.load", "torch.package.PackageImporter"):
        yield name


def test_no_file_is_run() -> None:
    read = {path.relative_to(ROOT): offences(ast.parse(path.read_text(encoding="utf-8"))) for path in FILES}
    found = [(str(path), what) for path, offending in read.items() for what in offending]
    assert [f"{path}:{what}" for path, what in found if what.split()[-1] != ASKED.get(path)] == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from yaml import load",
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "np.load(f, allow_pickle=True)",
        "eval(text)",
        "archive.extractall(folder)",
        "shutil.unpack_archive(f)",
    ],
)
def test_offences_are_seen(text: str) -> None:
    assert len(list(offences(ast.parse(text)))) == 1


@pytest.mark.parametrize("text", ["model.eval()", "re.compile(x)", "np.load(f)", "torch.load(f, weights_only=True)"])
def test_harmless_calls_are_not(text: str) -> None:
    assert list(offences(ast.parse(text))) == []
