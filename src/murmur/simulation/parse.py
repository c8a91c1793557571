"""A cluster from a command line's words: what kind it is, how long its minibatches take, what goes wrong when."""

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
    """The preset of that name.

    Raises:
        SettingError: there is none; gives the nearest.
    """
    if name not in PRESETS:
        raise SettingError(f"there is no cluster {name!r}{nearest(name, list(PRESETS))}")
    return preset(name)


def factors_of(stragglers: Sequence[str], learners: int) -> dict[int, float]:
    """Factors on compute times from texts such as 0=10x.

    Raises:
        SettingError: a text is not LEARNER=FACTORx, the factor is not positive, or there is no such learner.
    """
    factors = {}
    for text in stragglers:
        found = re.fullmatch(r"(\d+)=(\d+(?:\.\d+)?)x?", text.strip())
        if found is None or not float(found[2]) > 0:
            raise SettingError(f"--straggler {text!r}: write LEARNER=FACTORx, such as 0=10x")
        factors[_learner(found[1], "straggler", text, learners)] = float(found[2])
    return factors


def compute_times(seconds: float, jitter: float, stragglers: Sequence[str], learners: int) -> ComputeTime:
    """Compute times of a cluster: constant, or lognormal where there is jitter; some learners slower.

    Raises:
        SettingError: a straggler's text cannot be read.
        ValueError: seconds or jitter that cannot be.
    """
    factors = factors_of(stragglers, learners)
    return LognormalSeconds(seconds, jitter, factors=factors) if jitter else ConstantSeconds(seconds, factors)


def faults_of(kills: Sequence[str], stops: Sequence[str], rejoins: Sequence[str], learners: int) -> tuple[Fault, ...]:
    """Kills (5@30s), stops (3@10s+20s: for 20 s) and restarts (5@60s) in virtual time; seconds, min or h.

    Raises:
        SettingError: a text cannot be read, there is no such learner, or one comes back that was not killed before.
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
    """(learner, at, for how long) in seconds."""
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
