"""Tables printed by commands: no line is wider than the terminal, and no word is broken."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from torch import nn

from murmur.comparison import run_grid, table
from murmur.comparison.grid import Grid
from murmur.comparison.table import TableLine
from murmur.core.facts import Form
from murmur.report.terminal_table import TerminalTable, wrapped
from murmur.report.watch import Watched, frame
from murmur.run import dry_run
from murmur.simulation import plan, results
from murmur.simulation.account import Account, EvaluationPoint
from murmur.simulation.planner.table import PlanRow
from murmur.simulation.scenario import Scenario
from murmur.speech.recipes import demo

ROOT = Path(__file__).parents[2]
WIDTH, WIDE = 80, 2000
NESTED = "SuperLearners(outer=ADPSGD(mixing=randomized_ring), node_size=2)"
LONG = (
    "SuperLearners(outer=CommunicationReduction(ADPSGD(mixing=randomized_ring, speeds=[1, 2]), 8, overlapped=True),"
    " node_size=16)"
)
STRATEGIES = ("KAVG(8)", NESTED, LONG)


def account(strategy: str, learners: int = 3) -> Account:
    figures = {"held-out loss": 1.234567, "log-prob. a frame": -0.681, "frame accuracy": 0.8123}
    return Account(
        strategy=strategy,
        learners=learners,
        seconds=123456.0,
        real_seconds=3.0,
        since_seconds=0.0,
        minibatches=1200,
        samples=1.2e9,
        compute_seconds=tuple(100000.0 - 1000 * i for i in range(learners)),
        waiting_seconds=(10.0,) * learners,
        communicating_seconds=(2.0,) * learners,
        staleness={0: 100, 17: 1100},
        sent_bytes=(1.23456e12,) * learners,
        card_bytes=(1.23456e12,) * 2,
        card_bytes_per_second=(1e9, 1e9),
        clock_seconds=123456.0,
        killed=(1,),
        marks=tuple(EvaluationPoint(3600.0 * n, 1e6 * n, 1.5 * n, 0.0123 * n, figures) for n in range(3)),
    )


def learnt(strategy: str, learners: int, kind: str) -> TableLine:
    return TableLine(
        strategy,
        learners,
        kind,
        samples=123456.0,
        loss=1.2345,
        logprob=-0.6972,
        accuracy=0.8123,
        wer=(12.34, 11.2, 14.5),
        wer_difference=(1.23, -0.75, 3.25),
        hours=12.3,
        speed_up=13.37,
        efficiency=0.84,
        waiting_share=0.16,
        sent_bytes=1.23e11,
        staleness=15.25,
        consensus_distance=0.0123,
    )


def print_evaluations() -> None:
    for each in STRATEGIES:
        Console().print(results.evaluations_table(account(each)))


def print_learners() -> None:
    for each in STRATEGIES:
        Console().print(results.learners_table(account(each)))
        Console().print(results.cards_table(account(each)))


def print_speeds() -> None:
    accounts = [account(each) for each in STRATEGIES]
    Console().print(results.speed_table(accounts, "simulated: 16 learners"))
    Console().print(results.traffic_table(accounts, "simulated: 16 learners"))


def print_comparison() -> None:
    lines = [learnt(each, n, kind) for each in STRATEGIES for n in (1, 16) for kind in ("virtual", "processes")]
    for each in table.console_tables(lines, "experiments/a_long_name_of_an_experiment.py, seeds 0, 1, 2"):
        Console().print(each)


def print_estimate() -> None:
    grid = Grid("toy", (), (NESTED, "KAVG(8)"), (1, 2), (16, 1024), (0, 1), Scenario(step_seconds=0.1))
    Console().print(run_grid.estimate(grid, {}, 123.4))


def print_plan() -> None:
    form, loss = Form(0.1, "the slowest learner", 3.0, ("formula",), rounds=12.5), "+10.1 to +12.5 % at 16"
    plan.show(
        [PlanRow(each, 1024, 1234.5, 1000.12, 0.97, 1.5e9, 12345.67, form, 1000, loss) for each in STRATEGIES],
        NESTED,
        False,
    )


def print_model() -> None:
    class Acoustic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bidirectional_encoder = nn.LSTM(24, 12, 1, bidirectional=True)
            self.register_parameter("frozen_log_prior", nn.Parameter(nn.Linear(1, 9).bias.detach(), False))

    Console().print(dry_run.parameter_table(Acoustic()))


def demo_run(name: str, percent: float, low: float, high: float, logprob: float, seconds: float) -> Any:
    return SimpleNamespace(
        name=name,
        headline=SimpleNamespace(percent=percent, low=low, high=high),
        heldout={"logprob": logprob},
        records=SimpleNamespace(last_seconds=seconds, evaluations=()),
    )


def print_demo() -> None:
    runs = [demo_run(f"{n}-learners-with-other-settings", 12.34, 10.5, 14.25, -0.6972, 12345.6) for n in ("two", "ten")]
    Console().print(demo.table(runs))


CASES: list[tuple[Callable[[], None], tuple[str, ...]]] = [  # and texts whose words must all appear
    (print_evaluations, tuple(f"{each}: evaluation points" for each in STRATEGIES)),
    (print_learners, tuple(f"{each}: learners" for each in STRATEGIES)),
    (print_speeds, (*STRATEGIES, "idle: mean over the learners (range)")),
    (print_comparison, (*STRATEGIES, "experiments/a_long_name_of_an_experiment.py, seeds 0, 1, 2: how fast")),
    (print_estimate, (NESTED, "minibatches")),
    (print_plan, (*STRATEGIES, "efficiency")),
    (print_model, ("bidirectional_encoder.weight_hh_l0_reverse", "float32, frozen")),
    (print_demo, ("two-learners-with-other-settings",)),
]


def cells(printed: str) -> list[str]:
    """Text of every cell, line by line; titles and captions are cells as wide as the table."""
    return [cell.strip() for line in printed.splitlines() for cell in re.split(r"[│┃━┡╇┩┏┳┓└┴┘─┼├┤]+", line)]


def split(text: str) -> set[str]:
    """Words, and parts of words that end after a parenthesis or a comma."""
    return {part for word in text.split() for part in re.findall(r"[^(,]*[(,]*", word) if part}


def broken(wide: str, narrow: str) -> list[str]:
    """Words of a narrow print that do not occur in the wide one, except for breaks after `(` or a comma."""
    words = {word for cell in cells(wide) for word in cell.split()}
    parts = {
        word[start:end]
        for word in words
        for start in [0, *(found.end() for found in re.finditer(r"[(,]", word))]
        for end in [*(found.end() for found in re.finditer(r"[(,]", word)), len(word)]
    }
    return [word for cell in cells(narrow) for word in cell.split() if word not in parts]


@pytest.mark.parametrize(("show", "texts"), CASES, ids=[show.__name__.removeprefix("print_") for show, _ in CASES])
def test_tables_fit_the_terminal_and_break_no_word(
    show: Callable[[], None],
    texts: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed = {}
    for width in (WIDTH, WIDE):
        monkeypatch.setenv("COLUMNS", str(width))
        show()
        printed[width] = capsys.readouterr().out
    assert max(map(len, printed[WIDTH].splitlines())) <= WIDTH
    assert broken(printed[WIDE], printed[WIDTH]) == []
    assert split(" ".join((*texts, *cells(printed[WIDE])))) == split(" ".join(cells(printed[WIDTH])))


def test_a_model_with_large_parameters_shows_every_digit_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Console(width=40).print(dry_run.parameter_table(nn.Linear(2048, 1000)))
    assert "2,048,000" in capsys.readouterr().out


def test_a_table_that_is_too_wide_is_split_and_repeats_its_first_columns(capsys: pytest.CaptureFixture[str]) -> None:
    heads = ("strategy", "learners", "speed-up", "time")
    table = TerminalTable(heads, "title", "[caption]", right=("speed-up", "time"), keys=2)
    table.add_row("ADPSGD(mixing=fixed_ring)", "1", "1.00", "13 h 42 min")
    table.add_row("[bold]SyncSGD()", "16", "12.25", "-")
    Console(width=52).print(table)
    said = capsys.readouterr().out.splitlines()
    assert [line.rstrip() for line in said if re.search(r"\w", line)] == [
        "                       title",
        "┃ strategy                  ┃ learners ┃ speed-up ┃",
        "│ ADPSGD(mixing=fixed_ring) │ 1        │     1.00 │",
        "│ [bold]SyncSGD()           │ 16       │    12.25 │",
        "┃ strategy                ┃ learners ┃        time ┃",
        "│ ADPSGD(                 │ 1        │ 13 h 42 min │",
        "│ mixing=fixed_ring)      │          │             │",
        "│ [bold]SyncSGD()         │ 16       │           - │",
        "                     [caption]",
    ]


def test_only_a_word_that_no_line_of_the_console_could_hold_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    table = TerminalTable(("name", "figure"))
    table.add_row("a" * 50, "1.5")
    Console(width=40).print(table)
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 40
    assert said.count("a") == 50 + 2 * "name".count("a") - 1


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("KAVG(K=8)", 9, ["KAVG(K=8)"]),
        ("KAVG(K=8)", 8, ["KAVG(", "K=8)"]),
        ("ADPSGD() 1,234,567", 9, ["ADPSGD()", "1,234,567"]),
        ("held-out log-prob. a frame", 12, ["held-out", "log-prob. a", "frame"]),
        ("f(a,b) is", 4, ["f(a,", "b)", "is"]),
    ],
)
def test_text_breaks_at_blanks_and_long_words_behind_parentheses_and_commas(
    text: str, width: int, lines: list[str]
) -> None:
    assert wrapped(text, width) == lines


def test_only_one_module_makes_tables_for_the_terminal() -> None:
    sources = [(path.name, path.read_text()) for path in (ROOT / "src").rglob("*.py")]
    assert [name for name, text in sources if "rich.table" in text and re.search(r"\bTable\(", text)] == [
        "terminal_table.py"
    ]


def test_the_demo_prints_the_table_of_the_readme(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    readme = (ROOT / "README.md").read_text()
    rows = re.findall(r"│ (one-learner|two-learners) +│ +(\S+) │ +(\S+) to (\S+) │ +(\S+) │ +(\S+) │", readme)
    assert len(rows) == 2
    trained = sorted(rows)  # one learner first, as the demo trains them; equal rates keep this order
    Console().print(demo.table([demo_run(name, *map(float, figures)) for name, *figures in trained]))
    said = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())
    assert said.strip() in readme


def test_the_learners_of_a_watched_run_fit_the_terminal(tmp_path: Path) -> None:
    strategy = {"type": "murmur.strategies.kavg.KAVG", "K": 2}
    facts = {"learners": 3, "experiment": {"strategy": strategy}, "budget": {"epochs": 4.0}}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    steps = [
        {"kind": "step", "learner": learner, "samples": 100.0 * n, "seconds": 10000.0 * n, "loss": 1234.5678,
         "rate": 0.5, "epoch": n / 1000, "minibatches": 10 * n, "step": n, "staleness": 12,
         "compute_seconds": 123.456, "waiting_seconds": 0.5}
        for n in range(1, 60)
        for learner in range(3)
        if learner != 1 or n < 20
    ]  # fmt: skip
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    watched = Watched(tmp_path, lambda: 1e9)
    while watched.look():
        pass
    printed = {}
    for width in (WIDTH, WIDE):
        out = io.StringIO()
        Console(file=out, width=width, highlight=False).print(frame(watched))
        printed[width] = out.getvalue()
    narrow, wide = (printed[width].split("learning rate")[-1] for width in (WIDTH, WIDE))
    assert "staleness" in narrow
    assert max(map(len, printed[WIDTH].splitlines())) <= WIDTH
    assert broken(wide, narrow) == []
