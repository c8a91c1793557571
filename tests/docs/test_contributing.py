"""The first hour of a contributor, step by step as on the page; and paths on all pages."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(?:Write it to\s+`(?P<file>[^`]+)`:\s+)?```(?P<kind>sh|python)\n(?P<text>.*?)```", re.DOTALL)
SETTING_UP = ("git ", "make ")  # needs a network
FOLDERS = (ROOT, ROOT / "src/murmur", ROOT / "papers/murmur_papers", ROOT / "src/murmur/strategies")


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_the_steps_of_the_page(tmp_path: Path) -> None:
    pytest.importorskip("lhotse", reason="the speech libraries are not installed (pip install murmur-asr[speech])")
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    for name in ("pyproject.toml", "src", "benchmarks", "papers", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    for block in BLOCK.finditer(PAGE):
        if block["kind"] == "python":
            (tmp_path / block["file"]).write_text(block["text"], encoding="utf-8")
            continue
        for command in block["text"].splitlines():
            if command.startswith(SETTING_UP):
                continue
            program, *words = shlex.split(command.removeprefix(".venv/bin/"))
            module = [] if program == "python" else ["-m", program]
            run = [sys.executable, *module, *words]
            done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    assert (tmp_path / "runs/halves/model.safetensors").is_file()
    assert (tmp_path / "corpora/tones/data/train/text").is_file()


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]


def test_files_and_modules_that_pages_name_exist() -> None:
    missing = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for path in re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.py)`", text):
            if not any((folder / path).is_file() for folder in FOLDERS):
                missing.append(f"{page.name}: {path}")
        for name in re.findall(r"`(murmur(?:_papers)?(?:\.[a-z_0-9]+)+)", text):
            package, first, *further = name.split(".")
            folder = {"murmur": ROOT / "src/murmur", "murmur_papers": ROOT / "papers/murmur_papers"}[package] / first
            if folder.is_dir() and further:
                folder /= further[0]
            public = f'"{first}"' in (ROOT / "src/murmur/__init__.py").read_text(encoding="utf-8")
            if not (folder.exists() or folder.with_suffix(".py").is_file() or public):
                missing.append(f"{page.name}: {name}")
    assert missing == []
