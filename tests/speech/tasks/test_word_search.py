"""Tuning on dev: which trials are made, and which one is taken."""

import math
from pathlib import Path

import pytest

from murmur.speech.decoding.tuning import Trial
from murmur.speech.decoding.wer import ErrorRate
from murmur.speech.tasks import word_search
from murmur.speech.tasks.graph_sources import LOOP, Search
from murmur.speech.tasks.word_search import WordSearch


@pytest.fixture
def tried(monkeypatch):
    """Trials made of a set whose best settings are the scale 0.05 and the penalty 1."""
    made = []

    class Valley:
        def __init__(self, *_):
            pass

        def trial(self, options):
            distance = abs(math.log(options.acoustic_scale / 0.05)) + abs(options.insertion_penalty - 1)
            made.append((round(options.acoustic_scale, 3), options.insertion_penalty))
            return Trial(options, ErrorRate(1000, insertions=round(100 * distance)), 0.1)

    monkeypatch.setattr(word_search, "DevelopmentSet", Valley)
    monkeypatch.setattr(WordSearch, "folder", Path("graph"))
    return made


def tuned(settings):
    options = WordSearch(None, LOOP, Path("cache")).tune(settings, {}, {})
    return round(options.acoustic_scale, 3), options.insertion_penalty


def test_scales_beyond_the_end_are_tried_with_the_best_penalty_alone(tried):
    assert tuned(Search(scales=(0.1, 0.2, 0.4), insertion_penalties=(0.0, 1.0))) == (0.05, 1.0)
    assert tried[6:] == [(0.05, 1.0), (0.025, 1.0)]


@pytest.mark.parametrize("scales", [(0.4,), (0.4, 0.2)])
def test_one_or_two_scales_are_taken_as_they_are(tried, scales):
    assert tuned(Search(scales=scales)) == (min(scales), 0.0)
    assert len(tried) == len(scales)


def test_a_best_scale_that_stays_at_the_end_is_told(tried, caplog):
    assert tuned(Search(scales=(1.0, 1.1, 1.2))) == (0.751, 0.0)
    assert "scale 0.751315 is at the end of the tried range" in caplog.text
