"""Entry point of the program `murmur` and of `python -m murmur`.

Stop signals are handled before the command line is imported, which takes a second or more on a busy machine.
"""

from __future__ import annotations

import sys
from importlib import import_module

from murmur.commands.stopped import say_stopped
from murmur.core.native_thread import end_process
from murmur.core.printable import log_to_stderr
from murmur.core.standard_streams import OutputError, drop_output, open_standard_streams
from murmur.core.stop_signals import Stoppable, usual_signals


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
