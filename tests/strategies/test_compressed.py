"""Compressed strategies: the equation with D(w) for w, its accuracy and its savings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from murmur.core.learner import Strategy
from murmur.core.mixing import matrix, randomized_ring, ring
from murmur.core.world import Seat, World
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.trainer import Trainer
from murmur.strategies.bmuf import BMUF
from murmur.strategies.compressed import COMPRESSIONS, BlockInt8, Cast, Compressed, CompressedGroup
from murmur.strategies.delay_by_one import DelayByOne
from murmur.strategies.kavg import KAVG
from murmur.strategies.sync_sgd import SyncSGD
from murmur.tasks.toy import ToyTask
from murmur.testing.strategies import plain_loop
from murmur.testing.worlds import check_group
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Link
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.before import Before
from tests.support.grids import few
from tests.support.named import named
from tests.support.pool import Pool, PooledWorld
from tests.support.tasks import OddToy, Quadratic, fit, fit_in_process
from tests.support.unscaled import Experiment

INNER = [SyncSGD(), KAVG(4), BMUF(4), DelayByOne(), DelayByOne(randomized_ring)]
SHORT, LONG = Budget(minibatches=32), Budget(minibatches=192)
TOY = ToyTask(samples=8, ragged=True, hidden=16, dropout=0.2)


@pytest.mark.parametrize("form", COMPRESSIONS)
def test_delay_by_one_mixes_what_arrives(form: str) -> None:
    """W <- W + (T - 1) D(W) - alpha G(W)."""
    task, alpha, learners, minibatches = Quadratic(size=300), 0.1, 5, 43
    W = torch.zeros(learners, task.size, dtype=torch.float64)
    for k in range(-(-minibatches // learners)):
        ns = [k * learners + i for i in range(learners)]
        G = torch.stack([w - task.centre(n) if n < minibatches else 0 * w for w, n in zip(W, ns, strict=True)])
        D = torch.stack([COMPRESSIONS[form].decode(COMPRESSIONS[form].encode(w), w) for w in W])
        W = W + matrix(randomized_ring, k, range(learners)) @ D - D - alpha * G
    strategy = Compressed(DelayByOne(randomized_ring), form)
    run = Experiment(task, strategy, Budget(minibatches=minibatches), SGD(alpha))
    got = fit(run, VirtualWorld(learners))
    T = matrix(randomized_ring, k + 1, range(learners))  # begun before the last gradient arrived; keeps the mean
    assert torch.allclose(T.sum(0), torch.ones(learners).double())
    assert torch.allclose(got, W.mean(0), rtol=1e-11, atol=1e-12)
    assert torch.equal(got, fit(run, ThreadWorld(learners, timeout_seconds=20)))


@pytest.mark.parametrize(
    ("task", "form"), [(TOY, "int8"), (OddToy(samples=4, hidden=16), "bfloat16")], ids=["toy", "odd"]
)
@pytest.mark.parametrize("strategy", INNER, ids=named)
def test_worlds_agree_and_repeat(strategy: Strategy, form: str, task: ToyTask) -> None:
    run = Experiment(task, Compressed(strategy, form), Budget(minibatches=61), SGD(0.05), evaluate_every_epochs=0.3)
    first = fit(run, VirtualWorld(3))
    assert torch.equal(first, fit(run, VirtualWorld(3)))
    assert torch.equal(first, fit(run, ThreadWorld(3, timeout_seconds=20)))


@pytest.mark.processes
@pytest.mark.timeout(60)
@pytest.mark.parametrize("strategy", INNER, ids=named)
def test_processes_agree(strategy: Strategy, pool: Pool) -> None:
    """Results agree except for elements at a rounding boundary."""
    run = Experiment(TOY, Compressed(strategy, "bfloat16"), Budget(minibatches=61), SGD(0.05))
    wanted = fit(run, VirtualWorld(3))
    learners = [torch.tensor(w) for w in pool.call(fit_in_process, 3, run)]
    assert all(torch.equal(w, learners[0]) for w in learners)
    assert torch.allclose(learners[0], wanted, rtol=2**-6, atol=1e-3)
    plain = fit(replace(run, strategy=strategy), VirtualWorld(3))
    assert (learners[0] - wanted).norm() < 0.5 * (plain - wanted).norm()


@pytest.mark.parametrize("form", COMPRESSIONS)
@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(4), DelayByOne()], ids=named)
def test_one_learner_rounds_nothing(strategy: Strategy, form: str) -> None:
    run = Experiment(TOY, Compressed(strategy, form), Budget(minibatches=50), SGD(0.1, momentum=0.9))
    assert torch.equal(fit(run, VirtualWorld(1)), plain_loop(run))


@pytest.mark.parametrize("strategy", few(INNER))
def test_seconds_fall_as_bytes_do_and_learning_does_not_suffer(strategy: Strategy) -> None:
    """On a slow link the duration follows the bytes; the held-out loss stays within a few hundredths."""
    cluster = Cluster(learners=4, compute=ConstantSeconds(1e-6), link=Link(0.0, 2e4))
    seconds, sent, loss = {}, {}, {}
    run = Experiment(ToyTask(samples=16, hidden=64), strategy, SHORT, SGD(0.2), evaluate_every_epochs=100)
    for form in ("plain", *COMPRESSIONS):
        used = run if form == "plain" else replace(run, strategy=Compressed(strategy, form))
        ends = []
        for budget in (SHORT, LONG):  # the start and end of a run keep full precision
            world = VirtualWorld(cluster)
            loss[form] = Trainer(replace(used, budget=budget), world).fit().figures["loss"]
            ends.append((world.clock.now, sum(world.network.sent_bytes.values())))
        (begun, few), (ended, many) = ends
        seconds[form], sent[form] = ended - begun, many - few
    for form, share in {"float32": 1.0, "bfloat16": 0.5, "float16": 0.5, "int8": (1 + 4 / 256) / 4}.items():
        assert sent[form] == pytest.approx(sent["plain"] * share, rel=0.01)
        # Parts of a mean are multiples of 256 elements, and a message waits while another one is being received.
        assert seconds[form] <= seconds["plain"] * share * 1.2
        assert loss[form] <= loss["plain"] * 1.05


def test_errors() -> None:
    with pytest.raises(ValueError, match="no compression 'int4'; there are float32, bfloat16, float16, int8"):
        Compressed(KAVG(8), "int4")


BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0 + 4 / 256}
# Half the distance of two neighbours, as a fraction of the number (casts) or of the largest of its block (int8).
ERROR = {"float32": 2**-24, "bfloat16": 2**-8, "float16": 2**-11, "int8": 0.5 / 127}


def draw(numel: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("name", COMPRESSIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_arrives_is_near_and_small(name: str, dtype: torch.dtype) -> None:
    x = draw(256 * 40, dtype=dtype)
    code = COMPRESSIONS[name].encode(x)
    arrived = COMPRESSIONS[name].decode(code, x)
    assert code.dim() == 1
    assert code.numel() * code.element_size() == BYTES[name] * x.numel()
    assert (arrived.dtype, arrived.shape) == (x.dtype, x.shape)
    largest = x.abs() if name != "int8" else x.view(-1, 256).abs().amax(1).repeat_interleave(256)
    # 1e-6: the scales are single precision; 1e-7: small float16 numbers are evenly spaced.
    assert ((arrived - x).abs() <= ERROR[name] * largest * (1 + 1e-6) + 1e-7).all()


@pytest.mark.parametrize("name", COMPRESSIONS)
@pytest.mark.parametrize("numel", [0, 1, 255, 256, 257, 1000])
def test_any_length(name: str, numel: int) -> None:
    x = draw(numel)
    assert torch.allclose(COMPRESSIONS[name].decode(COMPRESSIONS[name].encode(x), x), x, rtol=0.01, atol=0.02)


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_decoded_vectors_are_fixed_points(name: str) -> None:
    """Decoded vectors are fixed points to the bit: further transmissions lose nothing."""
    form, x = COMPRESSIONS[name], torch.cat([draw(1000), 1e-38 * draw(500), 1e30 * draw(500)])
    once = form.decode(form.encode(x), x)
    assert torch.equal(form.decode(form.encode(once), x), once)


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_zeros_arrive_as_zeros_and_the_argument_is_kept(name: str) -> None:
    x = draw(600)
    x[:300] = 0.0
    before = x.clone()
    code = COMPRESSIONS[name].encode(x)
    code.zero_()
    assert torch.equal(x, before)
    assert not COMPRESSIONS[name].decode(COMPRESSIONS[name].encode(x), x)[:300].any()


@pytest.mark.parametrize("name", COMPRESSIONS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_visible(name: str, bad: float) -> None:
    x = draw(300)
    x[7] = bad
    arrived = COMPRESSIONS[name].decode(COMPRESSIONS[name].encode(x), x)
    assert not arrived[7].isfinite()
    assert arrived[290:].isfinite().all()


def test_float16_saturates() -> None:
    x = torch.tensor([1e6, -1e6, 1.0])
    assert Cast(torch.float16).decode(Cast(torch.float16).encode(x), x).tolist() == [65504.0, -65504.0, 1.0]


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_a_message_of_another_length_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="the same compression and model"):
        COMPRESSIONS[name].decode(COMPRESSIONS[name].encode(draw(300)), draw(301))


def test_received_bytes_need_not_be_aligned() -> None:
    x = draw(300)
    code = BlockInt8().encode(x)
    shifted = torch.cat([code[:1], code])[1:]
    assert torch.equal(BlockInt8().decode(shifted, x), BlockInt8().decode(code, x))


@dataclass(frozen=True)
class Speak:
    """A seat's group compresses from now on."""

    form: str

    async def __call__(self, seat: Seat) -> None:
        seat.group = CompressedGroup(seat.group, COMPRESSIONS[self.form])


def speaking(world: World, form: str) -> Before:
    """World with compressed groups."""
    return Before(world, Speak(form))


@pytest.mark.parametrize(
    "world", [VirtualWorld, lambda n: ThreadWorld(n, timeout_seconds=10)], ids=["virtual", "threads"]
)
def test_a_group_that_speaks_float32_keeps_every_promise(world: Callable[[int], World]) -> None:
    check_group(lambda size: speaking(world(size), "float32"))


@dataclass(frozen=True)
class Means:
    """Rounds of a weighted mean of random vectors; learner 1 has weight 0 in every third round."""

    numel: int = 700
    rounds: int = 6

    def given(self, rank: int, k: int) -> tuple[Tensor, float]:
        return draw(self.numel, 100 * k + rank, torch.float64), 0.0 if rank == 1 and k % 3 == 0 else 1.0 + rank

    async def __call__(self, seat: Seat) -> list[list[float]]:
        means = []
        for k in range(self.rounds):
            x, weight = self.given(seat.group.rank, k)
            if weight == 0:
                x.fill_(math.nan)
            means.append((await seat.group.mean(x, weight)).tolist())
        return means

    def oracle(self, size: int, form: str) -> Tensor:
        """Compute m = D(e + sum n_i D(x_i + e_i) / sum n_i) on the stacked vectors."""
        speak = COMPRESSIONS[form]
        kept, owed, means = torch.zeros(size, self.numel).double(), torch.zeros(self.numel).double(), []
        for k in range(self.rounds):
            total, weights = torch.zeros(self.numel).double(), 0.0
            for rank in range(size):
                x, weight = self.given(rank, k)
                if weight > 0:
                    sent = x + kept[rank]
                    arrived = speak.decode(speak.encode(sent), sent)
                    kept[rank] = sent - arrived
                    total, weights = total + weight * arrived, weights + weight
            mean = total / weights + owed
            means.append(speak.decode(speak.encode(mean), mean))
            owed = mean - means[-1]
        return torch.stack(means)


@pytest.mark.parametrize("form", COMPRESSIONS)
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("numel", [5, 700])
def test_the_mean_follows_its_equation(form: str, size: int, numel: int) -> None:
    means = Means(numel)
    wanted = means.oracle(size, form)
    for world in (VirtualWorld(size), ThreadWorld(size, timeout_seconds=10)):
        got = torch.tensor(speaking(world, form).run(means), dtype=torch.float64)
        assert all(torch.equal(learner, got[0]) for learner in got)
        assert torch.allclose(got[0], wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.processes
@pytest.mark.parametrize("form", COMPRESSIONS)
def test_the_mean_in_processes(form: str, pool: Pool) -> None:
    got = torch.tensor(speaking(PooledWorld(pool, 3), form).run(Means()), dtype=torch.float64)
    assert torch.allclose(got, Means().oracle(3, form).expand_as(got), rtol=1e-12, atol=1e-12)


LENGTHS, COUNTS = (300, 5, 513), 3


@dataclass(frozen=True)
class Cut:
    """Rounds of a mean, a mix and a message of random vectors whose sections differ by orders of magnitude."""

    declared: bool = True

    def given(self, rank: int, k: int) -> Tensor:
        parts = [draw(n, 100 * k + rank + n, torch.float64) * 1e3**i for i, n in enumerate(LENGTHS)]
        return torch.cat([*parts, 1e4 + draw(COUNTS, rank, torch.float64)])

    async def __call__(self, seat: Seat) -> list[list[list[float]]]:
        group, found = seat.group, []
        if self.declared:
            group.declare_sections(LENGTHS, COUNTS)
        within = group.split([range(group.size)])
        assert within is not None
        for k in range(3):
            x, other = self.given(group.rank, k), (group.rank + 1) % group.size
            mean = await within.mean(x, 1.0 + group.rank)
            mixed = await group.mix(x, ring(k, range(group.size), group.rank))
            group.post(x, other, "x")
            found += [mean.tolist(), mixed.tolist(), (await group.recv(tag="x")).x.tolist()]
        return found


@dataclass(frozen=True)
class EachAlone(Cut):
    """The same with a vector of its own for each section, and the numbers without compression."""

    async def __call__(self, seat: Seat) -> list[list[list[float]]]:
        whole = [range(seat.group.size)]
        groups = [seat.group.split(whole) for _ in LENGTHS] + [seat.group.plain.split(whole)]
        found: list[list[list[float]]] = []
        for k in range(3):
            got: list[list[float]] = [[], [], []]
            for group, x in zip(groups, self.given(seat.group.rank, k).split([*LENGTHS, COUNTS]), strict=True):
                assert group is not None
                got[0] += (await group.mean(x, 1.0 + group.rank)).tolist()
                got[1] += (await group.mix(x, ring(k, range(group.size), group.rank))).tolist()
                group.post(x, (group.rank + 1) % group.size, "x")
                got[2] += (await group.recv(tag="x")).x.tolist()
            found += got
        return found


@pytest.mark.parametrize("form", COMPRESSIONS)
def test_declared_sections_are_compressed_as_if_alone_and_numbers_not_at_all(form: str) -> None:
    for world in (VirtualWorld(3), ThreadWorld(3, timeout_seconds=10)):
        together, alone, mingled = (
            torch.tensor(speaking(world, form).run(program), dtype=torch.float64)
            for program in (Cut(), EachAlone(), Cut(declared=False))
        )
        assert torch.equal(together, alone)
        assert not torch.allclose(mingled[..., -COUNTS:], alone[..., -COUNTS:], rtol=1e-12)


@pytest.mark.processes
def test_sections_in_processes(pool: Pool) -> None:
    got = torch.tensor(speaking(PooledWorld(pool, 3), "int8").run(Cut()), dtype=torch.float64)
    wanted = torch.tensor(speaking(VirtualWorld(3), "int8").run(Cut()), dtype=torch.float64)
    assert torch.allclose(got, wanted, rtol=1e-12, atol=1e-12)


@dataclass(frozen=True)
class Steady:
    """Repeated means of the same vector."""

    value: float
    rounds: int = 64

    async def __call__(self, seat: Seat) -> float:
        total = torch.zeros(3)
        for _ in range(self.rounds):
            total += await seat.group.mean(torch.tensor([self.value, -4.0, 1.0]))
        return float(total[0]) / self.rounds


@pytest.mark.parametrize("form", ["bfloat16", "float16", "int8"])
def test_what_was_rounded_off_is_sent_later(form: str) -> None:
    value = 1.0 + 2**-12 + 2**-13
    once, often = (speaking(VirtualWorld(3), form).run(Steady(value, rounds))[0] for rounds in (1, 64))
    assert abs(once - value) > 2**-14
    assert abs(often - value) < 2**-5 / 64


@dataclass(frozen=True)
class Mixes:
    """Rounds of mixing without gradients, far from consensus: one learner's values are large."""

    rounds: int

    async def __call__(self, seat: Seat) -> list[float]:
        group = seat.group
        x = draw(300, group.rank, torch.float64) * (1 + 100 * group.rank)
        for k in range(self.rounds):
            mixing = ring if k % 2 else randomized_ring
            x = await group.mix(x, mixing(k, range(group.size), group.rank))
        return x.tolist()


@pytest.mark.parametrize("form", COMPRESSIONS)
def test_mixing_never_moves_the_mean(form: str) -> None:
    start, end = (torch.tensor(speaking(VirtualWorld(5), form).run(Mixes(k)), dtype=torch.float64) for k in (0, 300))
    assert torch.allclose(end.mean(0), start.mean(0), rtol=0, atol=1e-9)
    assert (end - end.mean(0)).norm() < 0.05 * (start - start.mean(0)).norm()


async def messages(seat: Seat) -> list[Any]:
    """Send messages from all learners to learner 0; types, lengths and headers arrive."""
    group, received = seat.group, []
    for x in (draw(300, group.rank), draw(7, group.rank, torch.float64), torch.empty(0), torch.arange(3)):
        group.post(x, 0, "news", (1.5, float(group.rank)))
    if group.rank == 0:
        for i in range(4 * group.size):
            message = await group.recv(i % group.size, "news") if i < 2 * group.size else await group.poll("news", 9.0)
            assert message is not None
            received.append((message.source, i, message.x.dtype, message.x.numel(), message.header))
    return received


@pytest.mark.parametrize("form", COMPRESSIONS)
def test_messages_arrive_unchanged(form: str) -> None:
    for world in (VirtualWorld(2), ThreadWorld(2, timeout_seconds=10)):
        received = speaking(world, form).run(messages)[0]
        assert sorted(str((dtype, numel)) for source, _, dtype, numel, _ in received if source == 1) == sorted(
            str(seen) for seen in [(torch.float32, 300), (torch.float64, 7), (torch.float32, 0), (torch.int64, 3)]
        )
        assert all(header == (1.5, float(source)) for source, *_, header in received)


async def counted(seat: Seat) -> int:
    await seat.group.mean(torch.ones(1024 * seat.group.size))
    seat.group.post(torch.ones(1024), (seat.group.rank + 1) % seat.group.size, "x")
    await seat.group.recv(tag="x")
    assert isinstance(seat.group, CompressedGroup)
    return seat.group.sent_bytes


@pytest.mark.parametrize("form", COMPRESSIONS)
@pytest.mark.parametrize("size", [2, 4])
def test_bytes_are_counted_and_seconds_fall_with_them(form: str, size: int) -> None:
    """A mean of P elements costs as much as an allreduce, 2 (L - 1) / L P, on the wire and on a slow link."""
    world = VirtualWorld(Cluster(learners=size, link=Link(0.0, 1000.0)))
    sent = speaking(world, form).run(counted)
    elements = 2 * (size - 1) * 1024 + 1024
    assert sent == [elements * BYTES[form]] * size
    assert dict(world.network.sent_bytes) == {rank: elements * BYTES[form] for rank in range(size)}
    assert world.clock.now == pytest.approx(elements * BYTES[form] / 1000.0, rel=1e-6)
