from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

from pool import Pool

# The core is tested where the speech libraries are not installed too (a GPU machine without a registry).
SPEECH = ("lhotse", "kaldifst", "kaldi_hmm_gmm", "kaldi_decoder", "jiwer", "soundfile")
collect_ignore_glob = (
    ["speech/*", "tasks/*", "recipes/*", "recognition/*"] if any(find_spec(name) is None for name in SPEECH) else []
)

if find_spec("hypothesis") is not None:
    from hypothesis import settings

    settings.register_profile("untimed", deadline=None)  # on a busy machine an example may take any time
    settings.load_profile("untimed")  # --hypothesis-profile is loaded after it


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--threads", type=int, default=1, help="threads of PyTorch")


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(config.getoption("threads"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(autouse=True)
def _threads(request: pytest.FixtureRequest) -> None:
    """Undo what commands in this process have set: several spinning threads slow all later tests."""
    torch.set_num_threads(request.config.getoption("threads"))


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Four learner processes for the whole run."""
    learners = Pool(4)
    yield learners
    learners.close()
