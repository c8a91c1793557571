"""The timelines of README.md and docs/strategies.md are those that the code draws now."""

from __future__ import annotations

import pytest

from murmur.strategies import ALL
from tests.project.strategies_page import PAGE, README
from tests.project.timeline_pictures import FOLDER, PICTURES


@pytest.mark.parametrize("name", [path.name for path in PICTURES])
def test_the_picture_is_up_to_date(name: str) -> None:
    drawn = PICTURES[FOLDER / name]()
    assert (FOLDER / name).read_text(encoding="utf-8") == drawn, "run: python -m tests.project.timeline_pictures"


def test_no_other_picture_is_there() -> None:
    assert set(FOLDER.iterdir()) == set(PICTURES)


def test_every_section_of_a_strategy_shows_its_picture() -> None:
    parts = PAGE.read_text(encoding="utf-8").split("\n## ")
    sections = {part.partition("\n")[0]: part for part in parts}
    assert [name for name in ALL if f"](timelines/{name}.svg)" not in sections[name]] == []


def test_the_readme_shows_its_picture() -> None:
    assert "](docs/timelines/slow_learner.svg)" in README.read_text(encoding="utf-8")
