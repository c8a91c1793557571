"""Run a command, print its processor seconds, and fail if it took more than a limit.

    python3 .ci/within.py SECONDS COMMAND ...

Processor seconds of the command and of all that it waited for count; they vary less than its duration on a busy host.
"""

from __future__ import annotations

import resource
import subprocess
import sys


def main() -> int:
    """Return the status of the command; 1 if it succeeded in too many processor seconds."""
    limit, command = float(sys.argv[1]), sys.argv[2:]
    status = subprocess.run(command, check=False).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime
    print(f"{' '.join(command)}: {seconds:.0f} processor seconds of at most {limit:.0f}", file=sys.stderr)
    if status == 0 and seconds > limit:
        print("too many: see the slowest tests above; share a set-up, or make a case smaller", file=sys.stderr)
        return 1
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
