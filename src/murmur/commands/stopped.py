"""What a command that a signal has stopped says on its last line: what is kept, and how to go on."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

AGAIN = "nothing half-written is left; the same command starts anew"
GOES_ON = "what is whole is kept; the same command goes on"
RESUMED = ("train", "simulate")  # by --resume
AFTER: Mapping[str, str] = {
    "demo": GOES_ON,
    "prepare": GOES_ON,
    "align": GOES_ON,
    "settings": AGAIN,
    "add": "the run goes on without this learner; the same command adds one again",
    "launch": "the learners were ended; what they saved themselves is kept",
    "decode": "what is decoded is kept; the same command decodes the rest",
    "transcribe": "files already written are whole; the same command writes all of them again, in the same way",
    "export": AGAIN,
    "score": AGAIN,
    "lexicon": AGAIN,
    "lm": AGAIN,
    "plan": AGAIN,
    "watch": AGAIN,
    "compare": "finished runs are kept, the one under way goes on from its newest checkpoint; the same command goes on",
    "papers": "finished runs are kept, the one under way starts anew; the same command goes on",
    "report": AGAIN,
    "doctor": AGAIN,
}


def say_stopped(signal_name: str, words: Sequence[str]) -> None:
    """Write the line to standard error, in one call: the other threads may hold the lock of the stream."""
    os.write(2, f"murmur: stopped by {signal_name}; {how_to_go_on(words)}\n".encode())


def how_to_go_on(words: Sequence[str]) -> str:
    """What follows for the command that was called with these words."""
    name = next((word for word in words if not word.startswith("-")), "")
    if name not in RESUMED:
        return AFTER.get(name, AGAIN)
    if "--dry-run" in words:
        return GOES_ON
    again = [*words, *(() if "--resume" in words else ("--resume",))]
    return f"what is whole is kept; go on with: {shlex.join(['murmur', *again])}"
