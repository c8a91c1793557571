"""Position of a lhotse sampler that another number of learners resumes."""

from __future__ import annotations

import pytest
from lhotse import CutSet, MonoCut
from lhotse.dataset import DynamicBucketingSampler

from murmur.integrations.icefall import sampler_state

CUTS = CutSet.from_cuts(MonoCut(f"{n}", 0.0, 1.0 + n % 5 / 2, 0) for n in range(97)).repeat(1, preserve_id=True)


def sampler(rank: int, size: int) -> DynamicBucketingSampler:
    options = {"max_duration": 6.0, "num_buckets": 3, "shuffle": True, "sync_buckets": False}
    made = DynamicBucketingSampler(CUTS, rank=rank, world_size=size, **options)
    made.set_epoch(1)
    return made


def whole_epoch() -> list[str]:
    """Cuts of an epoch; lhotse leaves one of these 97 out, with one learner too."""
    return sorted(cut.id for batch in sampler(0, 1) for cut in batch)


def seen(former: int, now: int, steps: int) -> list[str]:
    """Cuts of an epoch in which `former` learners take some steps each, and `now` learners the rest."""
    found, state = [], {}
    for rank in range(former):
        begun = sampler(rank, former)
        batches = iter(begun)
        found += [cut.id for _ in range(steps) for cut in next(batches)]
        state = begun.state_dict()
    for rank in range(now):
        resumed = sampler(rank, now)
        resumed.load_state_dict(sampler_state(state, now))
        found += [cut.id for batch in resumed for cut in batch]
    return sorted(cut for cut in found if "_dup" not in cut)  # lhotse's, to give each learner a last batch


@pytest.mark.parametrize(("former", "now", "steps"), [(2, 1, 5), (1, 2, 6), (2, 3, 6), (4, 2, 3), (2, 2, 5)])
def test_the_rest_of_the_epoch_is_covered_once(former: int, now: int, steps: int) -> None:
    assert seen(former, now, steps) == whole_epoch()


def test_no_cut_is_left_out_where_numbers_do_not_divide() -> None:
    cuts = seen(2, 3, 5)
    assert sorted(set(cuts)) == whole_epoch()
    assert len(cuts) > len(whole_epoch())
