"""Tables of simulated runs for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from murmur.report.terminal_table import TerminalTable
from murmur.simulation.account import Account

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
    """Table with one line per run: speed, idle time, bottleneck."""
    numbers = ("virtual h", "samples/s", "idle, %")
    caption = "idle: mean over the learners (range)"
    table = TerminalTable(("strategy", *numbers, "bound by"), title, caption, right=numbers)
    for account in accounts:
        idle = span([100 * share for share in account.idle])
        speed = f"{account.samples_per_second:.0f}"
        table.add_row(account.strategy, f"{account.hours:.4g}", speed, idle, account.binds)
    return table


def traffic_table(accounts: Sequence[Account], title: str) -> TerminalTable:
    """Table with one line per run: staleness of gradients, and bytes by place."""
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
    """Format the mean, with the range if the values differ."""
    mean, low, high = sum(values) / len(values), min(values), max(values)
    return f"{mean:.0f}" if high - low < 0.5 else f"{mean:.0f} ({low:.0f} to {high:.0f})"
