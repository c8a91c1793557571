"""Seeds of simulated launches around the store's state; with a fault in the state, the oracle fails."""

from __future__ import annotations

from typing import Any

import pytest

from murmur.worlds.process.membership_server import Instant, MembershipServer
from murmur.worlds.process.store_state import StoreState
from store_simulation import LOST, STUCK, TWICE, found

SEEDS = 2000


def test_no_claim_is_lost_and_none_is_given_twice_while_its_lease_lives() -> None:
    broken = {seed: str(what) for seed in range(SEEDS) if (what := found(seed)) is not None}
    assert broken == {}


class ShortLeases(MembershipServer):
    """Ends leases before their time."""

    def _renew(self, membership: str, rank: int, lease: float, now: float) -> None:
        super()._renew(membership, rank, 0.3 * lease, now)


class Forgetful(MembershipServer):
    """Gives the claims of a lost learner to no other one."""

    def _lose(self, membership: str, rank: int, why: str) -> None:
        table = self._tables[membership]
        given_back = list(table._returned)
        super()._lose(membership, rank, why)
        table._returned[:] = given_back


class Credulous(MembershipServer):
    """Takes the requests of a process that was replaced for those of its successor."""

    def _is_replaced(self, head: dict[str, Any]) -> bool:
        return False


class Patient(MembershipServer):
    """Loses no learner."""

    def _lose(self, membership: str, rank: int, why: str) -> None:
        pass


@pytest.mark.parametrize(
    ("faulty", "kind", "seeds"),
    [
        (ShortLeases, TWICE, range(30)),
        (Forgetful, LOST, range(30)),
        (Credulous, LOST, range(85, 95)),
        (Patient, STUCK, range(75, 80)),
    ],
)
def test_the_oracle_finds_a_fault(faulty: type[MembershipServer], kind: str, seeds: range) -> None:
    class Faulty(StoreState):
        def __init__(self, began: Instant) -> None:
            super().__init__(began)
            self.membership = faulty(began)

    assert kind in {what.kind for seed in seeds if (what := found(seed, Faulty)) is not None}
