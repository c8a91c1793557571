"""The studies by name, in the order of the page."""

from __future__ import annotations

from collections.abc import Mapping

from murmur.studies.papers import asgd, base, frequency, hierarchy, rings, schedules, stragglers
from murmur.studies.papers.study import Study

STUDIES: Mapping[str, Study] = {
    study.name: study
    for study in (
        base.STUDY,
        frequency.STUDY,
        schedules.STUDY,
        asgd.STUDY,
        rings.STUDY,
        stragglers.STUDY,
        hierarchy.STUDY,
    )
}
