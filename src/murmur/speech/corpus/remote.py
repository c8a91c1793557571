"""Files on object stores and web servers, named by URLs (s3://, gs://, https://) and transferred by fsspec.

A `RemotePath` is a URL in the form of a path: code that joins and prints paths serves both. It opens nothing by itself;
the functions here do, for local paths too. A transfer that fails is tried again after pauses that double, from the
last block of `BLOCK_BYTES` that arrived; a server without ranges sends the file from its beginning. fsspec is imported
for URLs only. Credentials and endpoints are those of the libraries: AWS_*, ~/.aws, gcloud, FSSPEC_*.
"""

from __future__ import annotations

import io
import logging
import re
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path, PosixPath
from typing import Any, BinaryIO, TypeGuard, TypeVar

from murmur.speech.corpus.errors import CorpusError, TransferError

log = logging.getLogger(__name__)
SCHEME = re.compile(r"(s3|gs|https?):/{1,2}(?=[^/])")
BLOCK_BYTES = 4 << 20  # of one request
TRIES, PAUSE_SECONDS = 5, 0.5
REFUSED, ABSENT, PASSING = (401, 403), (404, 410), (408, 429)  # status of HTTP; other ones from 400 to 499 stay
CREDENTIALS = re.compile(r"Credential|TokenRetrieval|UnauthorizedSSO|ProfileNotFound|RefreshError")  # names of errors
Result = TypeVar("Result")


class RemotePath(PosixPath):
    """A URL as a path; pathlib keeps one slash behind the scheme, and the text has both."""

    __slots__ = ()

    def __str__(self) -> str:
        return SCHEME.sub(r"\1://", super().__str__(), count=1)


def location(place: str | Path) -> Path:
    """A local path, or the `RemotePath` of a URL, with or without the second slash that `Path` removes."""
    return RemotePath(place) if SCHEME.match(str(place)) else Path(place)


def is_remote(path: Path) -> TypeGuard[RemotePath]:
    """True for a URL."""
    return isinstance(path, RemotePath)


def _is_web(path: RemotePath) -> bool:
    return path.parts[0].startswith("http")


class RemoteFile(io.RawIOBase):
    """A remote file that is read in order; it is opened by the first read.

    Raises:
        CorpusError: there is no such file.
        TransferError: access is refused, or the transfer goes on failing.
    """

    def __init__(self, path: RemotePath) -> None:
        self._path, self._place, self._file = path, 0, None

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Read the next bytes, after failures again from the same place."""
        view = memoryview(buffer).cast("B")
        found = _tried(self._path, lambda: self._next(len(view)))
        view[: len(found)] = found
        self._place += len(found)
        return len(found)

    def close(self) -> None:
        """Close the connection."""
        self._file = None
        super().close()

    def _next(self, count: int) -> bytes:
        file, self._file = self._file or _opened_at(self._path, self._place), None  # after an error it is opened again
        found: bytes = file.read(count)
        if not found and self._place < (file.size or 0):
            raise ConnectionError(f"it ends after {self._place} of {file.size} bytes")
        self._file = file
        return found


def _opened_at(path: RemotePath, place: int) -> Any:
    files, name = _filesystem(path)
    file = files.open(name, "rb", block_size=BLOCK_BYTES, cache_type="readahead")
    try:
        file.seek(place)
    except ValueError:  # the server has no ranges
        while place and (passed := len(file.read(min(place, BLOCK_BYTES)))):
            place -= passed
    return file


def _filesystem(path: RemotePath) -> tuple[Any, str]:
    """The file system of a URL, of which fsspec keeps one, and the name of the file in it."""
    import fsspec  # noqa: PLC0415 - the extra is optional

    files, name = fsspec.url_to_fs(str(path))
    return files, name


def _tried(path: RemotePath, action: Callable[[], Result]) -> Result:
    """The result of an action; failures that may pass are tried again."""
    for pause_seconds in (*(PAUSE_SECONDS * 2**n for n in range(TRIES - 1)), None):
        try:
            return action()
        except Exception as error:  # the libraries share no class of errors
            what = _lasting(path, error)
            if what is None and pause_seconds is None:
                what = TransferError(f"{path} cannot be transferred, tried {TRIES} times ({_line(error)})")
            if what is not None:
                raise what from error
            log.info("%s: %s; it is tried again in %g s", path, _line(error), pause_seconds)
            time.sleep(pause_seconds or 0.0)
    raise AssertionError("the last try returns or raises")


def _lasting(path: RemotePath, error: BaseException) -> Exception | None:
    """The message in one line for an error that stays when the action is repeated; None for others."""
    while isinstance(error, FileNotFoundError) and error.__cause__ is not None and _is_web(path):  # of any failure
        error = error.__cause__
    status = getattr(error, "status", getattr(error, "code", None))
    status = int(status) if str(status).isdigit() else 0
    if isinstance(error, CorpusError | TransferError):
        return error
    if isinstance(error, ImportError):
        return CorpusError(
            f"{path} needs libraries that are not installed ({_line(error)}): pip install murmur[remote]"
        )
    if isinstance(error, FileNotFoundError) or status in ABSENT:
        return CorpusError(f"{path}: there is no such file, folder or bucket ({_line(error)})")
    if isinstance(error, PermissionError) or status in REFUSED or CREDENTIALS.search(type(error).__name__):
        return TransferError(f"{path}: access is refused ({_line(error)}): check the credentials and their rights")
    stays = isinstance(error, NotImplementedError) or (400 <= status < 500 and status not in PASSING)
    return TransferError(f"{path} cannot be transferred ({_line(error)})") if stays else None


def _line(error: BaseException) -> str:
    told = str(error).strip().splitlines()
    return f"{type(error).__name__}: {told[0][:200]}" if told else type(error).__name__


def opened(path: Path) -> BinaryIO:
    """A file to read in order; a remote one raises the errors of `RemoteFile` when it is read."""
    if is_remote(path):
        return io.BufferedReader(RemoteFile(path), BLOCK_BYTES)  # type: ignore[return-value]  # is one in all but name
    return path.open("rb")


def bytes_of(path: Path) -> bytes:
    """The content of a file."""
    with opened(path) as file:
        return file.read()


@lru_cache(1)
def _recording(path: RemotePath) -> bytes:
    return bytes_of(path)


def sound_source(path: Path) -> Path | bytes:
    """A local file, or the content of a remote one; the last is kept, for the utterances of one recording."""
    return _recording(path) if is_remote(path) else path


Mark = tuple[int, str]


def marks_in(folder: RemotePath) -> dict[str, Mark]:
    """Size and version (tag or date) of each file in a folder, as the server lists them now; none without a folder."""

    def listed() -> list[dict[str, Any]]:
        files, name = _filesystem(folder)
        files.invalidate_cache()
        found: list[dict[str, Any]] = files.ls(name, detail=True)
        return found

    try:
        rows = _tried(folder, listed)
    except CorpusError as error:
        if isinstance(error.__cause__, ImportError):
            raise
        return {}
    return {row["name"].rstrip("/").rpartition("/")[2]: _mark(row) for row in rows if row["type"] == "file"}


def _mark(row: dict[str, Any]) -> Mark:
    version = next((row[key] for key in ("ETag", "etag", "LastModified", "mtime") if row.get(key)), "")
    return int(row["size"] or 0), str(version)


def mark(path: Path) -> tuple[int, object] | None:
    """Size and version of a file: the date of a local one, the tag or date of a remote one; None without a file."""
    if not is_remote(path):
        return (path.stat().st_size, path.stat().st_mtime_ns) if path.exists() else None

    def asked() -> Mark:
        files, name = _filesystem(path)
        return _mark(files.info(name))

    try:
        return _tried(path, asked)
    except CorpusError as error:
        if isinstance(error.__cause__, ImportError):
            raise
        return None


def is_file(path: Path) -> bool:
    """True if a file is there; raises the errors of a transfer."""
    return mark(path) is not None if is_remote(path) else path.is_file()


def exists(path: Path) -> bool:
    """True if a file or a local folder is there; raises the errors of a transfer."""
    return mark(path) is not None if is_remote(path) else path.exists()


@lru_cache(64)
def _listed(folder: RemotePath) -> dict[str, Mark]:
    return marks_in(folder)


def mark_of_data(path: Path) -> tuple[int, object] | None:
    """The mark of a file that does not change while this program runs: a folder of a store is listed once."""
    if not is_remote(path):
        return mark(path)
    return _listed(path.parent).get(path.name) or (mark(path) if _is_web(path) else None)


def publish(local: Path, path: RemotePath) -> None:
    """Copy a file to an object store, where it appears as a whole; raises the errors of `check_store`."""

    def put() -> None:
        files, name = _filesystem(path)
        files.put_file(str(local), name)

    _tried(path, put)


def check_store(path: RemotePath) -> None:
    """Check that a URL is of a store that takes files, and that its bucket can be read.

    Raises:
        CorpusError: there is no such bucket, or a web server is named.
        TransferError: access is refused, or the server cannot be reached.
    """
    if _is_web(path):
        raise CorpusError(f"{path}: a web server takes no files: name a folder, or a URL with s3:// or gs://")
    bucket = RemotePath(*path.parts[:2])

    def asked() -> None:
        files, name = _filesystem(bucket)
        files.info(name)

    _tried(bucket, asked)
