"""A world in which something is done at every seat before the program."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from murmur.core.world import Program, Seat, World

Act = Callable[[Seat], Awaitable[None]]


@dataclass(frozen=True)
class Before:
    """`world`, whose programs begin after `act`."""

    world: World
    act: Act

    @property
    def size(self) -> int:
        return self.world.size

    def run(self, program: Program[Any]) -> list[Any]:
        return self.world.run(After(program, self.act))


@dataclass(frozen=True)
class After:
    """`program` after `act`."""

    program: Program[Any]
    act: Act

    async def __call__(self, seat: Seat) -> Any:
        await self.act(seat)
        return await self.program(seat)
