"""Rosciszewski and Kaliski 2017: the best frequency of averaging models.

Eight learners, plain means of models, the rate times the root of their number, falling exponentially to a tenth, every
128, 1,024, 8,192 frames a learner, and once at the end. Three seeds, test decoded. The best range holds the frequency
with the highest mean log-probability, and all those with a paired 95 % interval of the loss ratio to it that holds 1.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from murmur.studies.comparison.intervals import difference, spread
from murmur.studies.comparison.rows import Row
from murmur.studies.papers.cell import FRAMES, PASS, StudyCell
from murmur.studies.papers.run import loss
from murmur.studies.papers.study import Finding, Go, Groups, Study, holds, ratio, seeded, shown

LEARNERS = 8
FREQUENCIES = (128, 1024, 8192, PASS // LEARNERS)


def runs(go: Go) -> Groups:
    """One group for each frequency."""
    found = {}
    for frames in FREQUENCIES:
        strategy = f"KAVG({-(-frames // FRAMES)})"
        found[str(frames)] = seeded(StudyCell(strategy, LEARNERS, power=0.5, decoded=True), go)
    return found


def mean_loss(rows: Sequence[Row]) -> float:
    """Mean held-out loss over seeds."""
    return statistics.mean(map(loss, rows))


def best_range(rows: Groups) -> list[str]:
    """The frequencies in the best range, by the rule above."""
    best = min(rows, key=lambda name: mean_loss(rows[name]))
    return [name for name in rows if name == best or ratio(rows[best], rows[name]).low <= 1]


def errors(rows: Sequence[Row]) -> dict[int, Mapping[str, tuple[int, int]]]:
    """Word errors by seed."""
    return {row["cell"]["seed"]: row["errors"] for row in rows}


def findings(rows: Groups) -> list[Finding]:
    """Quality from the rows; time from the record of a benchmark with real processes."""
    chosen = best_range(rows)
    each = ", ".join(f"{n} frames {-mean_loss(rows[n]):.3f}" for n in rows)
    wers = {name: spread(errors(rows[name])) for name in rows if all(row["errors"] for row in rows[name])}
    fewest = min(wers, key=lambda name: wers[name].value)
    far = difference(errors(rows[fewest]), errors(rows[max(wers, key=lambda n: wers[n].value)]))
    last = ratio(rows[FREQUENCIES_SHOWN[0]], rows[FREQUENCIES_SHOWN[-1]])
    return [
        Finding(
            "for a network, data set and machine there is a range of frequencies that is best for quality",
            "600,000 frames an iteration were chosen, of 36 million",
            "the best range by held-out log-probability is not all frequencies",
            f"{', '.join(chosen)} frames; log-probability a frame: {each}",
            holds(len(chosen) < len(rows)),
            f"loss of one average at the end over that of an average after every minibatch {shown(last)}",
        ),
        Finding(
            "word errors show it too",
            "both measures were studied; the rates could not be read",
            "the frequency with the fewest word errors is in that range",
            "; ".join(f"{n} frames {w.value:.1f} % ({w.low:.1f} to {w.high:.1f})" for n, w in wers.items()),
            holds(fewest in chosen),
            f"worst less best {far.difference.value:+.1f} ({far.difference.low:+.1f} to {far.difference.high:+.1f})",
        ),
        *saved(),
    ]


FREQUENCIES_SHOWN = tuple(map(str, FREQUENCIES))


def saved(record: Path = Path("results/bench/averaging_frequency.json")) -> list[Finding]:
    """Time saved by learners that stay alive, as a share, from the record of that benchmark; empty without it."""
    if not record.is_file():
        return []
    figures = json.loads(record.read_text(encoding="utf-8"))["figures"]
    ours, jobs = figures["ours"], figures["job per iteration, processes"]
    shares = {int(frames): 100 * (1 - ours[frames]["seconds"] / jobs[frames]["seconds"]) for frames in ours}
    ordered = [shares[frames] for frames in sorted(shares)]
    return [
        Finding(
            "learners that stay alive save time, the more the more often they average",
            "54.9 % at 600,000 frames",
            "the share saved falls from each frequency to the next lower one",
            ", ".join(f"{shares[frames]:.1f} % at {frames:,} frames" for frames in sorted(shares)),
            holds(ordered == sorted(ordered, reverse=True) and ordered[-1] > 0),
            "two learners of one host, real processes: results/bench/averaging_frequency.json; a job's start costs"
            f" {jobs[str(max(shares))]['starting']:.1f} s here, more on a cluster with a queue",
        )
    ]


STUDY = Study(
    "frequency",
    "Rosciszewski, Kaliski: Minimizing distribution and data loading overheads in parallel training of DNN acoustic"
    " models with frequent parameter averaging (HPCS 2017)",
    "eight learners, means of models after 128, 1,024, 8,192 and all frames of a learner; three seeds, decoded",
    runs,
    findings,
)
