"""Phones and their times in an alignment.

Shapes: T frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from murmur.speech.corpus.atomic_file import write_text_whole
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.phone_arcs import IntArray


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
