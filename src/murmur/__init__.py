"""Train models with learners that average with a few neighbours, at their own pace, and still move as one.

What stands here is imported when it is used: the store of a launch needs nothing of it, and must start fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from murmur.user_loop.joined import Joined, Plan, join
    from murmur.user_loop.routed import routed
    from murmur.worlds.process.launch.environment import take_place

__all__ = ["Joined", "Plan", "join", "routed", "take_place"]
HOMES = {
    "Joined": "user_loop.joined",
    "Plan": "user_loop.joined",
    "join": "user_loop.joined",
    "routed": "user_loop.routed",
    "take_place": "worlds.process.launch.environment",
}


def __getattr__(name: str) -> Any:
    if name in HOMES:
        return getattr(import_module(f"murmur.{HOMES[name]}"), name)
    raise AttributeError(f"module 'murmur' has no attribute {name!r}")
