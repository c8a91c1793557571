"""Choice of the acoustic scale and of the beam on development utterances; never use test utterances here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from murmur.execution.executors import Jobs
from murmur.speech.decoding.decode_set import decode_set
from murmur.speech.decoding.decoder import DecodeOptions
from murmur.speech.decoding.wer import ErrorRate, check_same_utterances, score

MORE_SCALES = 3  # tried beyond the ends of a range


@dataclass(frozen=True)
class Trial:
    """One setting, with its error rate and its speed (see Decoded.real_time_factor)."""

    options: DecodeOptions
    rate: ErrorRate
    real_time_factor: float

    def __str__(self) -> str:
        settings = self.options
        return (
            f"scale {settings.acoustic_scale:.4g}, insertion penalty {settings.insertion_penalty:g}, "
            f"beam {settings.beam:g}, at most {settings.max_active} states: "
            f"{self.rate}, real-time factor {self.real_time_factor:.3f}"
        )


@dataclass(frozen=True)
class DevelopmentSet:
    """Data for tuning settings: a stored graph, score matrices (T, C) and references by utterance.

    Raises ValueError, naming utterances, unless scores and references cover the same utterances.
    """

    graph_folder: Path
    scores: Mapping[str, np.ndarray]
    references: Mapping[str, str]
    jobs: Jobs = 1
    frames_per_second: float = 100.0
    kept: Path | None = None  # folder where results are saved, see `decode_set`

    def __post_init__(self) -> None:
        check_same_utterances(self.references, dict.fromkeys(self.scores, ""))

    def trial(self, options: DecodeOptions) -> Trial:
        """Decode the set with one setting."""
        decoded = decode_set(self.graph_folder, self.scores, options, self.jobs, kept=self.kept)
        factor = decoded.real_time_factor(self.frames_per_second)
        return Trial(options, score(self.references, decoded.texts), factor)


def tune_acoustic_scale(
    development: DevelopmentSet, scales: Sequence[float], options: DecodeOptions | None = None
) -> tuple[Trial, list[Trial]]:
    """The scale with the fewest errors (the smallest among equals), and all trials by scale.

    If the best scale is the least or the greatest, see `widened`. Raises ValueError for no scales.
    """
    if not scales:
        raise ValueError("no acoustic scales to try: give some, such as 0.05, 0.07, 0.1, 0.14")
    base = options or DecodeOptions()
    trials = [development.trial(replace(base, acoustic_scale=scale)) for scale in sorted(scales)]
    return min(trials, key=lambda trial: trial.rate.errors), trials


def middle_of_best(trials: Sequence[Trial]) -> Trial:
    """The middle one of the trials with the fewest errors."""
    fewest = min(trial.rate.errors for trial in trials)
    alike = [trial for trial in trials if trial.rate.errors == fewest]
    return alike[len(alike) // 2]


def widened(development: DevelopmentSet, trials: Sequence[Trial], most: int = MORE_SCALES) -> list[Trial]:
    """Trials by scale, with further ones while the best scale is the least or the greatest.

    The next scale continues the factor between the two scales at that end: after 0.08 and 0.1, 0.064 or 0.125.

    Args:
        development: data.
        trials: trials of at least two scales, by scale, equal in all other settings.
        most: most further trials.
    """
    every = list(trials)
    for _ in range(most):
        best = middle_of_best(every)
        if best is every[0]:
            every.insert(0, development.trial(_beyond(best, every[1])))
        elif best is every[-1]:
            every.append(development.trial(_beyond(best, every[-2])))
        else:
            break
    return every


def _beyond(end: Trial, inner: Trial) -> DecodeOptions:
    last = end.options.acoustic_scale
    return replace(end.options, acoustic_scale=last * last / inner.options.acoustic_scale)


def tune_beam(
    development: DevelopmentSet, settings: Sequence[tuple[float, int]], options: DecodeOptions, tolerance_percent: float
) -> tuple[Trial, list[Trial]]:
    """The fastest (beam, max_active) whose rate is within `tolerance_percent` (absolute) of the widest, and all trials.

    The widest is the largest beam, and among equal beams the most states; trials are returned widest first. Raises
    ValueError for no settings.
    """
    if not settings:
        raise ValueError("no beams to try: give some, such as (11.0, 2500) and (14.0, 7000)")
    trials = [
        development.trial(replace(options, beam=beam, max_active=most)) for beam, most in sorted(settings, reverse=True)
    ]
    limit = trials[0].rate.percent + tolerance_percent
    good_enough = [trial for trial in trials if trial.rate.percent <= limit]
    return min(good_enough, key=lambda trial: trial.real_time_factor), trials
