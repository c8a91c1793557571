from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pool import Pool

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Four learner processes for the whole run."""
    learners = Pool(4)
    yield learners
    learners.close()
