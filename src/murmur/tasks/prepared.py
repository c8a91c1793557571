"""What was prepared for training and is not there: training makes it, a command that only uses a model ends."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NoReturn

from murmur.core.errors import SettingError

Absent = Literal["make", "refuse"]


def refuse_to_make(what: str, cache: Path) -> NoReturn:
    """End, where something that training prepared is absent.

    Raises:
        SettingError: always; names what is absent, and where it was looked for.
    """
    raise SettingError(
        f"{what}, which the run's training prepared, is not in {cache.absolute()}; a command that uses a model prepares"
        " nothing: name the cache of the training with --set task.cache=FOLDER, or make it again with murmur prepare"
    )
