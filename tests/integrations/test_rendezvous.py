"""The process group that a framework makes by itself, in launches of murmur and of torchrun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.framework_programs import LAUNCHERS

PROGRAM = """
import os
import torch
import torch.distributed as dist
from murmur.integrations.rendezvous import understand_launches

understand_launches()
dist.init_process_group("gloo")
x = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(x)
os.write(1, f"sum {x.item()} of {dist.get_world_size()}\\n".encode())
dist.barrier()
"""


@pytest.mark.processes
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_env_finds_the_store_of_the_launch(launcher: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, *LAUNCHERS[launcher], "2", str(program)]
    run = subprocess.run(command, check=False, timeout=60, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    assert sorted(run.stdout.splitlines()) == ["sum 3.0 of 2"] * 2
