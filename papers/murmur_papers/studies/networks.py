"""The networks of the papers' experiments, with the settings of one learner.

    ctc     Rosciszewski & Kaliski: LSTM with CTC, AN4
    dnn     Su & Chen: sigmoid network on spliced frames, natural gradient, 4.1 h of LibriSpeech
    blstm   Cong et al. and IBM's later papers: BLSTM with a linear bottleneck on windows of 21 frames, the same speech
    augmented   the same BLSTM and speech at three speeds and varied volume, with IBM's optimizer and schedule

Widths are those that two cores can train. One learner's minibatch is that of all learners in the regime "stays": the
largest number of learners of a study then has at least 1,500 turns. Rates to try with one learner are in `rates`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from murmur.engine.optim.optimizer import SGD, Adam, NaturalGradientSGD, OptimizerFactory
from murmur.engine.schedule import Constant, Cosine, Exponential, Schedule, WarmUpAnneal
from murmur.speech.features.augment import SpecAugment
from murmur.speech.features.chunks import Chunks
from murmur.speech.models import Blstm, Dnn
from murmur.speech.recipes import an4_ctc, librispeech
from murmur.speech.tasks.ctc import CtcTask
from murmur.speech.tasks.graph_sources import Search
from murmur.speech.tasks.hybrid.config import Decoding, FrontEnd
from murmur.speech.tasks.hybrid.task import HybridTask
from murmur_papers.recipes import cui2021
from murmur_papers.recipes.swb2000 import REFERENCE
from murmur_papers.tasks.judged_frames import JudgedTask

Corpus = Literal["an4", "librispeech"]
Name = Literal["ctc", "dnn", "blstm", "augmented"]
Optimizer = Literal["Adam", "SGD", "SGD with momentum", "natural gradient"]
Shape = Literal["cosine", "kaldi", "ibm", "constant"]

FEED_FORWARD: tuple[Name, ...] = ("dnn",)
IBM_EPOCHS, IBM_WARM = 16, 10  # of the papers, into which a budget is cut
IBM_PEAK = cui2021.LEARNERS * cui2021.PAPER.chunks.size / REFERENCE  # of Cui et al. 2021: the rate grows 32 times
SPEEDS = (0.9, 1.0, 1.1)  # of the augmented speech
VOLUME = 0.4  # deviations of a bin (`JudgedTask`): 6 dB, as bins of the LibriSpeech set deviate by 3.5 nats
WINDOW = 21  # frames; the papers' unrolling
DNN = Dnn(hidden=256, layers=3, context=7)
BLSTM = Blstm(hidden=96, layers=2, bottleneck=64)
WINDOWS = Chunks(frames=WINDOW, left_frames=5, right_frames=5)


@dataclass(frozen=True)
class Training:
    """Settings of one learner with an optimizer: rates to try, usual schedule, largest norm of a gradient."""

    rates: tuple[float, ...]
    schedule: Shape
    norm: float | None = None


@dataclass(frozen=True)
class Setup:
    """A network with its data.

    Attributes:
        unit_frames: frames of a unit in which minibatches are counted, on the average.
        minibatch: units of one learner's minibatch.
        budget: frames of a run, of all learners.
        part: divisor of the number of frames in trials of a rate. With 1 the trials are complete runs. The sigmoid
            network has 1, because trials with a quarter of the frames choose rates that are too high for all frames.
        limit: largest word error rate of one learner, in percent.
        training: settings by optimizer; the first one is usual.
        frame_seconds: processor seconds of a frame, for the estimate.
        gradient_seconds: processor seconds of a gradient, its step and its messages beside those of its frames.
        evaluations: evaluation points of a run.
        one_machine: True if `murmur papers` adds rows only on the machine of those that are there.
    """

    told: str
    corpus: Corpus
    unit_frames: float
    minibatch: int
    budget: int
    part: int
    limit: float
    training: Mapping[Optimizer, Training]
    frame_seconds: float
    gradient_seconds: float = 0.0
    evaluations: int = 2
    one_machine: bool = False

    @property
    def optimizer(self) -> Optimizer:
        return next(iter(self.training))


SETUPS: Mapping[Name, Setup] = {
    "ctc": Setup(
        "two bidirectional LSTM layers of 128 cells, CTC over characters, natural gradient; AN4",
        "an4",
        255.0,
        8,
        5_200_000,
        4,
        14.0,
        {
            "natural gradient": Training((100.0, 300.0, 1000.0), "kaldi"),
            "Adam": Training((3e-3, 6e-3), "cosine", 0.02),
        },
        3.2e-5,
    ),
    "dnn": Setup(
        "three sigmoid layers of 256 on 15 spliced frames, natural gradient; 4.1 h of LibriSpeech",
        "librispeech",
        1.0,
        3_328,
        5_200_000,
        1,
        40.0,
        {
            "natural gradient": Training((25.0, 50.0, 100.0), "kaldi"),
            "SGD": Training((0.5, 1.0, 2.0), "kaldi"),
        },
        5.4e-5,
    ),
    "blstm": Setup(
        "two bidirectional LSTM layers of 96 cells, a bottleneck of 64, windows of 21 frames with 5 of context on"
        " either side; 4.1 h of LibriSpeech",
        "librispeech",
        20.5,
        164,
        5_200_000,
        4,
        40.0,
        {"Adam": Training((8e-3, 1.6e-2, 3.2e-2), "cosine", 5.0)},
        6.5e-5,
    ),
    "augmented": Setup(
        "the BLSTM on the same speech at speeds of 0.9, 1 and 1.1 and at varied volume, SGD with momentum of 0.9",
        "librispeech",
        20.5,
        164,
        5_043_000,
        1,
        40.0,
        {"SGD with momentum": Training((0.2 / IBM_PEAK, 0.4 / IBM_PEAK, 0.8 / IBM_PEAK), "ibm", 5.0)},
        # 2026-11-29, one core of an AMD EPYC (family 25, model 1), AVX2: 0.42 s a turn of one learner and 0.75 s of 16
        # with 164 windows, 0.43 s with 41, 2.7 s with 1,312 (medians, generated windows, without making them).
        # Gradients of 16 learners in one call take 1.15 times as long as one after another, so that only a GPU computes
        # them in one call (`run.gradients_and_device`).
        9e-5,
        gradient_seconds=0.027,
        evaluations=IBM_EPOCHS,
        one_machine=True,
    ),
}


def hybrid(name: Name) -> HybridTask:
    task = librispeech.experiment().task
    assert isinstance(task, HybridTask)
    found = replace(
        task,
        front=FrontEnd(speeds=SPEEDS) if name == "augmented" else FrontEnd(),
        network=DNN if name == "dnn" else BLSTM,
        chunks=Chunks() if name == "dnn" else WINDOWS,
        augment=SpecAugment(time_masks=0, bin_masks=0),
        precision="float32",
        decoding=Decoding(
            network=Search("tg", scales=(0.1, 0.12, 0.145, 0.175), beams=((12.0, 4000),)),
            scored="none",
            tune_every=6,
            silence_probability=0.5,
        ),
    )
    return JudgedTask.of(found, VOLUME) if name == "augmented" else found


def ctc() -> CtcTask:
    task = an4_ctc.experiment().task
    assert isinstance(task, CtcTask)
    return task


def made(optimizer: Optimizer, name: Name, rate: float) -> OptimizerFactory:
    """An optimizer of one learner; steps with momentum keep the effective rate, but for IBM's SGD with momentum."""
    if optimizer == "Adam":
        return Adam(lr=rate)
    if optimizer == "SGD":
        return SGD(rate)
    if optimizer == "SGD with momentum":
        return SGD(rate, momentum=0.9)
    return NaturalGradientSGD(rate, momentum=0.9 if name == "dnn" else 0.0, keep_rate=True)


def schedule(shape: Shape, passes: float, peak: float) -> Schedule:
    """A schedule over a budget of so many passes; IBM's warms up to `peak`, the others are multiplied by it."""
    if shape == "ibm":
        epoch = passes / IBM_EPOCHS
        return WarmUpAnneal(peak, IBM_WARM * epoch, 2 ** (-0.5 / epoch))
    if shape == "cosine":
        return Cosine(warm=0.1, times=peak)
    return Exponential(0.1, peak) if shape == "kaldi" else Constant(peak)
