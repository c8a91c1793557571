"""Program of learners that a launch forks: writes what it has of a process, and ends as it is told."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

HIGH = 400  # descriptors from here on belong to the fork server of the tests
FOLDER = Path(os.environ["TOLD"])
with (FOLDER / "imports").open("a") as file:
    file.write(f"{os.getpid()}\n")
if os.environ.get("AT_IMPORT") == "device":
    os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
if os.environ.get("AT_IMPORT") == "thread":
    threading.Thread(target=time.sleep, args=(100,), daemon=True).start()


def main() -> None:
    shown = Path("/proc/self/environ").read_bytes().split(b"\0")
    facts = {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "group": os.getpgrp(),
        "words": sys.argv[1:],
        "rank": os.environ["RANK"],
        "threads": os.environ["OMP_NUM_THREADS"],
        "shown": [each.decode() for each in shown if each.startswith(b"RANK=")],
        "command": Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").decode().split("\0")[1:],
        "ignored": signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN,
        "drawn": random.random(),
        "files": [n for n in range(3, HIGH) if os.path.exists(f"/proc/self/fd/{n}")],
    }
    (FOLDER / f"{os.environ['RANK']}.part").write_text(json.dumps(facts))
    (FOLDER / f"{os.environ['RANK']}.part").rename(FOLDER / f"{os.environ['RANK']}.json")
    if "wait" in sys.argv:
        time.sleep(100)
    sys.exit(int(sys.argv[-1]) if os.environ["RANK"] == "1" else 0)


if __name__ == "__main__":
    main()
