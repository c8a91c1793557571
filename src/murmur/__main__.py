"""Entry point of the program `murmur` and of `python -m murmur`.

Stop signals are handled before the command line is imported, which takes a second or more on a busy machine.
"""

from __future__ import annotations

import sys
from importlib import import_module

from murmur.core.printable import OutputError, drop_output, log_to_stderr, open_standard_streams
from murmur.core.stop_signals import Stoppable, end_process, usual_signals
from murmur.plugins import say_stopped


def main() -> None:
    """Run the command of the command line, and end the process with its status."""
    open_standard_streams()
    log_to_stderr()
    status = 0
    with Stoppable(lambda stopped: say_stopped(stopped.name, sys.argv[1:])), usual_signals():
        try:
            try:
                import_module("murmur.cli").app()
            except SystemExit as ended:
                if not isinstance(ended.code, int):
                    raise
                status = ended.code
            sys.stdout.flush()
        except OutputError as error:
            print(f"murmur: {error}", file=sys.stderr)
            drop_output()
            status = 1
    end_process(status)


if __name__ == "__main__":
    main()
