"""Run a command, print its processor seconds, and fail if it took more than a limit.

    python3 .ci/within.py SECONDS COMMAND ...

Processor seconds of the command and of all that it waited for count; they vary less than its duration on a busy host.
The limit is for a processor that runs `WORK` on two cores at once in `WORK_SECONDS` each; it grows with the seconds of
a slower one, such as two threads of one core.
"""

from __future__ import annotations

import resource
import subprocess
import sys

WORK = """import time
words = [str(n) for n in range(200000)]
for _ in range(12):
    counts = {}
    for word in words:
        counts[word[-3:]] = counts.get(word[-3:], 0) + len(word)
print(time.process_time())"""
WORK_SECONDS = 1.0


def slowness() -> float:
    """Return the factor on the limit: that of the processor seconds of `WORK`, at least 1."""
    running = [subprocess.Popen([sys.executable, "-c", WORK], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    seconds = [float(process.communicate()[0]) for process in running]
    return max(1.0, sum(seconds) / len(seconds) / WORK_SECONDS)


def main() -> int:
    """Return the status of the command; 1 if it succeeded in too many processor seconds."""
    limit, command = float(sys.argv[1]) * slowness(), sys.argv[2:]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    status = subprocess.run(command, check=False).returncode
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{' '.join(command)}: {seconds:.0f} processor seconds of at most {limit:.0f}", file=sys.stderr)
    if status == 0 and seconds > limit:
        print("too many: see the slowest tests above; share a set-up, or make a case smaller", file=sys.stderr)
        return 1
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
