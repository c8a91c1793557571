"""Tables of simulated runs for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from murmur.report.drawn import COLOURS, DASHES
from murmur.report.terminal_table import TerminalTable
from murmur.simulation.account import Account

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_ROWS = 20


def evaluations_table(account: Account) -> TerminalTable:
    """Held-out figures against virtual hours; with very many evaluation points, every n-th and the last one."""
    names = list(dict.fromkeys(name for point in account.marks for name in point.figures))
    heads = ("virtual h", "epoch", *names, "consensus distance")
    table = TerminalTable(heads, title=f"{account.strategy}: evaluation points")
    every = -(-len(account.marks) // MOST_ROWS)
    for place, point in enumerate(account.marks):
        if place % every == 0 or place == len(account.marks) - 1:
            figures = [f"{point.figures[name]:.5g}" if name in point.figures else "" for name in names]
            distance = "" if point.consensus_distance is None else f"{point.consensus_distance:.4g}"
            table.add_row(f"{point.seconds / 3600:.4g}", f"{point.epoch:.2f}", *figures, distance)
    return table


def speed_table(accounts: Sequence[Account], title: str) -> TerminalTable:
    numbers = ("virtual h", "samples/s", "idle, %")
    caption = "idle: mean over the learners (range)"
    table = TerminalTable(("strategy", *numbers, "bound by"), title, caption, right=numbers)
    for account in accounts:
        idle = span([100 * share for share in account.idle])
        speed = f"{account.samples_per_second:.0f}"
        table.add_row(account.strategy, f"{account.hours:.4g}", speed, idle, account.binds)
    return table


def traffic_table(accounts: Sequence[Account], title: str) -> TerminalTable:
    numbers = ("staleness", "GB sent", "by a card", "time, %")
    caption = "card: of the node that sent most; time: of its use at full speed"
    table = TerminalTable(("strategy", *numbers), title, caption, right=numbers)
    for account in accounts:
        ages = sorted(account.staleness) or [0]
        card = max(range(len(account.card_bytes)), key=lambda n: account.card_bytes[n])
        table.add_row(
            account.strategy,
            f"{account.mean_staleness:.2f}" + (f" ({ages[0]} to {ages[-1]})" if ages[-1] > ages[0] else ""),
            f"{sum(account.sent_bytes) / 1e9:.4g}",
            f"{account.card_bytes[card] / 1e9:.4g}",
            f"{100 * account.card_use[card]:.1f}",
        )
    return table


def learners_table(account: Account) -> TerminalTable:
    """Table of what each learner computed and sent; with very many learners, the least and the most idle ones."""
    table = TerminalTable(("learner", "computing, s", "idle, %", "sent, GB"), title=f"{account.strategy}: learners")
    order = sorted(range(account.learners), key=lambda i: (account.idle[i], i))
    shown = order if len(order) <= MOST_ROWS else [*order[: MOST_ROWS // 2], *order[-MOST_ROWS // 2 :]]
    for learner in shown if len(order) > MOST_ROWS else sorted(shown):
        table.add_row(
            f"{learner}{' (killed)' if learner in account.killed else ''}",
            f"{account.compute_seconds[learner]:.4g}",
            f"{100 * account.idle[learner]:.1f}",
            f"{account.sent_bytes[learner] / 1e9:.4g}",
        )
    return table


def cards_table(account: Account) -> TerminalTable:
    """Table of the bytes sent through the card of each node; with very many nodes, the busiest ones."""
    table = TerminalTable(("node", "card sent, GB", "in use, %"), title=f"{account.strategy}: links between nodes")
    order = sorted(range(len(account.card_bytes)), key=lambda n: (-account.card_bytes[n], n))[:MOST_ROWS]
    for node in sorted(order):
        table.add_row(str(node), f"{account.card_bytes[node] / 1e9:.4g}", f"{100 * account.card_use[node]:.1f}")
    return table


def span(values: Sequence[float]) -> str:
    mean, low, high = sum(values) / len(values), min(values), max(values)
    return f"{mean:.0f}" if high - low < 0.5 else f"{mean:.0f} ({low:.0f} to {high:.0f})"


Accounts = Mapping[str, Account]
UNITS = (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
Draw = Callable[["Axes", Accounts], None]


def draw_accounts(accounts: Accounts, path: Path, title: str) -> None:
    """Write the picture; the suffix of `path` sets its format. Panels without data are left out."""
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
    _against_time(axes, accounts, "loss")
    axes.set(ylabel="held-out loss", title="Loss of the consensus")


def distance(axes: Axes, accounts: Accounts) -> None:
    _against_time(axes, accounts, "distance")
    axes.set(ylabel="consensus distance", title="Root mean square distance to the consensus", ylim=(0, None))


def staleness(axes: Axes, accounts: Accounts) -> None:
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
