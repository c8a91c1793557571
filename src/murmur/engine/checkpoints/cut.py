"""The number of pieces into which a run cuts each minibatch, kept beside its checkpoints and in each of their parts.

Minibatches are numbered by pieces, so a run that goes on with other learners keeps the number with which it began.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from murmur.core.plain_files import UNREADABLE, read_plain
from murmur.engine.checkpoints.checkpoint import CheckpointPart, Checkpoints, write_whole

FILE = "cut.json"
MOST_PIECES = 1_000_000
log = logging.getLogger(__name__)


def write_cut(out: Path, cut: int) -> None:
    """Write the number of pieces of a run that begins or is resumed."""
    write_whole(_file(out), json.dumps({"cut": cut}).encode())


def restore_cut(out: Path, cut: int) -> None:
    """Write the number of pieces of a resumed run again if its file is missing or damaged, with a warning."""
    try:
        if _written(out) == cut:
            return
    except ValueError:
        pass
    if _cut_of_parts(out) is None:  # of an older version
        log.warning("%s is missing: the checkpoint is taken for one of minibatches cut in %d", _file(out), cut)
    else:
        log.warning("%s is missing or damaged: minibatches stay cut in %d, as in the checkpoint", _file(out), cut)
    write_cut(out, cut)


def cut_of(out: Path) -> int | None:
    """Return the number of pieces of the run in a folder; None if it has not begun.

    It is taken from a part of a checkpoint if the file is missing or damaged.

    Raises:
        ValueError: The file is damaged, and no part that can be read names the number.
    """
    try:
        written = _written(out)
    except ValueError:
        kept = _cut_of_parts(out)
        if kept is None:
            raise
        return kept
    return _cut_of_parts(out) if written is None else written


def check_cut(out: Path, part: CheckpointPart, cut: int) -> None:
    """Check that all parts of a checkpoint are of minibatches that are cut in so many pieces.

    Raises:
        ValueError: One is of another number; the positions of the checkpoint would mean other minibatches.
    """
    others = {facts["cut"] for facts in part.all_facts if "cut" in facts} - {cut}  # older versions do not name it
    if others:
        raise ValueError(
            f"the checkpoint is of minibatches cut in {', '.join(map(str, sorted(others)))}, but this run cuts them in"
            f" {cut}, as {_file(out)} says: delete that file to go on with the checkpoint's number, or choose another"
            " --out"
        )


def _written(out: Path) -> int | None:
    """Number of pieces in the file; None if there is none.

    Raises:
        ValueError: The file is damaged.
    """
    path = _file(out)
    if not path.is_file():
        return None
    try:
        cut = json.loads(read_plain(path))["cut"]
    except UNREADABLE as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not _is_cut(cut):
        raise ValueError(
            f"{path} is damaged: minibatches are cut in at least 1 piece, not {cut!r:.40}, and at most {MOST_PIECES}"
        )
    return int(cut)


def _cut_of_parts(out: Path) -> int | None:
    """Number of pieces in the newest part of a checkpoint that names it."""
    named = (facts.get("cut") for facts in Checkpoints(out / "checkpoints").facts())
    return next((cut for cut in named if _is_cut(cut)), None)


def _is_cut(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_PIECES


def _file(out: Path) -> Path:
    return out / "checkpoints" / FILE
