"""Files on object stores and web servers, named by URLs (s3://, gs://, https://) and transferred by fsspec.

A `RemotePath` is a URL in the form of a path: code that joins and prints paths serves both. It opens nothing by itself;
the functions here do, for local paths too. A transfer that fails is tried again after pauses that double, from the
last block that arrived; a server without ranges sends the file from its beginning. fsspec is imported for URLs only.
Credentials and endpoints are those of the libraries: AWS_*, ~/.aws, gcloud, FSSPEC_*.
"""

from __future__ import annotations

import io
import logging
import re
import time
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path, PosixPath
from typing import Any, BinaryIO, TypeGuard, TypeVar

from murmur.speech.corpus.errors import CorpusError, TransferError

log = logging.getLogger(__name__)
SCHEME = re.compile(r"(s3|gs|https?):/{1,2}(?=[^/])")
BLOCK_BYTES = 4 << 20  # of one request
TRIES, PAUSE_SECONDS = 5, 0.5
REFUSED, ABSENT, PASSING = (401, 403), (404, 410), (408, 429)  # status of HTTP; others from 400 to 499 stay
CREDENTIALS = re.compile(r"Credential|TokenRetrieval|UnauthorizedSSO|ProfileNotFound|RefreshError")  # names of errors
Result = TypeVar("Result")
Mark = tuple[int, object]  # size and version of a file: date of a local one, tag or date of a remote one


class RemotePath(PosixPath):
    """A URL as a path; pathlib keeps one slash behind the scheme, and the text has both."""

    __slots__ = ()

    def __str__(self) -> str:
        return SCHEME.sub(r"\1://", super().__str__(), count=1)

    @property
    def is_web(self) -> bool:
        """True for a web server, which lists no folders and takes no files."""
        return self.parts[0].startswith("http")


def location(place: str | Path) -> Path:
    """A local path, or the `RemotePath` of a URL, with or without the second slash that `Path` removes."""
    return RemotePath(place) if SCHEME.match(str(place)) else Path(place)


def is_remote(path: Path) -> TypeGuard[RemotePath]:
    """True for a URL."""
    return isinstance(path, RemotePath)


class RemoteFile(io.RawIOBase):
    """A remote file that is read in order; it is opened by the first read.

    Raises:
        CorpusError: there is no such file, or a library is missing.
        TransferError: access is refused, or the transfer goes on failing.
    """

    def __init__(self, path: RemotePath) -> None:
        self._path, self._place, self._file = path, 0, None
        self._in_blocks = True

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Read the next bytes, after failures again from the same place."""
        found = _tried(self._path, lambda files, name: self._next(files, name, len(buffer)))
        buffer[: len(found)] = found
        self._place += len(found)
        return len(found)

    def _next(self, files: Any, name: str, count: int) -> bytes:
        file, self._file = self._file or self._opened(files, name), None  # after a failure it is opened again
        try:
            found: bytes = file.read(count)
        except ValueError:  # the server has no ranges
            self._in_blocks = False
            file = self._opened(files, name)
            found = file.read(count)
        if not found and self._place < (file.size or 0):
            raise ConnectionError(f"it ends after {self._place} of {file.size} bytes")
        self._file = file
        return found

    def _opened(self, files: Any, name: str) -> Any:
        if self._in_blocks:
            file = files.open(name, "rb", block_size=BLOCK_BYTES, cache_type="readahead")
            try:
                file.seek(self._place)
                return file
            except ValueError:  # it has said so
                self._in_blocks = False
        file, left = files.open(name, "rb", block_size=0), self._place
        while left:
            passed = file.read(min(left, BLOCK_BYTES))
            if not passed:
                raise ConnectionError(f"it ends {left} bytes before the place that was reached")
            left -= len(passed)
        return file


def _tried(path: RemotePath, action: Callable[[Any, str], Result]) -> Result:
    """The result of an action on a file system and a name in it; failures that may pass are tried again."""
    for attempt in range(TRIES):
        try:
            import fsspec  # noqa: PLC0415 - the extra is optional

            # fsspec keeps the file systems; lists that it keeps would hide what other processes write.
            return action(*fsspec.url_to_fs(str(path), use_listings_cache=False))
        except Exception as error:  # the libraries share no class of errors
            last: BaseException = error
            while isinstance(last, FileNotFoundError) and last.__cause__ is not None and path.is_web:  # of any failure
                last = last.__cause__
            what = _lasting(path, last)
            if what is not None:
                raise what from last
        log.info("%s: %s, try %d of %d", path, _line(last), attempt + 1, TRIES)
        time.sleep(PAUSE_SECONDS * 2**attempt if attempt + 1 < TRIES else 0.0)
    raise TransferError(f"{path} cannot be transferred, tried {TRIES} times ({_line(last)})") from last


def _lasting(path: RemotePath, error: BaseException) -> Exception | None:
    """The message in one line for an error that stays when the action is repeated; None for others."""
    status = str(getattr(error, "status" if hasattr(error, "status") else "code", None))
    code, told = int(status) if status.isdigit() else 0, f"({_line(error)})"
    if isinstance(error, ImportError):
        return CorpusError(f"{path} needs libraries that are not installed {told}: pip install 'murmur-asr[remote]'")
    if isinstance(error, FileNotFoundError) or code in ABSENT:
        return CorpusError(f"{path}: there is no such file, folder or bucket {told}")
    if isinstance(error, PermissionError) or code in REFUSED or CREDENTIALS.search(type(error).__name__):
        return TransferError(f"{path}: access is refused {told}: check the credentials and their rights")
    return TransferError(f"{path} cannot be transferred {told}") if 400 <= code < 500 and code not in PASSING else None


def _line(error: BaseException) -> str:
    told = str(error).strip().splitlines()
    return f"{type(error).__name__}: {told[0][:200]}" if told else type(error).__name__


def opened(path: Path) -> BinaryIO:
    """A file to read in order; a remote one raises the errors of `RemoteFile` when it is read."""
    if is_remote(path):
        return io.BufferedReader(RemoteFile(path), BLOCK_BYTES)
    return path.open("rb")


def bytes_of(path: Path) -> bytes:
    """The content of a file; raises as `opened`."""
    if not is_remote(path):
        return path.read_bytes()
    with opened(path) as file:
        return b"".join(iter(partial(file.read, BLOCK_BYTES), b""))


@lru_cache(1)
def sound_source(path: Path) -> Path | bytes:
    """A local file, or the content of a remote one, which is kept for the next utterance of the recording."""
    return bytes_of(path) if is_remote(path) else path


def marks_in(folder: RemotePath) -> dict[str, Mark]:
    """The mark of each file in a folder of a store now; none without a folder."""

    try:
        rows = _tried(folder, lambda files, name: files.ls(name, detail=True))
    except CorpusError as error:
        if isinstance(error.__cause__, ImportError):
            raise
        return {}
    return {row["name"].rpartition("/")[2]: _mark(row) for row in rows if row["type"] == "file"}


_listed = lru_cache(64)(marks_in)


def mark(path: Path) -> Mark | None:
    """The mark of a file of data, None without one; a folder of a store is listed once in the life of a process."""
    if not is_remote(path):
        return (path.stat().st_size, path.stat().st_mtime_ns) if path.exists() else None
    if not path.is_web:
        return _listed(path.parent).get(path.name)
    try:
        return _tried(path, lambda files, name: _mark(files.info(name)))
    except CorpusError as error:
        if isinstance(error.__cause__, ImportError):
            raise
        return None


def _mark(row: dict[str, Any]) -> Mark:
    versions = (row[key] for key in ("ETag", "etag", "LastModified", "mtime") if row.get(key))
    return int(row["size"] or 0), str(next(versions, ""))


def exists(path: Path) -> bool:
    """True if a file of data, or a local folder, is there."""
    return mark(path) is not None if is_remote(path) else path.exists()


def publish(local: Path, path: RemotePath) -> None:
    """Copy a file to a store, where it appears as a whole; raises the errors of `check_store`."""
    _tried(path, lambda files, name: files.put_file(str(local), name))


def check_store(path: RemotePath) -> None:
    """Check that a URL is of a store that takes files, and that its bucket can be read.

    Raises:
        CorpusError: there is no such bucket, a web server is named, or a library is missing.
        TransferError: access is refused, or the server cannot be reached.
    """
    if path.is_web:
        raise CorpusError(f"{path}: a web server takes no files: name a folder, or a URL with s3:// or gs://")
    _tried(RemotePath(*path.parts[:2]), lambda files, name: files.info(name))
