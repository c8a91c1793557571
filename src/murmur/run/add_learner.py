"""Adds a learner to a run that is under way.

A run whose learners share a secret file writes its meeting point to launch.json, without the secret. An added learner
takes the next unused number, and joins late like a lost learner that was started again.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import UnionType
from typing import Any

from murmur.core.errors import SettingError
from murmur.core.facts import Facts
from murmur.run.folder.contents import read_facts
from murmur.run.origin import source_of
from murmur.run.training import LAUNCH, RunRequest
from murmur.strategies import ALL
from murmur.worlds.process.launch.environment import Place
from murmur.worlds.process.launch.secret import from_file
from murmur.worlds.process.store.torch_store import connect

CONNECT_SECONDS = 10.0


def one_more(run: Path, secret_file: Path, threads: int | None, trust: bool = False) -> tuple[RunRequest, Place]:
    """Request and place of a learner that joins a run under way; `trust` runs any file that run.json names.

    Raises:
        SettingError: learners cannot be added to this run.
        ConnectionError: the run has ended.
    """
    files = [run / name for name in ("run.json", LAUNCH)]
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise SettingError(f"{run} is not a run of several learners that has begun: {', '.join(missing)} is missing")
    facts = _fields(files[0], source=str, settings=list, strategy=str | None, learners=int, init=str | None)
    launch = _fields(files[1], store=str, learners=int, host=str, port=int, generation=int, lease_seconds=float | None)
    if launch["store"] == "torchrun":
        raise SettingError("torchrun fixes the number of its learners: start the run with murmur train --learners")
    init = facts["init"]
    request = RunRequest(
        source_of(run, read_facts(run), trust),
        tuple(map(str, facts["settings"])),
        facts["strategy"],
        facts["learners"],
        run,
        threads=threads,
        init=None if init is None else Path(init),
        secret_file=secret_file,
        lease_seconds=launch["lease_seconds"],
    )
    strategy = request.experiment().strategy
    if not Facts.of(strategy).accepts_new_learners:
        takes = ", ".join(name for name, made in ALL.items() if Facts.of(made()).accepts_new_learners)
        raise SettingError(
            f"{strategy} accepts no new learners (accepts_new_learners); of murmur's strategies {takes} accept them"
        )
    place = Place(0, launch["learners"], 0, launch["host"], launch["port"], launch["generation"], store="murmur")
    place = replace(place, secret=from_file(secret_file))
    store = connect(place, CONNECT_SECONDS)
    store.set_timeout(timedelta(seconds=CONNECT_SECONDS))
    number = int(store.add("learners added", 1))
    return request, replace(place, rank=place.size + number - 1)


def _fields(path: Path, **kinds: type | UnionType) -> dict[str, Any]:
    """Read fields of a JSON object, each of a given type.

    Raises:
        SettingError: a field is missing or of another type, or the file does not hold an object.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise SettingError(f"{path} is damaged ({error}): learners can be added to a run that is under way") from error
    wrong = [n for n, kind in kinds.items() if not isinstance(found, dict) or not isinstance(found.get(n), kind)]
    if wrong:
        raise SettingError(f"{path} does not say {', '.join(wrong)}: it is of another version, or damaged")
    return {name: found[name] for name in kinds}
