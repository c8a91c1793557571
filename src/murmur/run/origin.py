"""Origin of a run: its experiment, proof that this user started it, and the files that it needs.

A run folder may come from an untrusted source, and an experiment that is a Python file is code. So run.json names the
file with a signature: an HMAC of its absolute path under a key that only this user's account on this machine can read.
Without a valid signature, commands that use a model do not run the file unless the caller trusts it explicitly.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from murmur.core.errors import SettingError

KEY = Path(".local", "state", "murmur", "key")  # below the user's home
KEY_BYTES = 32
PURPOSE = b"murmur experiment file\0"


def described_origin(source: str, task: object, out: Path) -> dict[str, Any]:
    """Entries of run.json on the experiment's file and the paths in its task, absolute and relative to the run."""
    facts: dict[str, Any] = {"paths": {name: _places(path, out) for name, path in paths_of(task)}}
    if not _is_file(source):
        return facts
    file = str(Path(source).absolute())
    return {**facts, "source_file": file, "signature": _signature(file, make=True)}


def source_of(folder: Path, run: Mapping[str, Any], trust: bool) -> str:
    """Return the experiment that run.json names: a recipe, or a file that this user on this machine has signed."""
    source = run.get("source")
    if not isinstance(source, str):
        raise SettingError(f"{folder} has no run.json that names the experiment of the model: give --experiment")
    if not _is_file(source):
        return source
    file = Path(str(run.get("source_file", source))).absolute()
    if not file.is_file():
        raise SettingError(f"{folder} was trained with {file}, which is not there: name the file with --experiment")
    if trust or _is_own(str(file), run.get("signature")):
        return str(file)
    raise SettingError(
        f"{folder / 'run.json'} names {file}, a program that would be run, and it was not written by you on this"
        " machine: read the file, then give --trust, or name your own experiment with --experiment"
    )


def is_of(run: Mapping[str, Any], source: str) -> bool:
    """True if a run is of the experiment `source`, which is a recipe's name or a file."""
    if run.get("source") == source:
        return True
    return _is_file(source) and run.get("source_file") == str(Path(source).absolute())


def located(folder: Path, run: Mapping[str, Any], given: Sequence[str] = ()) -> list[str]:
    """Return settings with the present paths of a run's files: relative to the run, or else absolute.

    Paths that the caller's `given` settings set are not looked up.

    Raises:
        SettingError: some files are at neither path; names them.
    """
    paths, named = run.get("paths"), {setting.partition("=")[0].strip() for setting in given}
    found, missing = [], []
    for name, places in paths.items() if isinstance(paths, dict) else ():
        if name in named or not isinstance(places, dict):
            continue
        near, far = folder.absolute() / str(places.get("from_run")), Path(str(places.get("absolute")))
        there = next((path for path in (Path(os.path.normpath(near)), far) if _exists(path)), None)
        if there is None:
            missing.append(f"{name} ({far}): give --set {name}=PATH")
        else:
            found.append(f"{name}={there}")
    if missing:
        raise SettingError(f"{folder} needs files that do not exist: {'; '.join(missing)}")
    return found


def paths_of(task: object) -> Iterator[tuple[str, Path]]:
    """Yield name and path of a task's fields that hold existing paths, except paths inside its corpus."""
    corpus = getattr(task, "corpus", None)
    for name, path in _paths(task, "task"):
        inside = isinstance(corpus, Path) and path != corpus and not path.is_absolute() and (corpus / path).exists()
        if _exists(path) and not inside:
            yield name, path


def _paths(value: object, name: str) -> Iterator[tuple[str, Path]]:
    if not is_dataclass(value) or isinstance(value, type):
        return
    for field in fields(value):
        inner, full = getattr(value, field.name), f"{name}.{field.name}"
        if isinstance(inner, Path):
            yield full, inner
        elif isinstance(inner, str) and Path(inner).suffix and Path(inner).is_file():
            yield full, Path(inner)
        else:
            yield from _paths(inner, full)


def _places(path: Path, out: Path) -> dict[str, str]:
    return {"absolute": str(path.absolute()), "from_run": os.path.relpath(path.absolute(), out.absolute())}


def _exists(path: Path) -> bool:
    return path.exists() or path.with_name(f"{path.name}.safetensors").exists()


def _is_file(source: str) -> bool:
    return Path(source).suffix == ".py"


def _is_own(file: str, signature: object) -> bool:
    mine = _signature(file, make=False)
    return mine is not None and isinstance(signature, str) and hmac.compare_digest(mine, signature)


def _signature(file: str, make: bool) -> str | None:
    """Signature of a file's path; None if this user has no key and `make` is false or fails."""
    key = _key()
    if key is None and make:
        key = _new_key()
    return None if key is None else hmac.digest(key, PURPOSE + os.fsencode(file), "sha256").hex()


def _key() -> bytes | None:
    """This user's key, from a file that no other user can read or write; None if there is no such file."""
    path = Path.home() / KEY
    try:
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            if facts.st_uid != os.getuid() or facts.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                return None
            found = file.read()
    except OSError:  # no file, or no permission to read it
        return None
    return found if len(found) == KEY_BYTES else None


def _new_key() -> bytes | None:
    path, key = Path.home() / KEY, secrets.token_bytes(KEY_BYTES)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside.unlink(missing_ok=True)
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key)
        try:
            os.link(beside, path)
        finally:
            beside.unlink()
    except OSError:  # another process was faster, or the home is not writable: the run then needs --trust
        return _key()
    return key
