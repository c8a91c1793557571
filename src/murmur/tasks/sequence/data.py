"""Data of sequence training: the denominator of a hybrid system, and the aligned phones of its utterances."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from murmur.speech.corpus.left_out import left_out
from murmur.speech.features.chunks import Frames, FramesInMemory, SomeUtterances
from murmur.speech.hmm.hybrid import copy_name
from murmur.speech.hmm.transitions import Transitions
from murmur.speech.sequence.denominator import Denominator
from murmur.speech.sequence.numerators import Aligned, NumeratorBuilder
from murmur.speech.sequence.phone_hmms import phone_hmms
from murmur.tasks.hybrid.task import HybridTask
from murmur.tasks.sequence.criteria import LatticeFree

log = logging.getLogger(__name__)
NO_ROOM = "their phones have no room"
Phones = tuple[Sequence[int], Sequence[int]]  # labels; first frames, and the number of frames


@dataclass(frozen=True, eq=False)
class SequenceData:
    """Frames and aligned phones of train and dev.

    Attributes:
        denominator: graph of the phones of train.
        train: frames and pdfs of train, at all stored speeds, of the utterances whose numerators have a path.
        train_lengths: frames of each utterance of `train`.
        train_phones: phones of each utterance of `train`.
        dev: frames and pdfs of dev, of the utterances whose phones in context occur in train, and whose numerators
            have a path.
        dev_phones: phones of each utterance of `dev`.
    """

    denominator: Denominator
    train: Frames
    train_lengths: np.ndarray
    train_phones: tuple[Aligned, ...]
    dev: FramesInMemory
    dev_phones: tuple[Aligned, ...]

    @staticmethod
    def of(task: HybridTask, criterion: LatticeFree) -> SequenceData:
        """The data of a hybrid task, whose last Gaussian system aligns.

        Raises:
            ValueError: no utterance of train has a numerator with a path, or none of dev; the message names the part.
        """
        stage, frames = task.hmms.trained[-1], task.data
        train, dev = (_phones(stage.model.transitions, task.aligned(stage, part)) for part in ("train", "dev"))
        model = criterion.ngrams.train(phones for phones, _ in train.values())
        denominator = Denominator.of(model, phone_hmms(stage.model.states), task.targets.pdfs)
        graph, builder = denominator.graph, criterion.builder(denominator)
        log.info("denominator: %d n-grams, %d states, %d arcs", model.ngrams, graph.states, graph.arcs)
        own = {name: Aligned.of(denominator, *found) for name, found in train.items()}
        origin = {copy_name(name, speed): name for speed in task.front.stored.speeds for name in own}
        pairs = zip(frames.train.names, frames.train.lengths.tolist(), strict=True)
        stretched = {name: own[origin[name]].stretched(length) for name, length in pairs}
        kept = _with_path("train", stretched, builder)
        chosen = np.array([i for i, name in enumerate(frames.train.names) if name in kept])
        found = _known(denominator, {name: dev[name] for name in frames.dev_feats})
        fitted = {name: each.fitted(len(frames.dev_feats[name])) for name, each in found.items()}
        known = _with_path("dev", fitted, builder)
        held = FramesInMemory({n: frames.dev_feats[n] for n in known}, {n: frames.dev_targets[n] for n in known})
        return SequenceData(
            denominator,
            SomeUtterances(frames.train, chosen),
            frames.train.lengths[chosen],
            tuple(kept.values()),
            held,
            tuple(known.values()),
        )


def _phones(transitions: Transitions, tids: Mapping[str, np.ndarray]) -> dict[str, Phones]:
    """Phones of alignments, and the frames at which they begin."""
    found: dict[str, Phones] = {}
    for name, tids_T in tids.items():
        starts = transitions.arcs.starts(tids_T)
        found[name] = (transitions.phone_of[tids_T[starts]].tolist(), [*starts.tolist(), len(tids_T)])
    return found


def _with_path(part: str, aligned: Mapping[str, Aligned], builder: NumeratorBuilder | None) -> dict[str, Aligned]:
    """The utterances whose phones have room in their frames; a copy at a higher speed has fewer frames."""
    if builder is None:
        return dict(aligned)
    kept = {name: each for name, each in aligned.items() if builder.has_path(each)}
    lost = [name for name in aligned if name not in kept]
    if lost:
        why = (
            f"their phones have no room within {builder.tolerance_frames} frames of the alignment; a larger"
            " task.criterion.tolerance_frames may keep some"
        )
        log.warning("%s: %s", part, left_out("utterance", [(name, why) for name in lost], len(aligned)))
    if not kept:
        raise ValueError(
            f"no utterance of {part} has room for its phones within {builder.tolerance_frames} frames of the alignment:"
            " give a larger task.criterion.tolerance_frames"
        )
    return kept


def _known(denominator: Denominator, dev: Mapping[str, Phones]) -> dict[str, Aligned]:
    found, lost = {}, []
    for name, phones in dev.items():
        try:
            found[name] = Aligned.of(denominator, *phones)
        except KeyError:
            lost.append(name)
    if lost:
        why = "states that train lacks"
        log.warning("dev: %s", left_out("utterance", [(name, why) for name in lost], len(dev)))
    if not found:
        raise ValueError("every utterance of dev has a phone in context that train lacks: give more training speech")
    return found
