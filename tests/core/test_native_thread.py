"""The exit status of a process with a thread in native code."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.interpreter
LEFT_BEHIND = """
import sys, threading, time
from datetime import timedelta
from murmur.core.stop_signals import end_process
from murmur.core.torch_private import Store, c10d, gloo_options

class Slow(Store):
    def set(self, key, value):
        pass
    def get(self, key):
        return self.wait([key])
    def add(self, key, amount):
        return 1
    def wait(self, keys, timeout=None):
        while True:
            time.sleep(0.001)  # comes back to Python again and again

def make():
    device = c10d.ProcessGroupGloo.create_device(hostname="127.0.0.1")
    c10d.ProcessGroupGloo(Slow(), 0, 2, gloo_options(device, threads=2, timeout=timedelta(seconds=30)))

threading.Thread(target=make, daemon=True).start()
time.sleep(0.3)
print("said before the end")
{end}(75)
"""


@pytest.mark.processes
@pytest.mark.parametrize("thread", [True, False])
def test_the_status_is_the_given_one(thread: bool) -> None:
    """With `sys.exit` the first of these processes ends by a signal."""
    program = LEFT_BEHIND.format(end="end_process")
    if not thread:
        program = program.replace("threading.Thread(target=make, daemon=True).start()", "")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (75, "said before the end\n"), done.stderr


IN_AN_OPERATION = """
import atexit, threading, time, torch
from murmur.core.stop_signals import end_process

def work():
    x = torch.zeros(3_000_000)
    while True:
        x = (x * 1.0001).clone()

atexit.register(print, "last")
threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
end_process(75)
"""


@pytest.mark.processes
def test_a_daemon_thread_in_an_operation_of_pytorch_does_not_abort_the_process() -> None:
    """With `sys.exit` this process ends by a signal; functions of `atexit` are called in both."""
    done = subprocess.run(
        [sys.executable, "-c", IN_AN_OPERATION], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (75, "last\n"), done.stderr
