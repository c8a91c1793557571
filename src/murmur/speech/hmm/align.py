"""Forced alignment of a corpus, with the model's own scores or with those of a network; phones and their times.

Shapes: T frames, F features, P pdfs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from murmur.core.whole_files import write_text_whole
from murmur.execution.executors import Jobs
from murmur.speech.hmm import passes
from murmur.speech.hmm.blocks import Block, Workers, cut_into_blocks
from murmur.speech.hmm.fmllr import AdaptedPair, FmllrConfig, estimate_transforms, of_adapted
from murmur.speech.hmm.material import Features, Material, check_material
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.passes import AlignOptions
from murmur.speech.hmm.storage import StoredAlignments
from murmur.speech.hmm.tree import IntArray

Search = Callable[[Block, HmmGmm, AlignOptions], dict[str, str]]


def align(
    model: HmmGmm, feats: Features, texts: Mapping[str, str], options: AlignOptions | None = None, jobs: Jobs = 1
) -> StoredAlignments:
    """Align transcripts with features by the model: {utterance: (T,) transition-ids} without those that fail.

    `feats` are {utterance: (T, F) float32}, as in training. The result does not depend on `jobs`.

    Raises:
        ValueError: the features have the wrong number of columns, or more than 1 % of the utterances cannot be aligned;
            the message names them and gives the reasons.
    """
    dim = model.mixtures.dim if model.projection is None else None
    return _align(model, check_material(model.lang, feats, texts, dim), passes.realign, options, jobs)


def align_scores(
    model: HmmGmm, scores: Features, texts: Mapping[str, str], options: AlignOptions | None = None, jobs: Jobs = 1
) -> StoredAlignments:
    """Align transcripts with scores of another model of the same pdfs, such as a network.

    `scores` are {utterance: (T, P) float32} log-likelihoods up to a constant per frame, e.g. log-posteriors minus
    log-priors, not yet scaled; the rest is as for `align`.
    """
    material = check_material(model.lang, scores, texts, model.num_pdfs)
    return _align(model, material, passes.realign_scores, options, jobs)


def _align(
    model: HmmGmm, material: Material, search: Search, options: AlignOptions | None, jobs: Jobs
) -> StoredAlignments:
    material.losses.with_failed({})
    with Workers(cut_into_blocks(material.feats, material.texts), jobs) as workers:
        material.losses.with_failed(workers.gather(search, model, options or AlignOptions()))
        return workers.alignments


def align_adapted(
    pair: AdaptedPair,
    feats: Features,
    texts: Mapping[str, str],
    speakers: Mapping[str, str],
    config: FmllrConfig,
    jobs: Jobs = 1,
) -> StoredAlignments:
    """Align in two passes: by the model of unadapted features, then adapted to each speaker by the first alignments.

    A speaker with too few frames for a transform keeps the model of unadapted features. `speakers` is {utterance:
    speaker}, `config` holds the settings of the transforms; the rest is as for `align`.
    """
    material, options = check_material(pair.adapted.lang, feats, texts), AlignOptions()
    material.losses.with_failed({})
    with Workers(cut_into_blocks(material.feats, material.texts, speakers), jobs) as workers:
        workers.map(passes.realign, pair.unadapted, options)
        found = estimate_transforms(workers, pair.unadapted, pair.adapted, config, {})
        search = partial(passes.realign_pair, unadapted=pair.unadapted, speakers=frozenset(of_adapted(found)))
        material.losses.with_failed(workers.gather(search, pair.adapted, options))
        return workers.alignments


class PhoneTime(NamedTuple):
    """One phone: its name, its first frame and its number of frames."""

    phone: str
    first_frame: int
    num_frames: int


def phone_times(model: HmmGmm, tids_T: IntArray) -> list[PhoneTime]:
    """The phones of an alignment in order; they cover all frames.

    Raises:
        ValueError: the ids are not transition-ids of the model.
    """
    transitions = model.transitions
    transitions.arcs.check(tids_T)
    starts = transitions.arcs.starts(tids_T)
    lengths = np.diff(np.append(starts, len(tids_T)))
    names = [model.lang.phones[label] for label in transitions.phone_of[tids_T[starts]]]
    return [PhoneTime(name, int(s), int(n)) for name, s, n in zip(names, starts, lengths, strict=True)]


def write_ctm(model: HmmGmm, tids: Mapping[str, IntArray], path: Path, frame_shift_seconds: float = 0.01) -> None:
    """Write `utterance 1 start duration phone` lines, times in seconds, utterances in byte order."""
    lines = [
        f"{utterance} 1 {t.first_frame * frame_shift_seconds:.3f} {t.num_frames * frame_shift_seconds:.3f} {t.phone}\n"
        for utterance in sorted(tids)
        for t in phone_times(model, tids[utterance])
    ]
    write_text_whole(path, "".join(lines))
