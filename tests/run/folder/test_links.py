"""Links, FIFOs and folders in the place of every file of a run: nothing outside the folder changes, nothing hangs."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app
from murmur.comparison.rows import Rows
from murmur.core.plain_files import NotPlainFile, open_plain, plain_file, read_plain
from murmur.core.whole_files import name_beside
from murmur.engine.run_files import AppendedFile, begin_trace, finish_trace
from murmur.run.folder import contents
from murmur.run.folder.contents import opened
from murmur.run.folder.lock import LOCK, FolderLock, held, holder_of, state_of, write_reason

SMALL = ["--set", "task.hidden=4", "--set", "task.per_epoch=8", "--threads", "1"]
FIRST, MORE = ["--set", "budget.minibatches=8"], ["--set", "budget.minibatches=16"]
LATER = (  # names that a run may write, and that this one has not written
    *("report.html", "failed.json", "request.json", "launch.json", "recognised.jsonl", "phases.json", "rescoring.json"),
    *("trace-until-8.json", "decoded", "errors", "recogniser", "recogniser/graphs", "description", "simulated.json"),
    *("checkpoints/0000000016", "checkpoints/marks/0000000016.json"),
)


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    out = tmp_path_factory.mktemp("finished") / "run"
    assert run("train", "toy", *SMALL, *FIRST, "--out", out)[0] == 0
    return out


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def reading(out: Path) -> Iterator[tuple[object, ...]]:
    yield ("watch", "--once", out)
    yield ("export", out, "--out", out.parent / "exported")
    yield ("add", out, "--secret-file", out / "run.json")
    yield ("report", out)


def training(out: Path) -> Iterator[tuple[object, ...]]:
    yield ("train", "toy", *SMALL, *MORE, "--out", out, "--resume")
    yield ("train", "toy", *SMALL, *FIRST, "--out", out, "--force")


def planted(out: Path, name: str, elsewhere: Path) -> None:
    """Move a file or folder of the run elsewhere, and leave a link to it."""
    place, target = out / name, elsewhere / Path(name).name
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.exists():
        place.rename(target)
    elif "." in place.name:
        target.write_text("mine")
    else:
        target.mkdir()
        (target / "learner-0.json").write_text("mine")
    place.symlink_to(target)


def names_of(finished: Path) -> list[str]:
    found = {str(path.relative_to(finished)) for path in finished.rglob("*")} | set(LATER)
    assert LOCK in found
    return sorted(found)


def test_no_run_goes_on_through_a_link(finished: Path, tmp_path: Path) -> None:
    for name in names_of(finished):
        for words in training(tmp_path / name / "run"):
            out, elsewhere = tmp_path / name / "run", tmp_path / name / "elsewhere"
            shutil.copytree(finished, out)
            elsewhere.mkdir()
            planted(out, name, elsewhere)
            before = content(elsewhere)
            code, said = run(*words)
            assert content(elsewhere) == before, (name, words)
            assert (code, f"{out / name} is a symbolic link to" in said) == (1, True), (name, words, said)
            assert len(said.strip().splitlines()) == 1
            shutil.rmtree(tmp_path / name)


def test_commands_that_read_a_run_leave_the_targets_of_its_links(finished: Path, tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    shutil.copytree(finished, out)
    elsewhere.mkdir()
    for name in names_of(finished):
        if not any(f"{other}/" in f"{name}/" for other in ("recogniser/graphs", "0000000016")):
            (elsewhere / name).mkdir(parents=True)
            if not (out / Path(name).parent).is_symlink():
                planted(out, name, elsewhere / name)
    before = content(elsewhere)
    assert len(before) > 10
    for words in reading(out):
        said = run(*words)[1]
        assert content(elsewhere) == before, words
    assert "report.html is a symbolic link to" in said


@pytest.mark.parametrize("name", ["records.jsonl", "trace.json", LOCK])
def test_a_file_with_a_second_name_is_not_appended_to(name: str, finished: Path, tmp_path: Path) -> None:
    out, copy = tmp_path / "run", tmp_path / "snapshot"
    shutil.copytree(finished, out)
    os.link(out / name, copy)
    before = copy.read_bytes()
    code, said = run("train", "toy", *SMALL, *MORE, "--out", out, "--resume")
    assert copy.read_bytes() == before
    assert code == 0 or "has a second name (a hard link)" in said


def test_a_run_folder_may_itself_be_a_link_and_hold_links_of_the_user(finished: Path, tmp_path: Path) -> None:
    disk, notes = tmp_path / "disk", tmp_path / "notes"
    shutil.copytree(finished, disk)
    notes.mkdir()
    (notes / "run.json").write_text("mine")
    (disk / "notes").symlink_to(notes)
    (disk / "model.json.bak").symlink_to(notes / "run.json")
    (tmp_path / "run").symlink_to(disk)
    for words in (("watch", "--once", tmp_path / "run"), *training(tmp_path / "run"), ("report", tmp_path / "run")):
        assert run(*words)[0] == 0, words
    assert content(notes) == {"run.json": b"mine"}


def fifo(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def listening(path: Path) -> None:
    where = os.getcwd()
    os.chdir(path.parent)  # a socket's path is short
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.bind(path.name)
    finally:
        os.chdir(where)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [fifo, folder, listening, endless])
def test_nothing_waits_for_what_is_no_file(make: Callable[[Path], None], finished: Path, tmp_path: Path) -> None:
    names = {str(path.relative_to(finished)) for path in finished.rglob("*") if path.is_file()}
    names |= {"failed.json", "recognised.jsonl", "phases.json", "launch.json", "request.json"}
    most = {
        LOCK,
        "records.jsonl",
        "run.json",
        "ended.json",
        "trace.json",
        "checkpoints/began.json",
        "model.safetensors",
    }
    for name in sorted(names if make is fifo else most):
        out = tmp_path / name / "run"
        drawn = "" if (make, name) == (fifo, "records.jsonl") else "report"  # takes a second
        for words in (*reading(out), *training(out)):
            if words[0] == drawn:
                continue
            shutil.copytree(finished, out)
            (out / name).unlink(missing_ok=True)
            make(out / name)
            said = run(*words)[1]
            assert "Traceback" not in said, (name, words, said)
            shutil.rmtree(tmp_path / name)


def opens_lock(path: Path) -> object:
    return FolderLock.take(path)


def appends(path: Path) -> object:
    return AppendedFile(path).append(b"x")


def adds_row(path: Path) -> object:
    return Rows(path).append({"digest": "x"})


def keeps(path: Path) -> object:
    return plain_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)


WRITERS = [opens_lock, appends, adds_row, keeps, begin_trace, finish_trace]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("make", ["link", "dangling", "hard link", "fifo", "folder"])
def test_writers_refuse_what_is_no_file_of_their_own(
    write: Callable[[Path], object], make: str, tmp_path: Path
) -> None:
    path, target = tmp_path / "file", tmp_path / "target"
    if make != "dangling":
        target.write_bytes(b"mine\n")
    {"link": lambda: path.symlink_to(target), "dangling": lambda: path.symlink_to(target), "fifo": lambda: fifo(path),
     "hard link": lambda: os.link(target, path), "folder": path.mkdir}[make]()  # fmt: skip
    with pytest.raises(NotPlainFile, match=r"/file (is a|has a second name)"):
        write(path)
    assert not target.exists() if make == "dangling" else target.read_bytes() == b"mine\n"


def test_temporary_files_replace_links_under_their_names(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"mine")
    (tmp_path / "out").mkdir()
    beside = name_beside(tmp_path / "out" / "failed.json")
    beside.symlink_to(target)
    write_reason(tmp_path / "out", "because")
    assert target.read_bytes() == b"mine"


def test_readers_follow_links_and_refuse_the_rest(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert read_plain(tmp_path / "link") == b"a"
    fifo(tmp_path / "fifo")
    (tmp_path / "to fifo").symlink_to(tmp_path / "fifo")
    for name in ("fifo", "to fifo", "."):
        with pytest.raises(NotPlainFile):
            open_plain(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        open_plain(tmp_path / "absent")
    assert held(tmp_path / "fifo") == "unknown"
    assert holder_of(tmp_path / "fifo") is None


def test_files_of_an_older_run_behind_a_linked_folder_are_not_removed(finished: Path, tmp_path: Path) -> None:
    out, disk = tmp_path / "run", tmp_path / "disk"
    shutil.copytree(finished, out)
    (out / "checkpoints").rename(disk)
    (out / "checkpoints").symlink_to(disk)
    before = content(disk)
    with pytest.raises(NotPlainFile, match="checkpoints is a symbolic link"), opened(out, "toy", False, True):
        pass
    contents.remove_run(out)
    assert content(disk) == before
    assert state_of(out).name in ("killed", "unknown")
