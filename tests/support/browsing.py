"""Pages in headless Chromium, and the results of a script in them."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine to open the report in")


def opened(report: Path, tmp_path: Path, width: int, script: str) -> Any:
    """Return a script's result in the page, in a frame of this width: frames can be narrower than windows."""
    assert CHROMIUM is not None
    srcdoc = html.escape(report.read_text())
    frame = f'<iframe id="f" style="border:0;width:{width}px;height:900px" srcdoc="{srcdoc}"></iframe>'
    asked = f"f.onload=()=>setTimeout(()=>{{const w=f.contentWindow,d=f.contentDocument;{script}}},500)"
    (tmp_path / "frame.html").write_text(f"<!DOCTYPE html><title>-</title>{frame}<script>{asked}</script>")
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += [f"--user-data-dir={tmp_path}/profile", "--window-size=1600,900", "--virtual-time-budget=4000"]
    done = subprocess.run(
        [*command, "--dump-dom", f"file://{tmp_path}/frame.html"],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    assert "CONSOLE" not in done.stderr, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert title, done.stderr
    return json.loads(html.unescape(title[1]))
