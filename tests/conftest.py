from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

from tests.support.forked_python import REAL, ForkServer, install, read_at_import, uninstall
from tests.support.pool import Pool

# The core is tested where the speech libraries are not installed too (a GPU machine without a registry).
SPEECH = ("lhotse", "kaldifst", "kaldi_hmm_gmm", "kaldi_decoder", "jiwer", "soundfile")
collect_ignore_glob = ["speech/*"] if any(find_spec(name) is None for name in SPEECH) else []

if find_spec("hypothesis") is not None:
    from hypothesis import settings

    settings.register_profile("untimed", deadline=None)  # on a busy machine an example may take any time
    settings.load_profile("untimed")  # --hypothesis-profile is loaded after it


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--threads", type=int, default=1, help="threads of PyTorch")


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(config.getoption("threads"))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # by a script that runs the tests in its background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # tests of Ctrl-C, and their children, need it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(autouse=True)
def _threads(request: pytest.FixtureRequest) -> None:
    """Undo what commands in this process have set: several spinning threads slow all later tests."""
    torch.set_num_threads(request.config.getoption("threads"))


@pytest.fixture(autouse=True)
def _log_levels() -> Iterator[None]:
    """Fail a test that leaves the log quieter than it was: later tests would wait for messages in vain."""
    yield
    root, package = logging.getLogger(), logging.getLogger("murmur")
    found = {"disabled up to": root.manager.disable, "level of murmur": package.level}
    logging.disable(logging.NOTSET)
    package.setLevel(logging.NOTSET)
    assert not any(found.values()), f"the test has changed the log: {found}"


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """The process from which Python programs of tests are forked; it starts when one is needed."""
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _variables(fork_server: ForkServer) -> Iterator[None]:
    """Fail a test that leaves variables which libraries read at import: programs of later tests would have them."""
    yield
    found = read_at_import(os.environ)
    for name in found.keys() - fork_server.variables.keys():
        del os.environ[name]
    os.environ.update(fork_server.variables)
    assert found == fork_server.variables, "the test has changed variables that libraries read at import"


@pytest.fixture(autouse=True, scope="session")
def _forked_programs(fork_server: ForkServer) -> Iterator[None]:
    if sys.platform == "linux":  # elsewhere no process can adopt another one's child
        install(fork_server)
    yield
    uninstall()


@pytest.fixture(autouse=True)
def _new_interpreters(request: pytest.FixtureRequest, fork_server: ForkServer) -> Iterator[None]:
    """Let tests with the mark `interpreter` start their programs in new interpreters."""
    installed = subprocess.Popen is not REAL
    if request.node.get_closest_marker("interpreter") is not None:
        uninstall()
    yield
    if installed:
        install(fork_server)


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Four learner processes for the whole run."""
    learners = Pool(4)
    yield learners
    learners.close()
