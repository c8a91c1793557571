"""Each learner's part of the data, and its position after a resume."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

import murmur
from murmur.core.errors import SettingError
from murmur.core.learner import Strategy
from murmur.core.world import Seat
from murmur.strategies import ADPSGD, ASGD, KAVG, SuperLearners, SyncSGD
from murmur.user_loop.data import DataSplit, LearnerSampler
from murmur.user_loop.joined import Joined
from murmur.worlds.process.environment import Place
from murmur.worlds.threads import ThreadWorld
from tests.support.user_loops import Words

SAMPLES = 23


def sampler(rank: int = 0, size: int = 1, samples: int = SAMPLES, **settings: Any) -> LearnerSampler:
    given = {"shuffle": True, "seed": 0, "step_samples": None, **settings}
    return LearnerSampler(range(samples), DataSplit(rank, size), **given)


def joined(rank: int, size: int, strategy: Strategy | None = None) -> Joined:
    model = nn.Linear(1, 1)
    place = Place(rank, size, rank, "127.0.0.1", 0)
    return murmur.join(strategy or KAVG(2), model, torch.optim.SGD(model.parameters(), 0.1), seat=place)


def test_the_parts_of_an_epoch_are_disjoint_and_cover_it() -> None:
    parts = [sampler(rank, 3) for rank in range(3)]
    for epoch in range(3):
        drawn = [list(part) for part in parts]
        assert [len(part) for part in parts] == [len(part) for part in drawn] == [8, 8, 7]
        assert sorted(i for part in drawn for i in part) == list(range(SAMPLES))
        theirs = DistributedSampler(range(21), 3, 1, seed=0)  # type: ignore[arg-type]
        theirs.set_epoch(epoch)
        same = sampler(1, 3, 21)
        same.set_epoch(epoch)
        assert list(same) == list(theirs)
        assert [part.epoch for part in parts] == [epoch] * 3


def test_epochs_follow_each_other_or_are_set() -> None:
    part, other = sampler(), sampler()
    first, second = list(part), list(part)
    assert first != second
    assert part.epoch == 1
    other.set_epoch(1)
    assert list(other) == second
    other.set_epoch(1)  # again
    assert list(other) == second
    other.set_epoch(0)
    assert list(other) == first
    assert list(sampler(seed=1)) != first
    assert list(sampler(shuffle=False)) == list(range(SAMPLES))


def test_an_abandoned_pass_goes_on_behind_what_steps_have_used() -> None:
    part = sampler()
    whole = list(sampler())
    next(iter(part))  # a look at the first sample
    draws = iter(part)
    used = [next(draws) for _ in range(5)]
    part.mark()
    next(draws)
    later = iter(part)
    assert len(part) == SAMPLES - 5
    used.append(next(later))
    list(draws)  # the abandoned pass
    part.mark()
    assert used + list(part) == whole


def test_a_position_at_the_end_of_an_epoch_is_the_start_of_the_next() -> None:
    """A loader has drawn the last whole minibatch, and has not asked for more."""
    part, later = sampler(samples=4), sampler(samples=4)
    draws = iter(part)
    assert len(list(islice(draws, 4))) == 4
    part.mark()
    later.load_state_dict(part.state_dict())
    assert (later.epoch, len(later)) == (1, 4)


@pytest.mark.parametrize("sizes", [(2, 2), (2, 1), (2, 3), (3, 2), (3, 4), (2, 3, 2), (1, 2, 5)])
@pytest.mark.parametrize("batch", [1, 3, 4])
def test_a_resumed_epoch_is_divided_anew(sizes: tuple[int, ...], batch: int) -> None:
    """All learners stop after the same number of steps, any; the rest of the epoch is divided among the next ones."""
    for steps in range(1, 9):
        parts, drawn = [sampler(rank, sizes[0]) for rank in range(sizes[0])], list[int]()
        for size in sizes[1:]:
            positions = advanced(parts, steps, batch, drawn)
            parts = [resumed(rank, size, positions[rank % len(positions)]) for rank in range(size)]
        advanced(parts, SAMPLES, 1, drawn)
        assert sorted(drawn) == list(range(SAMPLES)), steps


def advanced(parts: list[LearnerSampler], steps: int, batch: int, drawn: list[int]) -> list[Mapping[str, Any]]:
    """Let all learners take steps as far as their parts of the first epoch go; return their positions."""
    for part in parts:
        draws = iter(part if part.epoch == 0 else ())
        for _ in range(steps):
            drawn += islice(draws, batch)
            part.mark()
    return [part.state_dict() for part in parts]


def resumed(rank: int, size: int, position: Mapping[str, Any]) -> LearnerSampler:
    part = sampler(rank, size)
    part.load_state_dict(position)
    return part


def test_learners_of_different_progress_resume_their_own() -> None:
    """Without lock-step learners stop after different numbers of steps."""
    parts, drawn = [sampler(rank, 2) for rank in range(2)], list[int]()
    positions = [*advanced(parts[:1], 2, 3, drawn), *advanced(parts[1:], 1, 4, drawn)]
    drawn += [i for rank in range(2) for i in resumed(rank, 2, positions[rank])]
    assert sorted(drawn) == list(range(SAMPLES))


def test_other_data_or_another_order_are_refused() -> None:
    position = sampler().state_dict()
    for settings, message in [
        ({"seed": 3}, "seed=3, .* 0"),
        ({"shuffle": False}, "shuffle=False"),
        ({"samples": 5}, "samples=5, .* 23"),
    ]:
        with pytest.raises(SettingError, match=f"the sampler has {message}"):
            sampler(**settings).load_state_dict(position)


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def test_data_without_a_length_are_refused() -> None:
    with pytest.raises(TypeError, match=r"Endless has no length: divide it by me.split in its __iter__"):
        joined(0, 2).sampler(Endless())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="step_samples must be at least 1 or None, got 0"):
        joined(0, 2).sampler(range(3), step_samples=0)


def test_the_split_is_a_mapping_for_samplers_of_other_libraries() -> None:
    def made(**given: int) -> dict[str, int]:
        return given

    assert made(**joined(1, 3).split) == {"rank": 1, "world_size": 3}
    assert vars(joined(1, 3).split) == {"rank": 1, "world_size": 3}


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [
        (ASGD(), [2, 0, 1, 2]),
        (ASGD(servers=2), [0, 1, 0, 1]),
        (SuperLearners(ASGD(), 2), [0, 1, 0, 1]),
        (ADPSGD(), [0, 1, 2, 3]),
    ],
)
def test_the_parts_are_those_of_learners_that_train(strategy: Strategy, ranks: list[int]) -> None:
    splits = [joined(rank, 4, strategy).split for rank in range(4)]
    assert [split.rank for split in splits] == ranks
    assert {split.world_size for split in splits} == {len({*ranks})}


def through_a_file(saved: object) -> Any:
    raw = io.BytesIO()
    torch.save(saved, raw)
    raw.seek(0)
    return torch.load(raw, weights_only=True)


@pytest.mark.parametrize(("strategy", "now"), [(KAVG(2), 2), (SyncSGD(), 3), (KAVG(4), 1)])
def test_a_loop_resumes_in_mid_epoch(strategy: Strategy, now: int) -> None:
    """Steps of two minibatches of two samples: each sample is used once in the epoch."""

    def body(begin: Any, seat: Seat) -> tuple[list[int], Any]:
        model, used = nn.Linear(1, 1), list[int]()
        with murmur.join(strategy, model, torch.optim.SGD(model.parameters(), 0.01), seat=seat) as me:
            data = me.sampler(range(SAMPLES))
            loader = DataLoader(range(SAMPLES), 2, sampler=data)  # type: ignore[arg-type]
            if begin is not None:
                me.load_state_dict(begin[me.rank % 2][1])
            assert data.epoch == 0
            for number, batch in enumerate(loader, 1):
                model(batch[:, None].float()).sum().mul(0.001).backward()
                used += batch.tolist()
                if number % 2 == 0 or number == len(loader):
                    me.step()
                if begin is None and number == 4:
                    break
            kept = through_a_file(me.state_dict())
        return used, kept

    first: Any = ThreadWorld(2, 20.0).run(Words(lambda seat: body(None, seat)))
    second: Any = ThreadWorld(now, 20.0).run(Words(lambda seat: body(first, seat)))
    assert sorted(i for used, _ in [*first, *second] for i in used) == list(range(SAMPLES))
    assert [kept["samplers"][0][0]["epoch"] for _, kept in second] == [1] * now


@pytest.mark.parametrize("steps", [0, 1, 3, 5])
def test_a_position_leaves_out_what_workers_have_drawn_ahead(steps: int, caplog: pytest.LogCaptureFixture) -> None:
    part, used = sampler(step_samples=4), list[int]()
    loader = iter(DataLoader(range(SAMPLES), 4, sampler=part, num_workers=2))  # type: ignore[arg-type]
    for _ in range(steps):
        used += next(loader).tolist()
        part.mark()
    assert used + list(resumed(0, 1, part.state_dict())) == list(sampler())
    assert caplog.messages == []


def test_a_loader_that_works_ahead_is_told(caplog: pytest.LogCaptureFixture) -> None:
    part = sampler()
    next(iter(DataLoader(range(SAMPLES), 2, sampler=part, num_workers=1)))  # type: ignore[arg-type]
    part.mark()
    part.state_dict()
    part.state_dict()
    (message,) = caplog.messages
    assert "set me.sampler(..., step_samples=...)" in message


def test_several_samplers_resume_in_their_order() -> None:
    def run(saved: Any, before: bool) -> tuple[list[int], list[int], Any]:
        model = nn.Linear(1, 1)
        with murmur.join(KAVG(2), model, torch.optim.SGD(model.parameters(), 0.01)) as me:
            if saved is not None and before:
                me.load_state_dict(saved)
            one, two = me.sampler(range(5)), me.sampler(range(9), seed=4)
            if saved is not None and not before:
                me.load_state_dict(saved)
            first, second = iter(one), iter(two)
            drawn = [next(first)], [next(second), next(second)]
            model(torch.ones(1, 1)).sum().backward()
            me.step()
            return *drawn, me.state_dict()

    ones, twos, kept = run(None, before=True)
    for before in (True, False):
        later_one, later_two, _ = run(kept, before)
        assert ones + later_one == list(sampler(samples=5))[:2]
        assert twos + later_two == list(sampler(samples=9, seed=4))[:4]
