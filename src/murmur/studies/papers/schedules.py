"""Su and Chen 2015: natural gradient, pre-training and schedules with averaged models.

16 learners, averaged every eight minibatches, rates times 4. SGD and natural gradient, each from random weights
and from a stack of restricted Boltzmann machines; SGD with IBM's schedule beside Kaldi's. Three seeds, and one learner.
"""

from __future__ import annotations

from dataclasses import replace

from murmur.studies.papers.cell import StudyCell
from murmur.studies.papers.study import (
    Finding,
    Go,
    Groups,
    Study,
    at_most,
    holds,
    lower,
    ratio,
    seeded,
    shown,
    speed_up,
)

PLAIN = StudyCell("KAVG(8)", 16, power=0.5)
LOSS_ALLOWED = 1.05


def runs(go: Go) -> Groups:
    """One learner, then the five at 16."""
    stacked, natural = replace(PLAIN, stack=True), replace(PLAIN, optimizer="natural gradient")
    return {
        "one learner": seeded(StudyCell(), go),
        "SGD": seeded(PLAIN, go),
        "SGD, ibm": seeded(replace(PLAIN, schedule="ibm"), go),
        "SGD, stack": seeded(stacked, go),
        "natural gradient": seeded(natural, go),
        "natural gradient, stack": seeded(replace(natural, stack=True), go),
    }


def findings(rows: Groups) -> list[Finding]:
    """Effect of each helper as a ratio of losses with and without it, then 16 learners against one."""
    return [*_helpers(rows), *_width(rows)]


def _helpers(rows: Groups) -> list[Finding]:
    natural, stack = ratio(rows["SGD"], rows["natural gradient"]), ratio(rows["SGD"], rows["SGD, stack"])
    both = ratio(rows["natural gradient"], rows["natural gradient, stack"])
    shape = ratio(rows["SGD"], rows["SGD, ibm"])
    return [
        Finding(
            "natural gradient helps averaging",
            "helps",
            "loss with it over loss without it, interval below 1",
            shown(natural),
            lower(natural),
            "the papers average models that natural gradient keeps alike; how far apart they are is not measured here",
        ),
        Finding(
            "pre-training helps averaging",
            "helps",
            "loss with machines over loss from random weights, interval below 1, with SGD",
            shown(stack),
            lower(stack),
            f"with natural gradient {shown(both)}; a stack is trained on 0.6 h here, on 300 h there",
        ),
        Finding(
            "the schedule matters",
            "several were studied; which won could not be read",
            "loss of warm-up and annealing over that of an exponential, interval without 1",
            shown(shape),
            holds(not shape.low <= 1 <= shape.high),
            "both have the same peak rate and the same frames",
        ),
    ]


def _width(rows: Groups) -> list[Finding]:
    best = ratio(rows["one learner"], rows["natural gradient"])
    faster = speed_up(rows["one learner"], rows["SGD"])
    return [
        Finding(
            "a small loss of accuracy at 16",
            "small",
            f"natural gradient at 16 over SGD at one learner, interval at most {LOSS_ALLOWED}",
            shown(best),
            at_most(best, LOSS_ALLOWED),
            f"{rows['SGD'][0]['steps'] // 16} steps a learner",
        ),
        Finding(
            "speed-up at 16",
            "9.3x at 16 (17x at 32)",
            "virtual speed-up at least 9.3",
            f"{faster:.1f}x",
            holds(faster >= 9.3),
            "the machines are those of IBM's later papers; theirs are not known",
        ),
    ]


STUDY = Study(
    "schedules",
    "Su, Chen: Experiments on parallel training of deep neural network using model averaging (arXiv 1507.01239, 2015)",
    "16 learners, KAVG(8): SGD and natural gradient, from random weights and from machines, two schedules; three seeds",
    runs,
    findings,
)
