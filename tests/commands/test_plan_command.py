"""`murmur plan`: missing options, the experiment's own cluster, tables of several numbers of learners."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app

ALL = {"--model-bytes": "1e6", "--corpus-hours": "1", "--frames-per-minibatch": "100", "--step-seconds": "0.1"}


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["plan", *words], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def test_everything_that_is_missing_is_asked_for_at_once() -> None:
    code, said = run()
    assert code == 1
    assert len(said.splitlines()) == 1
    assert all(option in said for option in ALL)
    assert "murmur plan EXPERIMENT --measure" in said


@pytest.mark.parametrize("left", ALL)
def test_only_what_is_missing_is_asked_for(left: str) -> None:
    code, said = run(*(word for option, value in ALL.items() if option != left for word in (option, value)))
    assert code == 1
    assert [option for option in ALL if option in said] == [left]


OWN = """
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.experiment import Published
from murmur.tasks.toy import ToyTask
from murmur.strategies import KAVG
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Link

def experiment():
    cluster = Cluster(4, ConstantSeconds(36.0), Link(0.0, 1e12))
    published = Published("A 2000", hours={4: 2.0, 8: 0.5}, speed_ups={4: 4.0})
    return Experiment(ToyTask(), KAVG(K=2), Budget(epochs=8), cluster=cluster, published=published)
"""


def test_an_experiment_is_planned_on_its_own_cluster(tmp_path: Path) -> None:
    """100 minibatches of 36 s an epoch are 1 h; 8 epochs on 4 learners take 2 h."""
    file = tmp_path / "own.py"
    file.write_text(OWN)
    code, said = run(str(file))
    assert code == 0, said
    assert "one epoch on 4 learners, the experiment's cluster" in said
    assert "KAVG(K=2), 4 learners: predicted 2 h, 4x; published 2 h, the prediction is 1.00 of it: agrees;" in said
    assert "│ SyncSGD " in said
    assert "measured: " not in said
    code, said = run(str(file), "--learners", "8", "--strategy", "SyncSGD", "--step-seconds", "72")
    assert code == 0, said
    assert "SyncSGD, 8 learners: predicted 2 h, 8x; published 0.5 h, the prediction is 4.00 of it: differs" in said
    assert "KAVG" not in said
    large = ["--corpus-hours", "1", "--frames-per-minibatch", "36000", "--straggler", "0=2x"]
    code, said = run(str(file), *large, "--step-seconds", "36")
    assert code == 0, said
    assert "KAVG(K=2), 4 learners: predicted 0.4 h, 2x" in said  # 10 minibatches an epoch, half as fast
    code, said = run(str(file), *large)
    assert code == 0, said
    assert "KAVG(K=2), 4 learners: predicted 450 h, 2x" in said  # 112.5 times the samples, half as fast


def test_other_machines_need_the_time_of_a_gradient(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    code, said = run(str(file), "--cluster", "ethernet-1g", "--learners", "2", "--strategy", "SyncSGD")
    assert code == 0, said
    assert "measured: 0." in said
    assert "one epoch on 2 learners, ethernet-1g" in said


def test_a_plan_of_all_numbers(tmp_path: Path) -> None:
    words = [word for option, value in ALL.items() for word in (option, value)]
    assert run(*words, "--strategy", "SyncSGD", "--learners", "2")[0] == 0
    by_flops = [*words[:-2], "--flops-per-frame", "1e9", "--strategy", "SyncSGD", "--learners", "2"]
    assert run(*by_flops)[0] == 0
    code, said = run(*words, "--plot", str(tmp_path))
    assert code == 1
    assert "is a folder: give the name of a file" in said


def test_strategies_are_shown_as_written_with_their_measured_loss() -> None:
    words = [word for option, value in ALL.items() for word in (option, value)]
    written = ("KAVG( 8,moments='averaged')", "ASGD")
    code, said = run(*words, "--explain", *(word for text in written for word in ("--strategy", text)))
    assert code == 0, said
    rows = {line.split("│")[1].strip(): line.split("│")[3].strip() for line in said.splitlines() if line[:1] == "│"}
    assert rows == {written[0]: "+5.4 to +8.7 % at 8", "ASGD": "not measured"}
    assert f"\n{written[0]}\n" in said


def test_numbers_of_the_network_replace_those_of_the_cluster(tmp_path: Path) -> None:
    words = [word for option, value in (ALL | {"--model-bytes": "1e9"}).items() for word in (option, value)]
    words += ["--strategy", "SyncSGD", "--learners", "2", "--cluster", "desktops-100m"]
    found = {}
    for gbit in ("0.5", "1", "2"):
        code, said = run(*words, "--bandwidth", gbit)
        assert code == 0, said
        assert f"one epoch on 2 learners, desktops-100m, {gbit} Gb/s" in said
        found[gbit] = hours(said)
    assert found["0.5"] - found["1"] == pytest.approx(2 * (found["1"] - found["2"]), rel=0.02)
    code, said = run(*words, "--bandwidth", "1", "--latency", "4e6")
    assert code == 0, said
    minibatches, messages = 3600 * 100 / 100 / 2, 2  # of each learner; of a ring of two
    assert hours(said) - found["1"] == pytest.approx(4 * messages * minibatches / 3600, rel=0.02)
    file = tmp_path / "own.py"
    file.write_text(OWN)
    slow, fast = (run(str(file), "--strategy", "SyncSGD", *more)[1] for more in (("--latency", "1e9"), ()))
    assert hours(slow) > 2 * hours(fast)


CUT = """
from dataclasses import replace
from murmur.engine.scaling import Auto
from murmur.recipes import toy

def experiment():
    return replace(toy.experiment(), scaling=Auto("stays"))
"""


def hours(said: str) -> float:
    """Return the hours in the only row of the table."""
    told = next(line for line in said.splitlines() if line.startswith("│ SyncSGD")).split("│")[2]
    units = {"h": 1.0, "min": 1 / 60, "s": 1 / 3600}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.e-]+) (h|min|s)", told))


def epoch_hours(*words: str) -> float:
    code, said = run(*words, "--strategy", "SyncSGD", "--cluster", "ethernet-1g")
    assert code == 0, said
    assert "in place of the measured step" in said
    return hours(said)


def test_measured_seconds_are_in_proportion_to_the_frames_that_are_asked_for() -> None:
    """An epoch takes about as long with a hundred times the frames in a minibatch: within 10 times, for the noise."""
    found = []
    for more in ([], ["--frames-per-minibatch", "3200"]):
        code, said = run("toy", *more, "--learners", "2", "--strategy", "SyncSGD", "--cluster", "ethernet-1g")
        assert code == 0, said
        assert ("in proportion to --frames-per-minibatch 3200" in said) == bool(more)
        found.append(hours(said))
    assert found[0] / 10 < found[1] < found[0] * 10


def test_a_time_by_hand_takes_precedence_over_the_measured_step(tmp_path: Path) -> None:
    """100 minibatches of 7 s by 4 learners take 175 s, also where each minibatch is cut in 4 pieces."""
    file = tmp_path / "cut.py"
    file.write_text(CUT)
    for source in ("toy", str(file)):
        for more in ([], ["--measure"]):
            assert epoch_hours(source, *more, "--step-seconds", "7", "--learners", "4") * 3600 == pytest.approx(
                175, rel=0.01
            )
    # 3,200 samples are 32 s of audio; with 800 in a minibatch there are 4 of these, one for a learner.
    of_800 = [str(file), "--step-seconds", "7", "--learners", "4", "--frames-per-minibatch", "800"]
    assert epoch_hours(*of_800) * 3600 == pytest.approx(7, rel=0.01)
    by_flops = [
        epoch_hours("toy", "--flops-per-frame", f, "--utilisation", "0.5", "--learners", "4") for f in ("1e15", "2e15")
    ]
    assert by_flops[1] / by_flops[0] == pytest.approx(2, rel=0.01)


def test_jitter_stays_on_the_experiments_own_cluster(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    code, said = run(str(file), "--jitter", "0.3", "--strategy", "SyncSGD")
    assert code == 0, said
    assert "one epoch on 4 learners, the experiment's cluster" in said
    assert "measured" not in said
    assert 0.25 < hours(said) < 0.5  # the slowest of four takes longer than the median


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--step-seconds", "1", "--flops-per-frame", "1e9"], "both set the time of a gradient: leave out one of them"),
        (["--step-seconds", "1", "--utilisation", "0.5"], "--utilisation changes nothing without --flops-per-frame"),
        (["--step-seconds", "1", "--set", "seed=3"], "--set seed=3 changes nothing without an experiment: name one"),
        (["--measure"], "--measure needs an experiment"),
        (["own", "--measure"], "--measure: the experiment's own cluster says how long a gradient takes: name a"),
        (["own", "--flops-per-frame", "1e9"], "--flops-per-frame: the experiment's own cluster says how long"),
    ],
)
def test_an_option_without_effect_is_refused(tmp_path: Path, words: list[str], says: str) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    numbers = [word for option, value in ALL.items() if option != "--step-seconds" for word in (option, value)]
    code, said = run(*(str(file) if word == "own" else word for word in words), *numbers)
    assert code == 1
    assert says in said


def rows(said: str) -> list[list[str]]:
    """Return the cells of all rows of the only table."""
    lines = [line.strip("│").split("│") for line in said.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line] for line in lines]


def test_several_numbers_of_learners_give_one_table_of_the_rows_of_single_plans(tmp_path: Path) -> None:
    """The rows of a strategy follow each other, and the strategies have the order of the largest number."""
    own = tmp_path / "own.py"
    own.write_text(OWN)
    numbers = [word for option, value in ALL.items() for word in (option, value)]
    for words in ([str(own), "--straggler", "1=3x"], [*numbers, "--cluster", "ethernet-1g", "--price", "2"]):
        words += ["--strategy", "KAVG(K=8)", "--strategy", "SyncSGD", "--strategy", "ADPSGD"]
        code, said = run(*words, "--learners", "8,2,4")
        assert code == 0, said
        assert "one epoch, " in said
        single = {n: rows(run(*words, "--learners", n)[1]) for n in ("2", "4", "8")}
        best_first = [row[0] for row in single["8"]]
        assert len(set(best_first)) == 3
        of = {(row[0], n): row for n, found in single.items() for row in found}
        expected = [[name, n, *of[name, n][1:]] for name in best_first for n in ("2", "4", "8")]
        assert rows(said) == expected


def test_predictions_for_several_numbers_are_compared_with_published_figures(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(OWN)
    code, said = run(str(own), "--learners", "4,8", "--strategy", "SyncSGD", "--explain")
    assert code == 0, said
    assert "SyncSGD, 4 learners: predicted 2 h" in said
    assert "SyncSGD, 8 learners: predicted 1 h, 8x; published 0.5 h" in said
    assert said.count("SyncSGD, 4 learners\n  ") == 1  # the head of its formulas


def test_an_experiment_is_measured_once_for_all_numbers() -> None:
    code, said = run("toy", "--learners", "2,4", "--strategy", "SyncSGD", "--cluster", "ethernet-1g")
    assert code == 0, said
    assert said.count("first steps, sums and the loopback ...") == 1
    assert said.count("scaling with") == 2
    assert [row[:2] for row in rows(said)] == [["SyncSGD", "2"], ["SyncSGD", "4"]]


@pytest.mark.parametrize("learners", ["0", "2,0", "-1", "two", "2;4", "1.5"])
def test_numbers_of_learners_are_positive_whole_numbers(learners: str) -> None:
    numbers = [word for option, value in ALL.items() for word in (option, value)]
    code, said = run(*numbers, f"--learners={learners}")
    assert code == 1
    assert f"--learners {learners}" in said.replace("'", "")
