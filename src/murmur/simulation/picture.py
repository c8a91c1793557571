"""Picture of simulated runs: loss and consensus distance in virtual hours, staleness, idle learners, bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from murmur.report.figures import COLOURS, DASHES
from murmur.simulation.account import Account

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Accounts = Mapping[str, Account]
UNITS = (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
Draw = Callable[["Axes", Accounts], None]


def draw_accounts(accounts: Accounts, path: Path, title: str) -> None:
    """Write the picture; the suffix of `path` sets its format. Panels without data are left out.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    import matplotlib.figure  # noqa: PLC0415 - an optional dependency

    panels: list[Draw] = [staleness, idle, carried]
    if any(evaluations_of(account, "distance")[0] for account in accounts.values()):
        panels.insert(0, distance)
    if any(evaluations_of(account, "loss")[0] for account in accounts.values()):
        panels.insert(0, loss)
    rows = (len(panels) + 1) // 2
    figure = matplotlib.figure.Figure(figsize=(10, 3.2 * rows + 0.8), layout="constrained")
    for place, draw in enumerate(panels):
        axes = figure.add_subplot(rows, 2, place + 1)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e4e4e4", linewidth=0.6)
        axes.set_axisbelow(True)
        draw(axes, accounts)
    figure.suptitle(title, fontsize=11)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def evaluations_of(account: Account, what: str) -> tuple[list[float], list[float]]:
    """Virtual seconds and held-out "loss", or consensus "distance", of the evaluation points that have it."""
    pairs = [
        (point.seconds, point.consensus_distance if what == "distance" else point.figures.get("loss"))
        for point in account.marks
    ]
    known = [(seconds, value) for seconds, value in pairs if value is not None]
    return [seconds for seconds, _ in known], [value for _, value in known]


def loss(axes: Axes, accounts: Accounts) -> None:
    """Held-out loss of the consensus."""
    _against_time(axes, accounts, "loss")
    axes.set(ylabel="held-out loss", title="Loss of the consensus")


def distance(axes: Axes, accounts: Accounts) -> None:
    """Distance of the learners from their mean."""
    _against_time(axes, accounts, "distance")
    axes.set(ylabel="consensus distance", title="Root mean square distance to the consensus", ylim=(0, None))


def staleness(axes: Axes, accounts: Accounts) -> None:
    """Number of changes of the weights during a gradient."""
    shares = {}
    for name, account in accounts.items():
        steps = max(1, sum(account.staleness.values()))
        shares[name] = {age: 100 * count / steps for age, count in account.staleness.items()}
    _bars(axes, shares)
    axes.set(xlabel="changes of the weights", ylabel="% of steps", title="Staleness", yscale="log", ylim=(None, 100))


def idle(axes: Axes, accounts: Accounts) -> None:
    """Share of the run in which each learner did not compute, the busiest learner first."""
    for index, account in enumerate(accounts.values()):
        shares = [100 * share for share in sorted(account.idle)]
        axes.plot(range(len(shares)), shares, **_style(index), marker="." if len(shares) < 40 else "")
    axes.set(xlabel="learners, the busiest first", ylabel="% of the run", title="Idle", ylim=(-2, 102))
    axes.locator_params(axis="x", integer=True)


def carried(axes: Axes, accounts: Accounts) -> None:
    """Bytes sent through the network card of each node."""
    _bars(axes, {name: {n: b / 1e9 for n, b in enumerate(a.card_bytes)} for name, a in accounts.items()})
    axes.set(xlabel="node", ylabel="GB", title="Sent through the card of each node")


def _against_time(axes: Axes, accounts: Accounts, what: str) -> None:
    longest = max(account.seconds for account in accounts.values())
    unit, seconds = next((u, s) for u, s in UNITS if longest >= s or s == 1.0)
    for index, (name, account) in enumerate(accounts.items()):
        x, y = evaluations_of(account, what)
        marker = "o" if len(x) <= 60 else ""
        axes.plot([at / seconds for at in x], y, label=name, **_style(index), marker=marker, markersize=3)
    axes.set(xlabel=f"virtual {unit}", xlim=(0, None))


def _bars(axes: Axes, heights: Mapping[str, Mapping[int, float]]) -> None:
    """Bars side by side at whole numbers, one colour per run."""
    width = 0.8 / len(heights)
    for index, (name, values) in enumerate(heights.items()):
        places = [x + (index - (len(heights) - 1) / 2) * width for x in values]
        axes.bar(places, list(values.values()), width, label=name, color=COLOURS[index % len(COLOURS)])
    axes.locator_params(axis="x", integer=True)


def _style(index: int) -> dict[str, Any]:
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index % len(DASHES)]}
