"""Cui et al. 2021: fixed ring, randomised ring and delay-by-one at 16 learners, with one learner's minibatch."""

from __future__ import annotations

from murmur_papers.studies.base import BLSTM
from murmur_papers.studies.study import Claim, Group, Groups, Outcome, Study, System, beyond, compared, further_seeds
from murmur_papers.studies.verdicts import fast, ratio, shown

LEARNERS, MACHINES = 16, "cui2021"
PAPER = (
    "Cui, Zhang, Kayi, Liu, Finkler, Kingsbury, Saon, Kung: Asynchronous decentralized distributed training of acoustic"
    " models (arXiv 2110.11199, 2021)"
)
STRATEGIES = {
    "synchronous": "SyncSGD()",
    "fixed ring": "ADPSGD(ring)",
    "randomised ring": "ADPSGD(randomized_ring)",
    "delay-by-one": "DelayByOne()",
}
TRIALS = {"synchronous": (1.0, 2.0)}
ALONE = "one learner"
DECENTRALISED = ("fixed ring", "randomised ring", "delay-by-one")


def system(name: str) -> System:
    settings = {"strategy": STRATEGIES[name], "learners": LEARNERS, "machines": MACHINES}
    return System(BLSTM, settings, trials=TRIALS.get(name, (1.0, 0.5)))


def convergence(rows: Groups) -> Outcome:
    """Judge delay-by-one against both rings."""
    *others, delay = DECENTRALISED
    found = {name: ratio(rows[name], rows[delay]) for name in others}
    least = max(found.values(), key=lambda value: value.high)
    told = ", ".join(f"that of the {name} {shown(value)}" for name, value in found.items())
    sync = shown(ratio(rows["synchronous"], rows[delay]))
    one = ", ".join(f"{name} {shown(ratio(rows[ALONE], rows[name]))}" for name in STRATEGIES)
    return compared(
        least,
        f"{LEARNERS} learners: {fast(rows[delay])}, loss of {delay} over {told}",
        f"against synchronous SGD {sync}; over one learner: {one}",
    )


RINGS: dict[str, System] = {name: system(name) for name in STRATEGIES}
GROUPS: dict[str, Group] = {
    ALONE: BLSTM,
    **RINGS,
    **further_seeds({name: RINGS[name] for name in DECENTRALISED}),
    **beyond(BLSTM, learners=LEARNERS, machines=MACHINES),
}
STUDY = Study(
    "rings",
    "Cui et al. 2021",
    PAPER,
    "16 learners: fixed and randomised ring, delay-by-one, synchronous SGD with one learner's minibatch of 164 windows"
    " cut among them, three seeds",
    GROUPS,
    (
        Claim(
            '"less than 2 hours using 128 V100 GPUs with competitive word error rates"',
            "1.98 h, 7.7 / 13.3 % WER (Zhang et al. 2020)",
            "a run at the paper's size; `murmur plan cui2021` predicts its hours",
            (),
            None,
            command="murmur train cui2021 --strategy DelayByOne --set task.data=FOLDER --set task.dev=FOLDER",
        ),
        Claim(
            "with equally fast learners delay-by-one converges fastest at one learner's minibatch",
            "",
            "its loss over that of each ring at equal frames and one learner's minibatch: the less favourable of both",
            (ALONE, *STRATEGIES),
            convergence,
            further=DECENTRALISED,
        ),
    ),
    MACHINES,
)
