"""Parts that join the program from outside, by entry points of installed distributions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
from murmur.plugins import Command, Plugin
PLUGIN = Plugin(
    "Weather",
    {"rain": Command("weather.rain", "Say how much rain fell.", "the rain goes on")},
    recipes="weather.recipes",
    install="pip install umbrella",
)
"""
COMMAND = """
import typer
app = typer.Typer(add_completion=False)
@app.command()
def rain(millimetres: int = 3) -> None:
    "Say how much rain fell."
    typer.echo(f"{millimetres} mm")
"""
RECIPE = '''
from dataclasses import dataclass
from murmur.recipes import toy
@dataclass(frozen=True)
class Drizzle(toy.ToyTask):
    """Rain that is a toy.

    Attributes:
        drops: number of drops.
    """

    drops: int = 7


def experiment():
    from dataclasses import replace
    return replace(toy.experiment(), task=Drizzle())
'''


def install(site: Path, name: str, value: str, module: str = MODULE) -> None:
    """Write a distribution as pip leaves it: its package, and the entry point in its metadata."""
    files = {
        f"{name}/__init__.py": "",
        f"{name}/plugin.py": module,
        f"{name}/rain.py": COMMAND,
        f"{name}/recipes/__init__.py": "",
        f"{name}/recipes/drizzle.py": RECIPE,
        f"{name}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{name}-1.0.dist-info/entry_points.txt": f"[murmur.plugins]\n{name} = {value}\n",
    }
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)


def murmur(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "murmur", *words],
        env={"PYTHONPATH": str(site), "COLUMNS": "100"},
        cwd=site,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_a_plugin_adds_commands_and_recipes(tmp_path: Path) -> None:
    install(tmp_path, "weather", "weather.plugin:PLUGIN")
    helped = murmur(tmp_path, "--help")
    assert "Weather:\n  rain" in helped.stdout
    assert "Say how much rain fell." in helped.stdout
    assert murmur(tmp_path, "rain", "--millimetres", "5").stdout == "5 mm\n"
    assert "did you mean 'rain'" in murmur(tmp_path, "rian").stderr
    assert "task.drops = 7" in murmur(tmp_path, "settings", "drizzle").stdout
    trained = murmur(tmp_path, "train", "drizzle", "--set", "budget.minibatches=2", "--out", "out")
    assert (trained.returncode, (tmp_path / "out" / "score.json").is_file()) == (0, True), trained.stderr


def test_a_missing_library_of_a_plugin_is_named_with_its_remedy(tmp_path: Path) -> None:
    install(tmp_path, "weather", "weather.plugin:PLUGIN")
    (tmp_path / "weather" / "rain.py").write_text("import barometer\n")
    done = murmur(tmp_path, "rain")
    assert done.stderr == "murmur: rain needs barometer, which is not installed: pip install umbrella\n"
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("value", "module", "said"),
    [
        ("weather.nowhere:PLUGIN", MODULE, "weather (weather.nowhere:PLUGIN) is left out, as it cannot be loaded: No"),
        ("weather.plugin:SUN", MODULE, "weather (weather.plugin:SUN) is left out, as it cannot be loaded: module"),
        ("weather.plugin:PLUGIN", "1 / 0\n", "is left out, as it cannot be loaded: division by zero"),
        ("weather.plugin:PLUGIN", "PLUGIN = 3\n", "is left out: it is not a murmur.plugins.Plugin"),
        (
            "weather.plugin:PLUGIN",
            MODULE.replace('"rain"', '"train"'),
            "'train' of the plugin weather is left out",
        ),
        ("weather.plugin:PLUGIN", MODULE.replace('"rain"', '"lm"'), "'lm' of the plugin weather is left out: speech"),
    ],
)
def test_plugins_that_cannot_join_are_left_out_in_one_line(tmp_path: Path, value: str, module: str, said: str) -> None:
    install(tmp_path, "weather", value, module)
    for words in (("--help",), ("settings", "toy")):
        done = murmur(tmp_path, *words)
        assert said in done.stderr
        assert (done.returncode, len(done.stderr.splitlines())) == (0, 1)
        assert "toy" in done.stdout or "Train an experiment" in done.stdout or "task.hidden" in done.stdout


def test_recipes_of_a_plugin_replace_none_of_murmur_and_may_be_missing(tmp_path: Path) -> None:
    install(tmp_path, "weather", "weather.plugin:PLUGIN")
    (tmp_path / "weather" / "recipes" / "toy.py").write_text(RECIPE)
    assert "task.drops" not in murmur(tmp_path, "settings", "toy").stdout
    install(tmp_path, "weather", "weather.plugin:PLUGIN", MODULE.replace("weather.recipes", "nowhere.recipes"))
    assert "task.hidden" in murmur(tmp_path, "settings", "toy").stdout
