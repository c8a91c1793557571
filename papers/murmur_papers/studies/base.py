"""One learner of every network, on which all studies rest."""

from __future__ import annotations

from murmur_papers.studies.networks import SETUPS, Name
from murmur_papers.studies.study import Alone, Study

CTC = Alone("ctc", strategy="ParameterAveraging(12500.0, Jobs(1))")
DNN = Alone("dnn")
BLSTM = Alone("blstm")
LARGEST_BUDGET = 12_900_000  # 64 learners with six windows then have at least 1,500 turns
SMALL = Alone("blstm", minibatch=12, budget=LARGEST_BUDGET, decoded=(0,), tried=(2e-3, 4e-3, 8e-3))
CTC_ADAM = Alone("ctc", optimizer="Adam", seeds=(0,), decoded=(0,))
LEARNERS: dict[str, Alone] = {
    "LSTM with CTC": CTC,
    "sigmoid network": DNN,
    "BLSTM": BLSTM,
    "BLSTM, 12 windows a minibatch": SMALL,
}


def limit_of(name: str) -> float:
    """Largest word error rate of a learner of `LEARNERS`, in percent."""
    network: Name = LEARNERS[name].network
    return SETUPS[network].limit


STUDY = Study(
    "base",
    "",
    "One learner of every network",
    "one learner at the best of three rates or more, tried on dev",
    dict(LEARNERS),
)
