"""Names of settings in messages of a task that is inside another task."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from murmur.core.errors import SettingError

_OWN = re.compile(r"(?<![\w.])task\.(?=[a-z])")


def renamed(message: str, prefix: str) -> str:
    """The message with `PREFIX.NAME` in place of each setting `task.NAME`."""
    return _OWN.sub(f"{prefix}.", message)


@contextmanager
def settings_under(prefix: str) -> Iterator[None]:
    """Rename the settings `task.NAME` in the message of a `ValueError` to `PREFIX.NAME`.

    Raises:
        SettingError: the block has raised a `ValueError` that names such a setting.
    """
    try:
        yield
    except ValueError as error:
        told = renamed(str(error), prefix)
        if told == str(error):
            raise
        raise SettingError(told) from error
