"""Runs programs as learners that are forked from a process that has imported their framework, which takes seconds.

    python -m tests.integrations.forked_learners tests.integrations.lightning_program

Each line of its input is a JSON object with its `number`, the number of `learners`, the `settings` for the program's
`main`, the `seconds` they may take, and a `folder` for their output; each line of its output has that number, and the
learners' exit codes.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def learner(main: Callable[[dict[str, Any]], None], request: dict[str, Any], rank: int, port: int) -> int:
    """Start one learner with the variables of torchrun; return its process."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        output = os.open(Path(request["folder"], f"learner-{rank}.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        at = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": request["learners"], "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in at.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", TORCHELASTIC_RUN_ID="tests")
        faulthandler.dump_traceback_later(0.9 * request["seconds"])  # says where a learner hangs that will be killed
        main(request["settings"])
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run(main: Callable[[dict[str, Any]], None], request: dict[str, Any]) -> list[int]:
    """Run all learners; those that take too long are killed."""
    port = free_port()
    running = {learner(main, request, rank, port): rank for rank in range(request["learners"])}
    codes, deadline = [0] * len(running), time.monotonic() + request["seconds"]
    while running:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            codes[running.pop(child)] = os.waitstatus_to_exitcode(status)
        elif time.monotonic() > deadline:
            for late in running:
                os.kill(late, signal.SIGKILL)
            deadline = float("inf")
        else:
            time.sleep(0.01)
    return codes


if __name__ == "__main__":
    program = import_module(sys.argv[1])
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps({"number": asked["number"], "codes": run(program.main, asked)}), flush=True)
