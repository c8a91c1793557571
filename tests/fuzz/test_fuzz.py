"""A few hundred hostile files for every reader, and earlier failures; `make fuzz` tries thousands."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random

import pytest

from tests.fuzz import campaign
from tests.fuzz.harness import Target, judge, mutant, valid_files
from tests.fuzz.mutation import Mutator
from tests.fuzz.worker import targets
from tests.support.named import named

CASES = 22  # of every target
MENDED = Path(__file__).parent / "mended.json"


def test_every_reader_reads_or_says_what_is_wrong() -> None:
    found = campaign.run([(name, range(CASES)) for name in targets()])
    assert found.faults == {}, "\n".join(found.lines())
    assert sum(found.counts.values()) == CASES * len(targets())


def test_what_was_mended_stays_mended() -> None:
    wanted = {name: seeds for name, seeds in json.loads(MENDED.read_text()).items() if name in targets()}
    found = campaign.run(list(wanted.items()))
    assert found.faults == {}
    assert sum(found.counts.values()) == sum(map(len, wanted.values()))


def _two_files(folder: Path) -> None:
    (folder / "a.json").write_text('{"x": [1, 2, 3], "y": {"z": "w"}}')
    (folder / "b.txt").write_text("one 1\ntwo 2\n")


def _target(read: object) -> Target:
    return Target(_two_files, read)  # type: ignore[arg-type]


def test_a_seed_names_one_case() -> None:
    target = _target(lambda folder: None)
    valid = valid_files(target)
    cases = [mutant(target, valid, seed) for seed in range(50)]
    assert cases == [mutant(target, valid, seed) for seed in range(50)]
    assert sum(case != valid for case in cases) > 45
    assert len({json.dumps(sorted((k, v.hex()) for k, v in case.items())) for case in cases}) > 40


def test_structure_is_kept_where_it_is_meant_to_be() -> None:
    whole = 0
    for seed in range(200):
        raw = Mutator(Random(seed)).structured("a.json", b'{"x": [1, 2, 3], "y": {"z": "w"}}')
        whole += raw.startswith(b"{")
    assert whole > 150


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("{0}/a.json: a word is missing"), "refused"),
        (FileNotFoundError("{0}/b.txt"), "refused"),
        (ValueError("a word is missing"), "fault"),
        (KeyError("x"), "fault"),
        (RecursionError("too deep"), "fault"),
        (MemoryError(), "fault"),
    ],
    ids=named,
)
def test_errors_are_judged(error: Exception, kind: str) -> None:
    def read(folder: Path) -> None:
        raise type(error)(str(error).format(folder))

    assert judge(_target(read), valid_files(_target(read))).kind == kind


def test_crashes_and_hangs_cost_one_case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stand-in for the worker that aborts at one seed and falls silent at another."""
    stub = tmp_path / "worker.py"
    stub.write_text(
        "import json, os, sys, time\n"
        "first, _, last = sys.argv[2].partition('-')\n"
        "for seed in range(int(first), int(last or first) + 1):\n"
        "    print(json.dumps({'begin': seed, 'target': 'stub'}), flush=True)\n"
        "    if seed == 2: os.abort()\n"
        "    if seed == 4: time.sleep(60)\n"
        "    print(json.dumps({'seed': seed, 'target': 'stub', 'kind': 'read', 'what': ''}), flush=True)\n"
    )
    monkeypatch.setattr(campaign, "WORKER", (sys.executable, str(stub)))
    monkeypatch.setattr(campaign, "SILENT_SECONDS", 1.0)
    found = campaign.run([("stub", range(7))])
    assert set(found.faults) == {("stub", 2), ("stub", 4)}
    assert "signal 6" in found.faults["stub", 2]
    assert "signal 9" in found.faults["stub", 4]
    assert found.counts["stub", "read"] == 5
