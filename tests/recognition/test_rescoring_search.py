"""Which search settings are tuned before the weight of a rescoring model."""

import json

import pytest

from murmur.recognition.decoding import to_tune
from murmur.recognition.tuning import SearchRequest


@pytest.fixture
def tested(tmp_path):
    """A run that was tested, so that its scale is tuned on its own dev."""
    (tmp_path / "score.json").write_text(json.dumps({"test": {"network dev acoustic scale": 0.1}}))
    return tmp_path


def test_a_search_that_the_run_has_tuned_is_not_tuned_again(tested):
    assert to_tune(tested, SearchRequest(None, "dev", {"beam": 9.0})) == SearchRequest(None, None, {"beam": 9.0})


@pytest.mark.parametrize(
    ("grammar", "dev", "others"),
    [("lm", "dev", ()), (None, "data/other", ()), (None, "dev", ("another run",)), (None, None, ())],
)
def test_any_other_search_is_tuned_if_that_is_requested(tested, grammar, dev, others):
    request = SearchRequest(grammar, dev, {})
    assert to_tune(tested, request, others) is request


def test_a_run_without_a_tuned_scale_is_tuned(tmp_path):
    request = SearchRequest(None, "dev", {})
    assert to_tune(tmp_path, request) is request
