"""Commands of learners: a Python text, and a program that meets the others in the store."""

from __future__ import annotations

import sys


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


TRAINS = """
import sys, time
from murmur.worlds.process.environment import take_place
from murmur.worlds.process.store_server import StoreClient

place = take_place()
line = StoreClient(place.host, place.port, 30, place.secret)
line.call({"do": "set", "key": f"{place.prefix}begun/{place.rank}"})
line.wait([f"{place.prefix}begun/{r}" for r in range(place.size)], 60)
"""
