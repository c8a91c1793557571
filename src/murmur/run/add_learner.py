"""Adds a learner to a run that is under way.

The folder of a run of several learners holds its request (request.json) and its meeting point (launch.json), without
the secret. An added learner takes the next unused number, and joins late like a lost learner that was started again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from murmur.core.errors import SettingError
from murmur.core.facts import Facts
from murmur.core.plain_files import UNREADABLE, read_plain
from murmur.engine.experiment import Experiment
from murmur.run.folder.contents import LAUNCH, REQUEST, RUN, read_facts, refuse_links
from murmur.run.origin import source_of
from murmur.run.request import RunRequest
from murmur.strategies import ALL
from murmur.worlds.process.launch.environment import Place
from murmur.worlds.process.launch.secret import from_file
from murmur.worlds.process.store.torch_store import connect

CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class AddedLearner:
    """A learner that joins a run under way.

    Attributes:
        request: The request of the run, for this learner.
        experiment: Its experiment.
        place: Place of the learner among the others.
    """

    request: RunRequest
    experiment: Experiment
    place: Place


def one_more(run: Path, secret_file: Path, threads: int | None, trust: bool = False) -> AddedLearner:
    """Return the next learner of a run under way; `trust` runs any file that run.json names.

    Raises:
        SettingError: learners cannot be added to this run, or one of its files is damaged.
        ConnectionError: the run has ended.
    """
    refuse_links(run)
    files = [run / name for name in (RUN, REQUEST, LAUNCH)]
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise SettingError(f"{run} is not a run of several learners that has begun: {', '.join(missing)} is missing")
    _fields(files[0], source=str)
    facts, request = read_facts(run), RunRequest.read(files[1])
    launch = _fields(files[2], store=str, learners=int, host=str, port=int, generation=int)
    if launch["store"] == "torchrun":
        raise SettingError("torchrun fixes the number of its learners: start the run with murmur train --learners")
    source = source_of(run, facts, trust)
    request = replace(request, source=source, out=run, resume=False, threads=threads, secret_file=secret_file)
    experiment = request.experiment()
    strategy = experiment.strategy
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
    return AddedLearner(request, experiment, replace(place, rank=place.size + number - 1))


def _fields(path: Path, **kinds: type) -> dict[str, Any]:
    """Read fields of a JSON object, each of a given type.

    Raises:
        SettingError: a field is missing or of another type, or the file does not hold an object.
    """
    try:
        found = json.loads(read_plain(path))
    except UNREADABLE as error:
        raise SettingError(f"{path} is damaged ({error}): learners can be added to a run that is under way") from error
    wrong = [n for n, kind in kinds.items() if not isinstance(found, dict) or not isinstance(found.get(n), kind)]
    if wrong:
        raise SettingError(f"{path} does not say {', '.join(wrong)}: it is of another version, or damaged")
    return {name: found[name] for name in kinds}
