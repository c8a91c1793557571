"""Prepared data that is missing: training makes it; a command that only uses a model ends with an error."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NoReturn

from murmur.core.errors import SettingError

Absent = Literal["make", "refuse"]


def refuse_to_make(what: str, cache: Path) -> NoReturn:
    """End because prepared training data is missing.

    Raises:
        SettingError: always; the message names the missing data and the place where it was expected.
    """
    raise SettingError(
        f"{what}, which the run's training prepared, is not in {cache.absolute()}; a command that uses a model prepares"
        " nothing: name the cache of the training with --set task.cache=FOLDER, or make it again with murmur prepare"
    )
