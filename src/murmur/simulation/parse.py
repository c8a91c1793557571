"""Parsing of a simulated cluster's options: kind, compute times, faults."""

from __future__ import annotations

import re
from collections.abc import Sequence

from murmur.core.errors import SettingError, nearest
from murmur.worlds.virtual.cluster import ComputeTime, ConstantSeconds, Kill, LognormalSeconds, Rejoin, Stop
from murmur.worlds.virtual.presets import PRESETS, Preset, preset

Fault = Kill | Stop | Rejoin
UNITS = {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0}
EXAMPLES = {"kill": "5@30s", "stop": "3@10s+20s", "rejoin": "5@60s"}


def kind_of(name: str) -> Preset:
    """Return the preset of that name.

    Raises:
        SettingError: the name is unknown; the message gives the nearest one.
    """
    if name not in PRESETS:
        raise SettingError(f"there is no cluster {name!r}{nearest(name, list(PRESETS))}")
    return preset(name)


def factors_of(stragglers: Sequence[str], learners: int) -> dict[int, float]:
    """Parse factors on compute times from texts such as 0=10x.

    Raises:
        SettingError: a text is not LEARNER=FACTORx, the factor is not positive, or the learner does not exist.
    """
    factors = {}
    for text in stragglers:
        found = re.fullmatch(r"(\d+)=(\d+(?:\.\d+)?)x?", text.strip())
        if found is None or not float(found[2]) > 0:
            raise SettingError(f"--straggler {text!r}: write LEARNER=FACTORx, such as 0=10x")
        factors[_learner(found[1], "straggler", text, learners)] = float(found[2])
    return factors


def compute_times(seconds: float, jitter: float, stragglers: Sequence[str], learners: int) -> ComputeTime:
    """Compute times of a cluster with stragglers: constant, or lognormal if there is jitter.

    Raises:
        SettingError: the text of a straggler is invalid.
        ValueError: the seconds or the jitter are out of range.
    """
    factors = factors_of(stragglers, learners)
    return LognormalSeconds(seconds, jitter, factors=factors) if jitter else ConstantSeconds(seconds, factors)


def faults_of(kills: Sequence[str], stops: Sequence[str], rejoins: Sequence[str], learners: int) -> tuple[Fault, ...]:
    """Parse kills (5@30s), stops (3@10s+20s: for 20 s) and restarts (5@60s) in virtual time; units s, min, h.

    Raises:
        SettingError: a text is invalid, a learner does not exist, or a learner is restarted that was not killed.
    """
    faults: list[Fault] = []
    for text in kills:
        learner, at, _ = _moment("kill", text, learners)
        faults.append(Kill(learner, at))
    for text in stops:
        learner, at, duration = _moment("stop", text, learners)
        faults.append(Stop(learner, at, duration))
    for text in rejoins:
        learner, at, _ = _moment("rejoin", text, learners)
        if not any(isinstance(f, Kill) and f.learner == learner and f.at_seconds < at for f in faults):
            raise SettingError(f"--rejoin {text!r}: learner {learner} is not killed before {at:g} s; add a --kill")
        faults.append(Rejoin(learner, at))
    return tuple(faults)


def _moment(option: str, text: str, learners: int) -> tuple[int, float, float]:
    """Return (learner, moment, duration) in seconds."""
    time = r"(\d+(?:\.\d+)?)\s*(s|min|h|)"
    found = re.fullmatch(rf"(\d+)@{time}" + (rf"\+{time}" if option == "stop" else ""), text.strip())
    if found is None:
        form = "LEARNER@TIME+DURATION" if option == "stop" else "LEARNER@TIME"
        raise SettingError(f"--{option} {text!r}: write {form}, such as {EXAMPLES[option]} (s, min or h)")
    learner = _learner(found[1], option, text, learners)
    duration = float(found[4]) * UNITS[found[5]] if option == "stop" else 0.0
    return learner, float(found[2]) * UNITS[found[3]], duration


def _learner(digits: str, option: str, text: str, learners: int) -> int:
    if int(digits) >= learners:
        raise SettingError(f"--{option} {text!r}: there are learners 0..{learners - 1}")
    return int(digits)
