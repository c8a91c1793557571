"""Checks of paths that a command will read or write, and of free space. They take milliseconds and create nothing.

Each command calls them first, so that a wrong path is reported before minutes of preparation and not after them.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from murmur.core.errors import SettingError

MB = 1e6
LEAST_BYTES = 10 * MB  # for records, tables and logs; larger outputs are estimated


def folder_to_write(folder: Path, option: str, needed_bytes: float = LEAST_BYTES) -> None:
    """Check that a folder exists or can be created, is writable, and has enough free space.

    Raises:
        SettingError: A file is in the way, or the place is read-only or full; names the option and the remedy.
    """
    there = _nearest_existing(folder, option)
    if not there.is_dir():
        raise SettingError(f"{option} {folder}: {there} is a file, not a folder: choose another {option}")
    if os.statvfs(there).f_flag & os.ST_RDONLY:
        raise SettingError(f"{option} {folder}: {there} is on a read-only file system: choose another {option}")
    if not os.access(there, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise SettingError(
            f"{option} {folder}: you may not write in {there}: choose another {option}, or change its permissions"
        )
    free = free_bytes(there)
    if free < needed_bytes:
        raise SettingError(
            f"{option} {folder}: {free / MB:.0f} MB are free in {there}, about {needed_bytes / MB:.0f} MB are needed:"
            f" make room, or choose another {option}"
        )


def file_to_write(path: Path, option: str) -> None:
    """Check that a file, or a FIFO or a device, can be written.

    Raises:
        SettingError: As for `folder_to_write`, or a folder is in the way.
    """
    if path.is_dir():
        raise SettingError(f"{option} {path} is a folder: give the name of a file")
    if not path.exists() or path.is_file():
        folder_to_write(Path(os.path.realpath(path)).parent, option)  # of the file that a link names
    elif not os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise SettingError(f"{option} {path}: you may not write to it: choose another {option}")


def not_an_input(path: Path, option: str, inputs: Iterable[Path]) -> None:
    """Raise `SettingError`, which names the option, if a file to write is one of those that are read."""
    not_inputs([path], option, inputs)


def not_inputs(paths: Iterable[Path], option: str, inputs: Iterable[str | Path | None]) -> None:
    """Raise `SettingError` if files to write are among those that are read; None is an option not given."""
    read = {Path(each).resolve() for each in inputs if each is not None}
    for path in paths:
        if path.resolve() in read:
            raise SettingError(f"{option} {path} is read too and would be overwritten: choose another {option}")


def not_a_folder_of_inputs(folder: Path, option: str, marks: Iterable[str], written: str) -> None:
    """Check that a folder to write is none of inputs, which hold a file of the same name as one that is written.

    Args:
        folder: Folder to write.
        option: Option that names it.
        marks: Files that only a folder of inputs holds.
        written: File that would be overwritten.

    Raises:
        SettingError: It holds one of `marks` and `written`; names the option.
    """
    found = next((name for name in marks if (folder / name).is_file()), None)
    if found is not None and (folder / written).is_file():
        raise SettingError(
            f"{option} {folder} is a data directory, since it holds {found}: its {written} would be overwritten:"
            f" choose another {option}"
        )


def file_to_read(path: Path, option: str) -> None:
    """Raise `SettingError`, which names the option, if a file does not exist or may not be read."""
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise SettingError(f"{option} {path} {what}")
    if not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        raise SettingError(f"{option} {path}: you may not read this file: change its permissions")


def free_bytes(folder: Path) -> float:
    """Return the bytes that this user can still write in a folder that exists."""
    return float(shutil.disk_usage(folder).free)


def _nearest_existing(folder: Path, option: str) -> Path:
    folder = folder.absolute()
    for there in (folder, *folder.parents):
        try:
            there.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise SettingError(f"{option}: a name in {folder} is too long for the file system") from error
            raise SettingError(f"{option} {folder}: {error.strerror}") from error
        return there
    raise SettingError(f"{option} {folder}: the root folder does not exist")
