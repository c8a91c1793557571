"""Entry point of the program `murmur` and of `python -m murmur`.

Stop signals are handled before the command line is imported, which takes a second or more on a busy machine.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module

from murmur.commands.stopped import say_stopped
from murmur.core.native_thread import end_process
from murmur.core.stop_signals import Stoppable, usual_signals


def main() -> None:
    """Run the command of the command line, and end the process with its status."""
    logging.basicConfig(level=logging.INFO, format="murmur: %(message)s", stream=sys.stderr)
    status = 0
    with Stoppable(lambda stopped: say_stopped(stopped.name, sys.argv[1:])), usual_signals():
        try:
            import_module("murmur.cli").app()
        except SystemExit as ended:
            if not isinstance(ended.code, int):
                raise
            status = ended.code
    end_process(status)


if __name__ == "__main__":
    main()
