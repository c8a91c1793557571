"""The papers' experiments at their own size: weights, updates, hours of the planner and of the simulator, published.

Nothing is trained. The simulator runs the strategy's own protocol for some minibatches of all learners, on the machines
of the experiment; the planner's closed form is for the whole budget. The table goes to docs/paper_experiments.md.

    python benchmarks/paper_experiments.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from measure import bar, close
from murmur.core.flat import Layout
from murmur.engine.experiment import Experiment, Published
from murmur.run.configuration import resolved
from murmur.simulation.plan import own_site
from murmur.simulation.planner.table import agrees, row_of, shown
from murmur.simulation.planner.timing import time_strategy
from murmur.simulation.scenario import Scenario

KIND = "bar"
PAGE = Path(__file__).parents[1] / "docs" / "paper_experiments.md"
BEGIN, END = "<!-- begin table -->\n", "<!-- end table -->\n"
HEAD = (
    "| experiment | strategy | learners | weights | frames a learner and step | turns | planned h | simulated h"
    " | speed-up | published | |"
)
TURNS = 200  # of all learners in a simulation, unless it takes the whole budget
CASES: dict[str, tuple[str, str | None, int | None]] = {  # text -> recipe, strategy, learners; None: the recipe's own
    "rosciszewski2017": ("rosciszewski2017", None, None),
    "su_chen2015, 16": ("su_chen2015", None, None),
    "su_chen2015, 32": ("su_chen2015", None, 32),
    "cong2017": ("cong2017", None, None),
    "cong2017, ASGD at 4": ("cong2017", "ASGD", 5),
    "cui2021, fixed ring": ("cui2021", "ADPSGD(ring)", None),
    "cui2021, randomised ring": ("cui2021", None, None),
    "cui2021, delay-by-one": ("cui2021", "DelayByOne", None),
    "zhang2019": ("zhang2019", None, None),
}
WHOLE = ("rosciszewski2017",)  # its number of learners grows over the budget


def figures_of(name: str) -> dict[str, Any]:
    """Figures of one case."""
    recipe, strategy, learners = CASES[name]
    experiment: Experiment = resolved(recipe, [], strategy=strategy)
    site = own_site(experiment, Scenario(learners), {})
    cluster, task, total = site.cluster_of(site.learners), experiment.task, experiment.budget.total(experiment.task)
    row = row_of(experiment.strategy, cluster, site.work)
    samples = task.samples_per_epoch / task.per_epoch
    count = total if recipe in WHOLE else TURNS * site.learners
    timing = time_strategy(experiment.strategy, cluster, count, samples)
    published = experiment.published or Published("")
    planned, simulated = row.hours * site.epochs, timing.seconds_per_minibatch * total / 3600
    speed_up = sum(timing.compute_seconds) / timing.seconds
    pairs = {
        "hours": (simulated, published.hours.get(site.learners)),
        "speed-up": (speed_up, published.speed_ups.get(site.learners)),
    }
    return {
        "strategy": shown(experiment.strategy).partition("(frames")[0],
        "learners": site.learners,
        "weights": Layout.trainable(task.model()).numel,
        "frames a minibatch": samples,
        "turns": -(-total // site.learners),
        "planned hours": planned,
        "simulated hours": simulated,
        "speed-up": speed_up,
        "published": {what: value for what, (_, value) in pairs.items() if value is not None},
        "agrees": {what: agrees(ours, value) for what, (ours, value) in pairs.items() if value is not None},
    }


def line_of(name: str, found: dict[str, Any]) -> str:
    """Row of the table."""
    units = {"hours": " h", "speed-up": "x"}
    published = ", ".join(f"{value:g}{units[what]}" for what, value in found["published"].items())
    verdicts = ", ".join("agrees" if good else "differs" for good in found["agrees"].values())
    cells = [
        f"`{CASES[name][0]}`",
        f"`{found['strategy']}`",
        f"{found['learners']}",
        f"{found['weights']:,}",
        f"{found['frames a minibatch']:,.0f}",
        f"{found['turns']:,}",
        f"{found['planned hours']:.2f}",
        f"{found['simulated hours']:.2f}",
        f"{found['speed-up']:.1f}",
        published or "none",
        verdicts,
    ]
    return f"| {' | '.join(cells)} |"


def write(lines: list[str]) -> None:
    """Replace the table of the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    table = "\n".join([HEAD, "|" + "---|" * (HEAD.count("|") - 1), *lines])
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n\n{END}{after}", encoding="utf-8")


def main() -> None:
    figures = {}
    for name in CASES:
        found = figures[name] = figures_of(name)
        print(line_of(name, found), flush=True)
    write([line_of(name, found) for name, found in figures.items()])
    bars = [
        bar(
            f"{name}: hours of the planner / of the simulator, or the reverse",
            max(f["planned hours"] / f["simulated hours"], f["simulated hours"] / f["planned hours"]),
            1.1,
        )
        for name, f in figures.items()
    ]
    close("paper_experiments", figures, bars)


if __name__ == "__main__":
    main()
