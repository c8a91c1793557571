"""Archives of published corpora: downloaded with resumption, checked, and unpacked as plain files.

Downloads use lhotse, which continues interrupted ones. Unpacking is done here: whatever its names and links say, an
archive may write only regular files and folders below one folder.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import logging
import shutil
import tarfile
import urllib.error
import zlib
from collections.abc import Sequence
from pathlib import Path

from lhotse.utils import resumable_download
from rich import progress

from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.corpus.published.catalogue import CorpusPart, Published

log = logging.getLogger(__name__)
BLOCK_BYTES = 1 << 20
SPACE = 2.2  # size of archives and their contents, relative to archives
CUT_OFF = (EOFError, tarfile.ReadError, gzip.BadGzipFile, zlib.error)


def fetch(corpus: Published, parts: Sequence[CorpusPart], folder: Path, mirror: str | None = None) -> None:
    """Download, check and unpack parts into a folder, except those that are there already.

    Args:
        corpus: corpus of the parts.
        parts: parts to fetch.
        folder: folder for archives and their contents; made if missing.
        mirror: address that replaces the publisher's, with the same archive names below it.

    Raises:
        CorpusError: an archive cannot be fetched, is cut off, or is not the published one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [part for part in parts if not _unpacked(folder, part).exists()]
    need_bytes, free_bytes = SPACE * 1e6 * sum(p.megabytes for p in wanted), shutil.disk_usage(folder).free
    if need_bytes > free_bytes:
        log.warning("%s has %.1f GB free, about %.1f are needed", folder, free_bytes / 1e9, need_bytes / 1e9)
    for part in wanted:
        archive = folder / Path(part.file).name
        if not (archive.exists() and _fault(archive, part) is None):
            _download(f"{(mirror or corpus.address).rstrip('/')}/{part.file}", archive)
            _check(archive, part)
        unpack(archive, folder)
        for inner in sorted(folder.glob(part.nested)) if part.nested else ():
            unpack(inner, inner.parent)
        _unpacked(folder, part).touch()


def unpack(archive: Path, folder: Path) -> None:
    """Write the regular files of a tar archive below a folder; links and devices are left out with a warning."""
    base = folder.resolve()
    with progress.open(archive, "rb", description=f"unpacking {archive.name}") as raw:
        try:
            with tarfile.open(fileobj=raw, mode="r|*") as tar:
                for member in tar:
                    _write(tar, member, base, archive)
        except CUT_OFF as error:
            raise CorpusError(f"{archive} is damaged ({error}): remove it and fetch it again") from error


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, base: Path, archive: Path) -> None:
    target = (base / member.name).resolve()
    if not target.is_relative_to(base):
        raise CorpusError(f"{archive}: {member.name!r} leads out of {base}: this is not an archive of a corpus")
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    source = tar.extractfile(member) if member.isfile() else None
    if source is None:
        log.warning("%s: %s is not a regular file and was left out", archive, member.name)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        shutil.copyfileobj(source, file, BLOCK_BYTES)


def _unpacked(folder: Path, part: CorpusPart) -> Path:
    return folder / f".{Path(part.file).name}.unpacked"


def _download(url: str, archive: Path) -> None:
    try:
        resumable_download(url, archive)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        if archive.exists() and archive.stat().st_size == 0:
            archive.unlink()
        raise CorpusError(
            f"{url} cannot be fetched ({error}): check the network, name a --mirror, or fetch it by other means and "
            f"unpack it in a folder for --from; the data received so far stays in {archive.parent}"
        ) from error


def _check(archive: Path, part: CorpusPart) -> None:
    fault = _fault(archive, part)
    if fault is None:
        return
    if fault is EOFError:
        size = archive.stat().st_size
        raise CorpusError(f"{archive} ends after {size / 1e6:.1f} MB: run the same command again to continue")
    archive.unlink()
    what = f"its SHA-256 is not {part.sha256}" if fault is ValueError else "it is no whole gzip file"
    raise CorpusError(f"{archive} is not the published archive ({what}) and was removed: try again or another --mirror")


def _fault(archive: Path, part: CorpusPart) -> type[Exception] | None:
    """None, EOFError (cut off), ValueError (another digest), or gzip's error."""
    if part.sha256 and _sha256(archive) == part.sha256:
        return None
    try:
        with progress.open(archive, "rb", description=f"checking {archive.name}") as raw, gzip.open(raw) as content:
            while content.read(BLOCK_BYTES):
                pass
    except CUT_OFF as error:
        return type(error)
    return ValueError if part.sha256 else None


def _sha256(archive: Path) -> str:
    with progress.open(archive, "rb", description=f"checking {archive.name}") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # rich types no readinto
