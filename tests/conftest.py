from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import hypothesis
import pytest
import torch

from pool import Pool

hypothesis.settings.register_profile("untimed", deadline=None)  # a busy machine takes any time for an example
hypothesis.settings.load_profile("untimed")  # --hypothesis-profile comes later

# The core is tested where the speech libraries are not installed too (a GPU machine without a registry).
SPEECH = ("lhotse", "kaldifst", "kaldi_hmm_gmm", "kaldi_decoder", "jiwer", "soundfile")
collect_ignore_glob = (
    ["speech/*", "tasks/*", "recipes/*", "recognition/*"] if any(find_spec(name) is None for name in SPEECH) else []
)


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
