"""Run request: everything that a user asks of one training run, as one value that learners receive as data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

from murmur.core.errors import SettingError, nearest
from murmur.core.plain_files import read_plain
from murmur.core.whole_files import write_whole
from murmur.engine.experiment import Experiment
from murmur.run.configuration import resolved
from murmur.run.folder.contents import LATEST, REQUEST
from murmur.run.saved_model import Choice, InitialWeights, find_model


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A training run as a user requests it.

    Attributes:
        source: Experiment file or recipe.
        settings: Overrides of the form "name=value".
        strategy: Strategy as text, or None for the experiment's own.
        out: Folder for all files of the run; `LATEST` makes a new one.
        threads: Compute threads per learner; None divides the cores among the learners.
        init: Run folder or model file that provides the initial weights; None initialises them at random.
        world: Library that moves vectors between learners.
        secret_file: User's file with the secret that the learners of this run share.
        lease_seconds: Shortest silence after which a learner counts as lost; None uses the world's default.
        start_seconds: Time that learners wait for one another at the start; None uses the world's default.
        grace_seconds: Time for the learners to save when the launch is stopped; None: no limit.
    """

    source: str
    settings: tuple[str, ...] = ()
    strategy: str | None = None
    learners: int = 1
    out: Path = LATEST
    resume: bool = False
    restarts: int = 0
    threads: int | None = None
    init: Path | None = None
    tested: Choice = "lowest"
    world: Literal["torch", "mpi"] = "torch"
    secret_file: Path | None = None
    lease_seconds: float | None = None
    start_seconds: float | None = None
    grace_seconds: float | None = None
    force: bool = False

    @property
    def name(self) -> str:
        return Path(self.source).stem

    def experiment(self) -> Experiment:
        """Load the experiment and apply all settings, and the initial weights of `init`."""
        experiment = resolved(self.source, self.settings, strategy=self.strategy)
        if self.init is None:
            return experiment
        stem = find_model(self.init)
        content = blake2b(stem.with_suffix(".safetensors").read_bytes(), digest_size=8).hexdigest()
        return replace(experiment, initial=InitialWeights(stem, content))

    def to_json(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return json.dumps(values, indent=1, default=str)  # of the types of the fields, JSON lacks paths alone

    @classmethod
    def from_json(cls, text: str) -> Self:
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SettingError(f"the run request cannot be read: {error}") from error
        if not isinstance(given, Mapping):
            raise SettingError(f"the run request is not an object but of type {type(given).__name__}")
        types = get_type_hints(cls)
        for name in given:
            if name not in types:
                raise SettingError(f"the run request has an unknown field {name!r}{nearest(name, list(types))}")
        for name in types:
            if name not in given:
                raise SettingError(f"the run request lacks the field {name!r}")
        return cls(**{name: _typed(given[name], wanted, name) for name, wanted in types.items()})

    def write(self) -> None:
        """Write the request whole into the run's folder, for every learner that is started there later.

        `init` becomes absolute: an added learner may be started in another working directory.
        """
        init = None if self.init is None else self.init.absolute()
        write_whole(self.out / REQUEST, replace(self, init=init).to_json().encode())

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that `write` wrote; an error names the file and the field."""
        try:
            return cls.from_json(read_plain(path).decode())
        except (ValueError, OverflowError) as error:  # an integer that no number of 64 bits holds
            raise SettingError(f"{path} is damaged, or of another version: {error}") from error


def _typed(value: Any, wanted: Any, name: str) -> Any:
    for option in get_args(wanted) if isinstance(wanted, UnionType) else (wanted,):
        if option is Path and isinstance(value, str):
            return Path(value)
        if option is float and type(value) is int:
            return float(value)
        if get_origin(option) is tuple and isinstance(value, list) and all(isinstance(each, str) for each in value):
            return tuple(value)
        if get_origin(option) is Literal and value in get_args(option):
            return value
        if type(value) is option:  # not isinstance: true is no number
            return value
    shown = wanted.__name__ if isinstance(wanted, type) and get_origin(wanted) is None else str(wanted)
    raise SettingError(f"the run request's field {name!r} must be of type {shown}, got {value!r}")
