"""Contents of a run's folder: its files, the work among them that must not be lost, and a one-line description."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from murmur.core.counted import counted
from murmur.core.errors import SettingError
from murmur.core.plain_files import UNREADABLE, read_plain, refuse_link
from murmur.run.folder.lock import LOCK
from murmur.run.folder.state import ENDED, FAILED, state_of

RUN, REQUEST, LAUNCH = "run.json", "request.json", "launch.json"
RECOGNISER = "recogniser"  # everything besides the weights that recognition needs
RESCORING = "rescoring.json"  # weights of language models that rescore this run's results
DESCRIPTION = "description"  # plain files that a model of another kind needs beside its weights
MODELS = ("model", "best", "averaged")
FILES = (
    *(RUN, REQUEST, LAUNCH, ENDED, FAILED),
    *("records.jsonl", "trace.json", "score.json", "recognised.jsonl", "phases.json"),
    *("simulated.json", "simulated.png", "report.html", RESCORING),
    *(f"{name}.{kind}" for name in MODELS for kind in ("json", "safetensors")),
)
REPORTS = "errors"  # as in murmur.engine.task, which would load PyTorch
CHECKPOINT = f"checkpoints/{'[0-9]' * 10}"  # a copy with another name is a user's file
PATTERNS = (
    "trace-until-*.json",
    f"{CHECKPOINT}/learner-*.*",
    "checkpoints/marks/[0-9]*.*",
    *(f"checkpoints/{name}.json" for name in ("began", "cut", "outputs")),
    "decoded/*",
    *(f"decoded/{REPORTS}/*", f"{REPORTS}/*.txt"),
    f"{RECOGNISER}/graphs/graph-*/*",
    f"{RECOGNISER}/*",
    f"{DESCRIPTION}/*",
)
FOLDERS = (
    *(CHECKPOINT, "checkpoints/marks", "checkpoints", f"decoded/{REPORTS}", "decoded", REPORTS),
    *(f"{RECOGNISER}/graphs/graph-*", f"{RECOGNISER}/graphs", RECOGNISER),
    DESCRIPTION,
)
WORK = ("score.json", "simulated.json", *(f"{name}.safetensors" for name in MODELS))


def holds_work(folder: Path) -> bool:
    """True if the folder holds results that took time: a record, a checkpoint, a model or a score."""
    records = folder / "records.jsonl"
    if records.is_file() and records.stat().st_size > 0:
        return True
    if any((folder / name).is_file() for name in WORK):
        return True
    return any(True for _ in folder.glob("checkpoints/[0-9]*/learner-*"))


def refuse_work(folder: Path, ways: str) -> None:
    """Refuse a folder that holds a run; `ways` names the alternatives.

    Raises:
        SettingError: the folder holds a run; describes it.
    """
    if holds_work(folder):
        raise SettingError(f"{folder} holds a run already: {told(folder)}. {ways}")


def told(folder: Path) -> str:
    """Describe a run in one line: source, strategy, learners, state and date."""
    facts = read_facts(folder)
    experiment = facts.get("experiment")
    strategy = written(experiment["strategy"]) if isinstance(experiment, Mapping) and "strategy" in experiment else None
    learners = facts.get("learners")
    count = counted(learners, "learner") if isinstance(learners, int) else None
    started = f"started {facts['started']}" if "started" in facts else f"without a readable {RUN}"
    source = facts.get("source")
    parts = [source, strategy, count, str(state_of(folder)), started]
    return ", ".join(str(part) for part in parts if part)


def read_facts(folder: Path) -> Mapping[str, Any]:
    """Read run.json; empty if there is none or it cannot be read."""
    try:
        found = json.loads(read_plain(folder / RUN))
    except (OSError, *UNREADABLE):
        return {}
    return found if isinstance(found, dict) else {}


def written(value: Any) -> str:
    """Format a described value as Python code, such as KAVG(K=4)."""
    if not isinstance(value, Mapping) or "type" not in value:
        return str(value).rpartition(".")[2] if str(value).startswith("murmur.") else str(value)
    fields = ", ".join(f"{name}={written(x)}" for name, x in value.items() if name != "type")
    return f"{str(value['type']).rpartition('.')[2]}({fields})"


def refuse_links(folder: Path) -> None:
    """Check that no file or folder of a run is a symbolic link, through which a run would write elsewhere.

    The run's folder itself may be one, and so may other files in it.

    Raises:
        NotPlainFile: one is; names it.
    """
    patterns = (LOCK, *FILES, *PATTERNS, *FOLDERS)
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            inside = path.relative_to(folder)
            if path.is_symlink() and any(_is_of(inside, pattern) for pattern in patterns):
                refuse_link(path, " (in a run's folder, only the folder itself may be a link)")


def _is_of(path: Path, pattern: str) -> bool:
    return len(path.parts) == pattern.count("/") + 1 and path.match(pattern)


def remove_run(folder: Path) -> None:
    """Delete the files that a run wrote; keep other files and the lock."""
    for path in _written(folder):
        path.unlink(missing_ok=True)
    for pattern in FOLDERS:
        for path in folder.glob(pattern):
            if path.is_dir() and not _is_linked(path, folder) and not any(path.iterdir()):
                path.rmdir()


def remove_unused(folder: Path, lock: str) -> None:
    """Delete a new folder that contains nothing but the lock."""
    if {path.name for path in folder.iterdir()} <= {lock}:
        shutil.rmtree(folder)


def _written(folder: Path) -> Iterator[Path]:
    for name in FILES:
        yield folder / name
        yield from folder.glob(f".{name}.[0-9]*")  # left unfinished by a killed process
    for pattern in PATTERNS:
        yield from (path for path in folder.glob(pattern) if path.is_file() and not _is_linked(path.parent, folder))


def _is_linked(path: Path, folder: Path) -> bool:
    """True if a path in a run's folder is a link, or lies behind one."""
    return any(place.is_symlink() for place in (path, *path.parents) if place != folder and folder in place.parents)
