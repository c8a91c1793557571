"""Data of sequence training: the denominator of a hybrid system, and the aligned phones of its utterances."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from murmur.speech.features.chunks import FramesInMemory
from murmur.speech.features.frame_store import FrameStore
from murmur.speech.hmm.hybrid import copy_name
from murmur.speech.hmm.transitions import Transitions
from murmur.speech.sequence.denominator import Denominator
from murmur.speech.sequence.numerators import Aligned
from murmur.speech.sequence.phone_hmms import phone_hmms
from murmur.speech.sequence.phone_ngrams import PhoneNgrams
from murmur.tasks.hybrid.task import HybridTask

log = logging.getLogger(__name__)
Phones = tuple[Sequence[int], Sequence[int]]  # labels; first frames, and the number of frames


@dataclass(frozen=True, eq=False)
class SequenceData:
    """Frames and aligned phones of train and dev.

    Attributes:
        denominator: graph of the phones of train.
        train: frames and pdfs of train, at all stored speeds.
        train_phones: phones of each utterance of `train`.
        dev: frames and pdfs of dev, of the utterances whose phones in context occur in train.
        dev_phones: phones of each utterance of `dev`.
    """

    denominator: Denominator
    train: FrameStore
    train_phones: tuple[Aligned, ...]
    dev: FramesInMemory
    dev_phones: tuple[Aligned, ...]

    @staticmethod
    def of(task: HybridTask, ngrams: PhoneNgrams) -> SequenceData:
        """The data of a hybrid task, whose last Gaussian system aligns.

        Raises:
            ValueError: no utterance of dev has only phones in context that occur in train.
        """
        stage, frames = task.hmms.trained[-1], task.data
        train, dev = (_phones(stage.model.transitions, task.aligned(stage, part)) for part in ("train", "dev"))
        model = ngrams.train(phones for phones, _ in train.values())
        denominator = Denominator.of(model, phone_hmms(stage.model.states), task.targets.pdfs)
        graph = denominator.graph
        log.info("denominator: %d n-grams, %d states, %d arcs", model.ngrams, graph.states, graph.arcs)
        own = {name: Aligned.of(denominator, *found) for name, found in train.items()}
        origin = {copy_name(name, speed): name for speed in task.front.stored.speeds for name in own}
        pairs = zip(frames.train.names, frames.train.lengths.tolist(), strict=True)
        stretched = tuple(own[origin[name]].stretched(length) for name, length in pairs)
        known = _known(denominator, {name: dev[name] for name in frames.dev_feats})
        held = FramesInMemory({n: frames.dev_feats[n] for n in known}, {n: frames.dev_targets[n] for n in known})
        fitted = tuple(known[name].fitted(len(held.feats[name])) for name in held.names)
        return SequenceData(denominator, frames.train, stretched, held, fitted)


def _phones(transitions: Transitions, tids: Mapping[str, np.ndarray]) -> dict[str, Phones]:
    """Phones of alignments, and the frames at which they begin."""
    found: dict[str, Phones] = {}
    for name, tids_T in tids.items():
        starts = transitions.arcs.starts(tids_T)
        found[name] = (transitions.phone_of[tids_T[starts]].tolist(), [*starts.tolist(), len(tids_T)])
    return found


def _known(denominator: Denominator, dev: Mapping[str, Phones]) -> dict[str, Aligned]:
    found, lost = {}, []
    for name, phones in dev.items():
        try:
            found[name] = Aligned.of(denominator, *phones)
        except KeyError:
            lost.append(name)
    if lost:
        log.warning("dev: %d utterances with states that train lacks are left out, such as %s", len(lost), lost[0])
    if not found:
        raise ValueError("every utterance of dev has a phone in context that train lacks: give more training speech")
    return found
