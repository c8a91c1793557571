"""The studies by name, in the order in which they are run: the shortest first."""

from __future__ import annotations

from collections.abc import Mapping

from murmur.recipes.papers import asgd, frequency, hierarchy, rings, schedules
from murmur.recipes.papers.study import Study

STUDIES: Mapping[str, Study] = {
    study.name: study for study in (asgd.STUDY, frequency.STUDY, rings.STUDY, hierarchy.STUDY, schedules.STUDY)
}
