"""Readers of run folders: run.json, records.jsonl, score.json, recognised.jsonl, phases.json and trace*.json.

Any of them may be absent. A killed run leaves an incomplete last line. Unreadable parts are left out and named in
`Run.problems`, so that the rest can still be reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from murmur.core.plain_files import UNREADABLE, read_plain
from murmur.core.whole_files import FinishedLines
from murmur.report.recognised import RecognisedUtterance, read_recognised
from murmur.report.records import Records, is_number, read_lines


class ReportError(ValueError):
    """There is nothing to report on."""


@dataclass(frozen=True)
class Headline:
    """The error rate by which a run is judged.

    Attributes:
        name: measured figure, such as "network test wer".
        low, high: interval around it, if the score has one.
    """

    name: str
    percent: float
    low: float | None = None
    high: float | None = None

    def overlaps(self, other: Headline) -> bool:
        """True if the intervals of both meet; False if one has none."""
        ends = (self.low, self.high, other.low, other.high)
        if any(end is None for end in ends):
            return False
        low, high, others_low, others_high = (float(end) for end in ends if end is not None)
        return low <= others_high and others_low <= high


@dataclass(frozen=True)
class Run:
    """The content of one run folder.

    Attributes:
        name: name in legends and tables.
        records: summary of records.jsonl.
        phases: {phase: seconds}, in the order in which they passed.
        problems: unreadable parts, with the file's name.
        utterances: recognised utterances of test.
    """

    folder: Path
    name: str
    facts: Mapping[str, Any]
    records: Records
    score: Mapping[str, Any]
    phases: Mapping[str, float]
    problems: tuple[str, ...] = ()
    utterances: tuple[RecognisedUtterance, ...] = ()

    @property
    def learners(self) -> int:
        told = self.facts.get("learners")
        return told if isinstance(told, int) and told > 0 else len(self.records.steps_of) or 1

    @property
    def simulated(self) -> Mapping[str, Any]:
        """The virtual cluster of a simulated run, from run.json; empty for a real run."""
        found = self.facts.get("simulated")
        return found if isinstance(found, Mapping) else {}

    @property
    def headline(self) -> Headline | None:
        """The word error rate on test; of several systems the last named one, which is the run's own model."""
        test = self.score.get("test")
        figures = {k: float(v) for k, v in test.items() if is_number(v)} if isinstance(test, Mapping) else {}
        rates = [name for name in figures if name == "wer" or name.endswith(" wer")]
        on_test = [name for name in rates if "test" in name.split()]
        name = (on_test or rates or [None])[-1]
        if name is None:
            return None
        stem = name.removesuffix("wer")
        return Headline(name, figures[name], figures.get(f"{stem}low"), figures.get(f"{stem}high"))

    @property
    def heldout(self) -> Mapping[str, float]:
        return self.records.evaluations[-1].figures if self.records.evaluations else {}


def read_run(folder: Path, name: str | None = None) -> Run:
    """Read a run folder.

    Raises:
        ReportError: the folder holds neither run.json nor records.jsonl.
    """
    folder = Path(folder)
    problems: list[str] = []
    if not (folder / "run.json").is_file() and not (folder / "records.jsonl").is_file():
        raise ReportError(
            f"{folder} holds neither run.json nor records.jsonl: give a folder that `murmur train --out` made"
        )
    facts = _object(folder / "run.json", problems, needed=True)
    records = _records(folder / "records.jsonl", problems)
    score = _object(folder / "score.json", problems, needed=False)
    # Virtual seconds of training and real ones of decoding do not add up.
    phases = {} if "simulated" in facts else _phases(folder, records, score, problems)
    utterances = read_recognised(folder / "recognised.jsonl", problems)
    return Run(folder, name or folder.name, facts, records, score, phases, tuple(problems), utterances)


def _object(path: Path, problems: list[str], needed: bool) -> dict[str, Any]:
    """A JSON object; empty, with a problem noted, if there is none."""
    if not path.is_file():
        if needed:
            problems.append(f"{path} is missing: its content is left out")
        return {}
    try:
        found = json.loads(read_plain(path))
    except UNREADABLE as error:
        problems.append(f"{path} cannot be read ({error}): its content is left out")
        return {}
    if not isinstance(found, dict):
        problems.append(f"{path} holds a {type(found).__name__}, not an object: its content is left out")
        return {}
    return found


def _records(path: Path, problems: list[str]) -> Records:
    records = Records()
    if not path.is_file():
        problems.append(f"{path} is missing: there are no curves of this run")
        return records
    read_lines(path, records.add, problems)
    if not records.evaluations:
        problems.append(f"{path} holds no evaluation yet: there is nothing held-out to show")
    return records


def _phases(folder: Path, records: Records, score: Mapping[str, Any], problems: list[str]) -> dict[str, float]:
    """Phases of phases.json of the demo, then those of every run: training, evaluation, decoding."""
    told = _object(folder / "phases.json", problems, needed=False)
    phases = {str(name): float(seconds) for name, seconds in told.items() if is_number(seconds)}
    if records.last_seconds > 0:
        phases["training"] = records.last_seconds
    evaluation = sum(_evaluation_seconds(path) for path in sorted(filter(Path.is_file, folder.glob("trace*.json"))))
    if evaluation > 0:
        phases["evaluation"] = evaluation
    if is_number(score.get("test_seconds")):
        phases["decoding"] = float(score["test_seconds"])
    return phases


def _evaluation_seconds(path: Path) -> float:
    """Learner 0's seconds of evaluation in a trace, read line by line because its array may still be open."""
    return sum(
        float(event["dur"]) / 1e6
        for event in events_of(path, b'"evaluation"')
        if event.get("cat") == "evaluation" and event.get("pid") == 0 and is_number(event.get("dur"))
    )


def events_of(path: Path, having: bytes = b"") -> Iterator[Mapping[str, Any]]:
    """Yield the events of a trace whose lines hold these bytes; damaged lines are left out."""
    for line in FinishedLines(path):
        if having in line:
            try:
                event = json.loads(line.strip().strip(b"[],"))
            except UNREADABLE:
                continue
            if isinstance(event, dict):
                yield event


def names_of(folders: Sequence[Path]) -> list[str]:
    """A name for each folder: its own, with as many parents as needed to make it unique."""
    absolute = [Path(folder).absolute() for folder in folders]
    for depth in range(1, max((len(path.parts) for path in absolute), default=1) + 1):
        names = ["/".join(path.parts[-depth:]) for path in absolute]
        if len(set(names)) == len(names):
            return names
    raise ReportError(f"the same run folder was given twice: {', '.join(map(str, folders))}")
