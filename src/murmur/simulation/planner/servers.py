"""Closed forms of strategies whose learners exchange with a model cut over the learners or servers that hold it.

    served           1 / sum_i carried(r_i / (1 + u_i^2)^(1/2)),  r_i = 1 / (t_i + x_i)   gradients wait for exchanges
    sharded, apart   1 / sum_i 1 / E t_i                          exchanges beside the gradients, as many as are carried

x_i: seconds of an exchange of learner i, there and back; u_i: load of the card of its node by the others there. The
cards of the holders' nodes and the copies of the holders carry so many exchanges a second and no more; a card with load
u carries the exchanges that are wanted over (1 + u^9)^(1/9). Learners on a holder's own node do not wait for its card.

With constant times learners that have come apart stay so: none waits for another, u_i = 0, and the limits are sharp.
Copies, which follow one another, take them apart; without copies the equal learners of a node may also keep together
for ever, as their cards are shared fairly. Exchanges beside the gradients always begin together with constant times:
x_i is that of all of them. The exponents are fitted to the simulator.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from murmur.core.facts import Form, beside_servers
from murmur.simulation.planner.setting import COMPUTE, ClusterSetting

Numbers = NDArray[np.float64]
CARD = "server's card"
OWN_CARD, HOLDERS_CARD = 2.0, 9.0  # softness of the corners with random times
LITTLE = 1.06  # ratio of paces from which chance has too large a part
BINDS = 1.05  # slower by which the servers are what binds


def served(servers: int, setting: ClusterSetting) -> Form:
    """Form of learners that wait for the parts of all servers."""
    if setting.learners == 1:
        return _alone(setting, 3.0)
    training = range(setting.learners - beside_servers(servers, setting.learners), setting.learners)
    times = setting.times[:, training.start :].mean(0)
    free = 1 / (times + _exchange_seconds(range(servers), training, range(0), setting))
    free = free / _slower(_loads_by_others(free, range(servers), training, setting), OWN_CARD, setting)
    carried = float(_carried(free, range(servers), training, setting).sum())
    if setting.copies == 0 and not _random(setting):
        together = 1 / (times + _exchange_seconds(range(servers), training, training, setting))
        _check_chance(carried, float(_carried(together, range(servers), training, setting).sum()))
    seconds, unhindered = 1 / carried, 1 / float(free.sum())
    lines = (
        "seconds a minibatch = 1 / sum_i 1 / (t_i + 2 (a + b / B + 2 b / R_copy)), or what the servers carry",
        f"                    = {unhindered:.6g}, with their cards and copies {seconds:.6g}      (S = {servers})",
    )
    return Form(seconds / setting.unit, CARD if seconds > unhindered * BINDS else COMPUTE, 4.0, lines)


def _check_chance(apart: float, together: float) -> None:
    """Check that the pace hardly depends on whether equal learners of a node keep together."""
    if apart > together * LITTLE:
        raise ValueError(
            f"equal learners that share a card have {together:.4g} to {apart:.4g} minibatches a second with a parameter"
            " server, as they happen to use it together or in turn: give their times jitter, or simulate them instead"
        )


def sharded(shards: int, exchanges: float, setting: ClusterSetting) -> Form:
    """Form of a server cut over S learners that train too."""
    learners = range(setting.learners)
    return _beside(learners[: min(shards, setting.learners)], learners, exchanges, setting)


def apart(servers: int, exchanges: float, setting: ClusterSetting) -> Form:
    """Form of a server cut over S learners that take no gradients."""
    if setting.learners == 1:
        return _alone(setting, 5.0)
    first = setting.learners - beside_servers(servers, setting.learners)
    return _beside(range(servers), range(first, setting.learners), exchanges, setting)


def _beside(holders: Sequence[int], training: Sequence[int], exchanges: float, setting: ClusterSetting) -> Form:
    """Form of exchanges beside the gradients, of which one that is due while another is under way is left out.

    An exchange that takes x gradients holds up those that are due within ceil(x) gradients, or about x + 1 / 2 if
    gradients take random times.
    """
    times = setting.times[:, training[0] :]
    rates = 1 / times.mean(0)
    x = _exchange_seconds(holders, training, range(0) if _random(setting) else training, setting) * rates
    held_up = np.where(x <= 1, 1.0, x + 0.5 if _random(setting) else np.ceil(x - 1e-9))
    due = np.minimum(exchanges, 1 / held_up)
    total = float(rates.sum())
    carried = float(_carried(due * rates, holders, training, setting).sum()) / total
    lines = (
        "seconds a minibatch = 1 / sum_i 1 / E t_i over the learners that train;  exchanges a second: at most S B / b",
        f"                    = {1 / (total * setting.unit):.6g};  {carried:.3g} of {exchanges:.3g} due a gradient",
    )
    return Form(1 / (total * setting.unit), COMPUTE, 5.0, lines, carried)


def _alone(setting: ClusterSetting, vectors: float) -> Form:
    """Form of a single learner of a strategy with servers."""
    alone = float(setting.times.mean())
    return Form(alone / setting.unit, COMPUTE, vectors, ("one learner is its own server", f"t = {alone:.6g}"))


def _exchange_seconds(
    holders: Sequence[int], training: Sequence[int], together: Sequence[int], setting: ClusterSetting
) -> Numbers:
    """Seconds of an exchange of each learner with all S holders, there and back.

    Parts of the vector follow each other: while one is transferred or copied by its holder, the next is copied by the
    learner. With transfers v and copies c between device and host at both ends, either the transfers bind or the
    learner's copies: max(2 v + 4 c / S, 2 v / S + c + 3 c / S). The learners of a node that begin `together` share its
    card, and those of the holders.
    """
    found, count = [], len(holders)
    beside = setting.cluster.places(together)
    for learner in training:
        latency, alone, away = _way(learner, holders, setting)
        transfer, copies = alone * beside.get(setting.cluster.node_of(learner), 1), setting.copies * away
        bound = max(2 * transfer + 4 * copies / count, 2 * transfer / count + copies * (1 + 3 / count))
        found.append(2 * latency + bound)
    return np.asarray(found)


def _way(learner: int, holders: Sequence[int], setting: ClusterSetting) -> tuple[float, float, float]:
    """Return latency and seconds of a transfer to all holders, and the share of the model that is not the learner's."""
    cluster, size, node = setting.cluster, setting.size, setting.cluster.node_of(learner)
    shares = {n: held / len(holders) for n, held in cluster.places(holders).items()}
    near = shares.pop(node, 0.0) - (learner in holders) / len(holders)
    if not shares:
        return cluster.inside.latency_seconds, near * size / cluster.inside.bytes_per_second, near
    far, mine = sum(shares.values()), cluster.link_of(learner)
    theirs = {n: cluster.links.get(n, cluster.link) for n in shares}
    over = [size * shares[n] / card.bytes_per_second for n, card in theirs.items()]
    transfer = max(size * far / mine.bytes_per_second, near * size / cluster.inside.bytes_per_second, *over)
    return max(card.latency_seconds for card in (mine, *theirs.values())), transfer, far + near


def _random(setting: ClusterSetting) -> bool:
    """True if a learner's compute times differ."""
    return bool((np.ptp(setting.times, axis=0) > 0).any())


def _slower(load: Numbers, softness: float, setting: ClusterSetting) -> Numbers:
    """Factor by which exchanges are slower than without a load, with random times; with constant times they fit in."""
    return (1 + load**softness) ** (1 / softness) if _random(setting) else np.ones_like(load)


def _loads_by_others(
    rates: Numbers, holders: Sequence[int], training: Sequence[int], setting: ClusterSetting
) -> Numbers:
    """Load of the card of each learner's node by the other learners there."""
    cluster, there = setting.cluster, setting.cluster.places(holders)
    nodes = np.asarray([cluster.node_of(i) for i in training])
    far = np.asarray([1 - there.get(int(node), 0) / len(holders) for node in nodes])
    speeds = np.asarray([cluster.link_of(i).bytes_per_second for i in training])
    loads = rates * far * setting.size / speeds
    found: Numbers = np.bincount(nodes, weights=loads)[nodes] - loads
    return found


def _carried(wanted: Numbers, holders: Sequence[int], training: Sequence[int], setting: ClusterSetting) -> Numbers:
    """Exchanges a second of each learner that the cards of the holders' nodes and the holders' copies carry."""
    cluster, part = setting.cluster, setting.size / len(holders)
    nodes, carried = np.asarray([cluster.node_of(i) for i in training]), wanted.copy()
    for node, held in cluster.places(holders).items():
        card, outside = cluster.links.get(node, cluster.link), nodes != node
        load = wanted[outside].sum() * held * part / card.bytes_per_second
        slower = np.maximum(_slower(load, HOLDERS_CARD, setting), load)
        carried[outside] = np.minimum(carried[outside], wanted[outside] / max(1.0, float(slower)))
    others = np.asarray([1 - (i in holders) / len(holders) for i in training])  # nothing of one's own is copied
    copying = float((carried * others).sum()) * setting.copies / len(holders)
    limited: Numbers = np.where(others > 0, carried / max(1.0, copying), carried)
    return limited
