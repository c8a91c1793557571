import pytest

from tests.support.drawn_corpus import Corpus, draw_corpus


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    return draw_corpus(40)
