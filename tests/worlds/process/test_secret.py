"""Secret of the launcher: it reaches only the learners, and the sockets are open on loopback only."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from murmur.recipes import toy
from murmur.run.request import RunRequest
from murmur.run.training import train
from murmur.worlds.process.environment import Place, child_variables, place_of
from murmur.worlds.process.launcher import Launch
from murmur.worlds.process.listener import listen
from murmur.worlds.process.secret import Refused, draw, unnamed_file
from murmur.worlds.process.store_server import StoreServer
from murmur.worlds.process.torch_store import connect
from murmur.worlds.process.world import ProcessWorld
from tests.support.pool import Pool

pytestmark = pytest.mark.processes

LEARNER = """
import json, os, subprocess, sys
from pathlib import Path
from murmur.worlds.process.environment import place_of
from murmur.worlds.process.store_server import StoreClient

place = place_of()

def read(file):
    try:
        return Path(file).read_bytes().decode()
    except (FileNotFoundError, ProcessLookupError):  # another child of the launcher's process has ended
        return ""

client = StoreClient(place.host, place.port, 20, place.secret)
client.call({"do": "set", "key": str(place.rank)}, b"here")
client.wait(["0", "1"], 20)
try:
    StoreClient(place.host, place.port, 20, b"a stranger's guess")
    stranger = "let in"
except ConnectionError as error:
    stranger = str(error)
if place.rank == 0:
    family = [os.getppid(), *map(int, Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split())]
    seen = [text for pid in family for name in ("environ", "cmdline") if (text := read(f"/proc/{pid}/{name}"))]
    child = "import os, sys; print(os.path.exists(f'/proc/self/fd/{sys.argv[1]}'))"
    descriptor = os.environ["TORCHELASTIC_RUN_ID"].partition(":")[2]
    inherited = subprocess.run([sys.executable, "-c", child, descriptor], close_fds=False, capture_output=True)
    listening = [row.split()[1] for row in Path("/proc/net/tcp").read_text().splitlines()[1:] if row.split()[3] == "0A"]
    told = {"secret": place.secret.decode(), "seen": seen, "stranger": stranger, "port": place.port,
            "inherited": inherited.stdout.decode().strip(), "listening": listening, "place": repr(place)}
    Path(sys.argv[1]).write_text(json.dumps(told))
client.call({"do": "set", "key": f"done {place.rank}"})
client.wait(["done 0", "done 1"], 20)
"""


@pytest.mark.interpreter
def test_only_the_launchs_processes_have_its_secret(tmp_path: Path) -> None:
    out = tmp_path / "told.json"
    run = Launch(lambda place, resume: [sys.executable, "-c", LEARNER, str(out)], learners=2)
    assert run.run() == 0
    told = json.loads(out.read_text())
    assert told["secret"] == run.secret.decode()
    assert len(told["seen"]) >= 6, "environment and command line of the launcher and two learners"
    assert all(told["secret"] not in text for text in [*told["seen"], told["place"], repr(run)])
    assert "is not this run's store" in told["stranger"]
    assert told["inherited"] == "False", "what a learner starts has no part in the run"
    port = f"{told['port']:04X}"
    assert [where for where in told["listening"] if where.endswith(f":{port}")] == [f"0100007F:{port}"]


def test_every_launch_draws_its_own() -> None:
    assert Launch(lambda place, resume: [], 1).secret != Launch(lambda place, resume: [], 1).secret


def test_a_place_says_nothing_of_its_secret() -> None:
    place = Place(0, 2, 0, "127.0.0.1", 1, secret=b"never to be shown")
    assert "never" not in repr(place)
    assert not any("never" in value for value in child_variables(place, 1).values())
    with unnamed_file(b"handed over in a file") as file:
        found = place_of(child_variables(place, 1, file.fileno()))
    assert found is not None
    assert (found.secret, found.store) == (b"handed over in a file", "murmur")


def test_learner_0_opens_a_store_for_those_with_the_same_secret() -> None:
    with listen() as free:
        port = free.getsockname()[1]
    first = connect(Place(0, 2, 0, "127.0.0.1", port, store="learner 0", secret=b"of the secret file"), 5)
    first.set("a", "b")
    with pytest.raises(Refused, match="its secret file differs"):
        connect(Place(1, 2, 1, "127.0.0.1", port, store="learner 0", secret=b"another file's"), 5)
    second = connect(Place(1, 2, 1, "127.0.0.1", port, store="learner 0", secret=b"of the secret file"), 5)
    assert second.get("a") == b"b"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
def test_sockets_listen_on_the_interface_asked_for(host: str) -> None:
    listener = listen(host)
    number = os.fstat(listener.fileno()).st_ino  # other processes may have the same port on another interface
    server = StoreServer(listener, draw())
    port = server.address[1]
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    packed = socket.inet_aton(host)[::-1].hex().upper()
    assert [r[1] for r in rows if r[3] == "0A" and r[9] == str(number)] == [f"{packed}:{port:04X}"]
    server.close()


def test_a_secret_file_that_others_may_read_stops_training_at_once(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(draw())
    file.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        train(RunRequest(source="toy", secret_file=file, out=tmp_path), toy.experiment())
    with pytest.raises(ValueError, match="leave --secret-file out"):
        train(RunRequest(source="toy", secret_file=file, out=tmp_path, world="mpi"), toy.experiment())


@pytest.mark.slow
def test_learners_of_a_foreign_launcher_train_with_a_secret_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_bytes(draw())
    with listen() as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "murmur", "train", "toy", "--set", "budget.minibatches=8", "--threads", "1"]
    words += ["--secret-file", str(file), "--out", str(tmp_path / "out")]
    started = [
        subprocess.Popen(words, env=child_variables(Place(r, 2, r, "127.0.0.1", port, 0, 2, "learner 0"), 1))
        for r in range(2)
    ]
    assert [process.wait(90) for process in started] == [0, 0]


def listening(place: Place) -> list[str]:
    """Return the listening addresses that this process opens as a learner of a world of several."""
    before = listeners()
    with ProcessWorld(place, timeout_seconds=20, store=connect(place, 20)).seated():
        return [where for inode, where in listeners().items() if inode not in before]


def listeners() -> dict[str, str]:
    """Return the addresses on which this process listens, by inode; earlier tests may have left some."""
    own = {link.readlink().name for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    rows = [r.split() for name in ("tcp", "tcp6") for r in Path("/proc/self/net", name).read_text().splitlines()[1:]]
    return {r[9]: r[1].partition(":")[0] for r in rows if r[3] == "0A" and f"socket:[{r[9]}]" in own}


def test_mail_and_collectives_listen_on_loopback_only(pool: Pool) -> None:
    found = pool.call(listening, 2)
    assert all(found), "every learner takes mail"
    assert {where for each in found for where in each} == {"0100007F"}
