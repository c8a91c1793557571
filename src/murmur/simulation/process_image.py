"""State of a process, once for each of several learners in one process, of which one runs at a time.

What a script reads and changes in its process is then its own: environment, arguments, working folder, `__main__`, the
modules in the script's folder, random generators, default dtype. Modules that are installed elsewhere are shared.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from murmur.worlds.process.environment import set_variables, variables_now

MAIN = "__main__"


class LocalModules(MetaPathFinder):
    """Finder of modules in one folder, that keeps their names."""

    def __init__(self, folder: str) -> None:
        self.names = {MAIN}
        self._folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module that lies in the folder; other finders take those within its packages."""
        if path is not None:
            if fullname.partition(".")[0] in self.names:
                self.names.add(fullname)
            return None
        found = PathFinder.find_spec(fullname, None, target)
        places = [] if found is None else [found.origin, *(found.submodule_search_locations or ())]
        here = {os.path.join(self._folder, name) for name in (fullname, f"{fullname}.py", f"{fullname}/__init__.py")}
        if found is None or here.isdisjoint(places):
            return None
        self.names.add(fullname)
        return found


@dataclass(frozen=True)
class ProcessImage:
    """State of a process at one moment; `generators` are those of torch, numpy and random."""

    variables: Mapping[str, str]
    arguments: list[str]
    folder: str
    modules: Mapping[str, ModuleType]
    dtype: torch.dtype
    generators: tuple[Tensor, Any, Any]

    @classmethod
    def taken(cls, names: set[str]) -> ProcessImage:
        """Return the present state, with the modules of these names."""
        modules = {name: sys.modules[name] for name in names if name in sys.modules}
        generators = torch.get_rng_state(), np.random.get_state(), random.getstate()
        return cls(variables_now(), sys.argv, os.getcwd(), modules, torch.get_default_dtype(), generators)

    @classmethod
    def new(cls, seed: int, variables: Mapping[str, str], arguments: Sequence[str]) -> ProcessImage:
        """Return the state of a new process that runs the program `arguments[0]`. Its generators depend on the seed."""
        main = ModuleType(MAIN)
        main.__file__ = os.path.abspath(arguments[0])
        generators = (
            torch.Generator().manual_seed(seed).get_state(),
            np.random.RandomState(seed).get_state(),
            random.Random(seed).getstate(),
        )
        return cls(variables, [*arguments], os.getcwd(), {MAIN: main}, torch.get_default_dtype(), generators)

    def restore(self, names: set[str]) -> None:
        """Set the state of the process; forget modules of these names that are not in it."""
        set_variables(self.variables)
        sys.argv = self.arguments
        os.chdir(self.folder)
        for name in names - self.modules.keys():
            sys.modules.pop(name, None)
        sys.modules.update(self.modules)
        torch.set_default_dtype(self.dtype)
        torch_state, numpy_state, python_state = self.generators
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)


class ProcessImages:
    """State of the process for each learner of a script in a folder; a learner that runs on costs nothing."""

    def __init__(self, script: Path) -> None:
        self._folder = str(script.parent)
        self._local = LocalModules(self._folder)
        self._images: dict[int, ProcessImage] = {}
        self._here: int | None = None

    def start(self, learner: int, image: ProcessImage) -> None:
        """Set the state in which a learner begins, or begins again."""
        self._images[learner] = image
        self._here = None if self._here == learner else self._here

    def enter(self, learner: int) -> None:
        """Keep the state of the learner that has run until now, and set that of another one."""
        if self._here == learner:
            return
        if self._here is not None:
            self._images[self._here] = ProcessImage.taken(self._local.names)
        self._here = learner
        self._images[learner].restore(self._local.names)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Find modules as a program in the folder does; set the state of before at the end."""
        own = ProcessImage.taken(self._local.names)
        sys.meta_path.insert(0, self._local)
        sys.path.insert(0, self._folder)
        try:
            yield
        finally:
            sys.path.remove(self._folder)
            sys.meta_path.remove(self._local)
            own.restore(self._local.names)
