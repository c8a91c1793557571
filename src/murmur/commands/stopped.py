"""Last line of a command that a signal has stopped: its saved results, and how to continue."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

AGAIN = "no partial files are left; run the same command to start again"
GOES_ON = "finished parts are kept; run the same command to continue"
RESUMED = ("train", "simulate")  # by --resume
AFTER: Mapping[str, str] = {
    "demo": GOES_ON,
    "prepare": GOES_ON,
    "align": GOES_ON,
    "settings": AGAIN,
    "add": "the run goes on without this learner; run the same command to add a learner again",
    "launch": "the learners were ended; files that they saved are kept",
    "decode": "decoded utterances are kept; run the same command to decode the rest",
    "transcribe": "files already written are complete; the same command writes all files again, with the same contents",
    "export": AGAIN,
    "score": AGAIN,
    "lexicon": AGAIN,
    "lm": AGAIN,
    "plan": AGAIN,
    "watch": AGAIN,
    "compare": "finished runs are kept; run the same command to continue from the newest checkpoint of the current run",
    "papers": "finished runs are kept; run the same command to continue with the current run from its start",
    "report": AGAIN,
    "doctor": AGAIN,
}


def say_stopped(signal_name: str, words: Sequence[str]) -> None:
    """Write the line to standard error, in one call: the other threads may hold the lock of the stream."""
    os.write(2, f"murmur: stopped by {signal_name}; {how_to_go_on(words)}\n".encode())


def how_to_go_on(words: Sequence[str]) -> str:
    """Return the remark for the command that was called with these words."""
    name = next((word for word in words if not word.startswith("-")), "")
    if name not in RESUMED:
        return AFTER.get(name, AGAIN)
    if "--dry-run" in words:
        return GOES_ON
    again = [word for word in words if word not in ("--force", "--resume")] + ["--resume"]
    return f"finished parts are kept; continue with: {shlex.join(['murmur', *again])}"
