"""Contract of a fuzzed reader: read the files, or refuse them with an error of a promised kind that names the place."""

from __future__ import annotations

import resource
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType

from murmur.core.errors import user_message
from murmur.core.printable import OBEYED
from tests.fuzz.mutation import Mutator
from tests.fuzz.odd import NoFile, odd

DEADLINE_SECONDS = 20.0  # of processor time, for files of a few kilobytes
MEMORY_BYTES = 1 << 30  # beyond what the process has when it begins
Files = dict[str, bytes]


class Hang(BaseException):
    """The case exceeded its deadline."""


@dataclass(frozen=True)
class Target:
    """A reader and the files it reads.

    Attributes:
        make: writes valid files into an empty folder.
        read: reads them; what it returns does not matter.
        settle: puts right what a checksum would give away at once, so that the reader behind the checksum is reached;
            changes the files in place.
        errors: types that it may raise.
        says_where: an error must name a file of the folder.
        odd: the files get odd kinds of content (`fuzz.odd`) in place of plain mutations.
        plants: other things than files too, as for a reader of a run's folder.
    """

    make: Callable[[Path], None]
    read: Callable[[Path], object]
    settle: Callable[[Files], None] | None = None
    errors: tuple[type[Exception], ...] = (ValueError, OSError)
    says_where: bool = True
    odd: bool = False
    plants: bool = False


@dataclass(frozen=True)
class Verdict:
    """The end of a case: "read", "refused" or "fault", and the error."""

    kind: str
    what: str = ""


def files_of(folder: Path) -> Files:
    """All files below a folder, by their names in it."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def valid_files(target: Target) -> Files:
    """The files that `make` writes, by name."""
    with tempfile.TemporaryDirectory() as scratch:
        target.make(Path(scratch))
        return files_of(Path(scratch))


def mutant(target: Target, valid: Mapping[str, bytes], seed: int) -> Files:
    """Case `seed`: one to three files of a valid set mutated, one of them perhaps missing."""
    random = Random(seed)
    change, files = Mutator(random), dict(valid)
    if target.odd:
        odd(random, files, target.plants)
        if target.settle is not None and random.random() < 0.7:
            target.settle(files)
        return files
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        name = change.some(sorted(files))
        if random.random() < 0.04 and len(files) > 1:
            del files[name]
            continue
        try:
            files[name] = change.file(name, files[name])
        except Exception:  # already mutated to another kind than its name says, so its parser may raise anything
            files[name] = files[name][: change.place(len(files[name]))]
    if target.settle is not None and random.random() < 0.7:
        target.settle(files)
    return files


def write(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files into a folder."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(data, NoFile):
            data.plant(path)
        else:
            path.write_bytes(data)


def judge(target: Target, files: Mapping[str, bytes]) -> Verdict:
    """Call the reader on the files."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    write(files, folder)
    signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, DEADLINE_SECONDS)
    try:
        target.read(folder)
    except target.errors as error:
        return _refused(target, error, files, folder)
    except (Exception, Hang) as error:
        return Verdict("fault", f"{type(error).__name__}: {str(error)[:200]}{_where(error)}")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        shutil.rmtree(folder, ignore_errors=True)
    return Verdict("read")


def limit_memory() -> None:
    """Limit the further memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _refused(target: Target, error: Exception, files: Mapping[str, bytes], folder: Path) -> Verdict:
    said = f"{type(error).__name__}: {str(error)[:300]}"
    known = [str(folder), *(Path(name).name for name in files)]
    if target.says_where and not any(name in str(error) for name in known):
        return Verdict("fault", f"does not say where: {said}{_where(error)}")
    if OBEYED.search(user_message(error) or ""):
        return Verdict("fault", f"is not printable: {said!r}{_where(error)}")
    if not str(error).strip():
        return Verdict("fault", f"says nothing: {said}{_where(error)}")
    return Verdict("refused", said)


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/murmur/" in f.filename] or frames[-1:]
    last = own[-1]
    return f" at {last.filename.rpartition('/murmur/')[2]}:{last.lineno}"


def _too_long(number: int, frame: FrameType | None) -> None:
    raise Hang(f"more than {DEADLINE_SECONDS:g} s of processor time")
