"""`murmur settings`: `--set` accepts every listed name with its value, and each has an explanation."""

from __future__ import annotations

import json
import re
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app
from murmur.core.errors import SettingError
from murmur.run.configuration import attribute_lines, configure, recipe_names, resolved, settings_of, written

pytestmark = pytest.mark.skipif(
    find_spec("kaldi_hmm_gmm") is None, reason="the speech libraries are not installed (pip install murmur-asr[speech])"
)
RECIPES = recipe_names()


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["settings", *words])
    return done.exit_code, done.output


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_name_takes_its_listed_value(recipe: str) -> None:
    experiment = resolved(recipe)
    listed = settings_of(experiment)
    assert {"budget.epochs", "seed", "strategy"} <= {setting.name for setting in listed}
    for setting in listed:
        words = f"{setting.name}={setting.default}"
        assert configure(experiment, [words]) == experiment, words


def test_another_value_is_taken_too() -> None:
    names = {setting.name: setting for setting in settings_of(resolved("digits_hybrid"))}
    assert names["task.front.bins"].type == "int"
    assert names["task.front.cmvn"].type == "speaker | utterance | none"
    assert names["task.hmm.lda"].type == "LdaMlltConfig | None"
    assert names["schedule"].type == "Schedule"
    assert names["task.front.speeds"].type == "tuple[float, ...]"
    changed = configure(resolved("digits_hybrid"), ["task.hmm.triphone=TriphoneConfig(tree=TreeConfig(leaves=7))"])
    names = {setting.name: setting for setting in settings_of(changed)}
    assert names["task.hmm.triphone"].default == "TriphoneConfig(tree=TreeConfig(leaves=7))"
    assert names["task.hmm.triphone.tree.leaves"].default == "7"


def test_values_that_are_no_literals() -> None:
    assert written(Path("a b")) == "a b"
    assert written((Path("a"),)) == "('a',)"
    assert written(run) == "run"


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_field_has_an_explanation_of_its_own(recipe: str) -> None:
    def missing(owner: object, prefix: str) -> list[str]:
        lines = attribute_lines(type(owner))
        here = [f"{prefix}{name}" for name in vars(owner) if not lines.get(name)]
        inner = [(name, value) for name, value in vars(owner).items() if hasattr(value, "__dataclass_fields__")]
        return here + [full for name, value in inner for full in missing(value, f"{prefix}{name}.")]

    assert missing(resolved(recipe), "") == []


def test_a_class_without_lines_gives_its_first_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass, field\n"
        "from murmur.engine.experiment import Experiment\nfrom murmur.strategies import SyncSGD\n"
        "@dataclass(frozen=True)\nclass Part:\n    '''A part of the task.'''\n    size: int = 3\n"
        "@dataclass(frozen=True)\nclass Mine:\n    part: Part = field(default_factory=Part)\n    depth: int = 2\n"
        "def experiment():\n    return Experiment(Mine(), SyncSGD())\n"
    )
    code, said = run(str(file), "task")
    assert code == 0, said
    assert said == "task.part.size = 3\n    (int) A part of the task.\ntask.depth = 2\n    (int)\n"


@pytest.mark.parametrize("recipe", RECIPES)
def test_output_fits_80_columns_with_whole_words(recipe: str) -> None:
    code, said = run(recipe)
    assert code == 0, said
    assert max(map(len, said.splitlines())) <= 80
    shown = re.sub(r"\s+", " ", said)
    for setting in settings_of(resolved(recipe)):
        assert f"{setting.name} = {setting.default} ({setting.type}) {setting.explanation}" in shown


def test_json() -> None:
    code, said = run("toy", "task.hidden", "--json")
    assert code == 0, said
    [found] = json.loads(said)
    assert found == {
        "name": "task.hidden",
        "type": "int",
        "default": "128",
        "explanation": "width of the hidden layer.",
    }
    assert [s["name"] for s in json.loads(run("own", "--json")[1])] == [s.name for s in settings_of(resolved("own"))]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("HIDDEN", ["task.hidden"]),
        (
            "optimizer.*",
            [
                "optimizer.lr",
                "optimizer.momentum",
                "optimizer.weight_decay",
                "optimizer.nesterov",
                "optimizer.keep_rate",
            ],
        ),
        ("?eed", ["seed"]),
        ("task.[hd]*", ["task.hidden", "task.dropout"]),
    ],
)
def test_patterns(pattern: str, names: list[str]) -> None:
    assert [found["name"] for found in json.loads(run("toy", pattern, "--json")[1])] == names


def test_set_shows_the_fields_of_another_value() -> None:
    assert "optimizer.beta2" not in run("toy")[1]
    code, said = run("toy", "beta2", "--set", "optimizer=Adam(beta2=0.5)")
    assert code == 0, said
    assert said.startswith("optimizer.beta2 = 0.5\n    (float) Decay of")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("toyy",), "'toyy' is neither a .py file nor a recipe; did you mean 'toy'?"),
        (("toy", "task.hiden"), "no setting of toy matches 'task.hiden'; did you mean 'task.hidden'?"),
        (("toy", "*.q"), "leave the pattern out to see all names"),
    ],
)
def test_mistakes(words: tuple[str, ...], says: str) -> None:
    code, said = run(*words)
    assert code == 1
    assert says in said


@pytest.mark.parametrize("command", ["train", "simulate", "plan", "settings"])
def test_an_unknown_name_points_here(command: str, tmp_path: Path) -> None:
    file = tmp_path / "my file.py"
    file.write_text("from murmur.recipes.toy import experiment\n")
    words = [
        command,
        str(file),
        "--set",
        "task.hiden=3",
        *(("--out", str(tmp_path / "o")) if command == "train" else ()),
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert f"did you mean 'hidden'? (all names: murmur settings '{file}')" in done.output


def test_a_budget_keeps_its_unit_where_another_is_set_to_none() -> None:
    toy = resolved("toy")
    assert configure(toy, ["budget.samples=None"]) == toy


def test_nothing_is_made_or_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    begun = time.monotonic()
    for recipe in RECIPES:
        assert run(recipe, "--set", f"seed={len(recipe)}")[0] == 0
    assert list(tmp_path.iterdir()) == []
    assert time.monotonic() - begun < 120  # a corpus alone takes minutes


def test_unknown_class_is_still_refused() -> None:
    with pytest.raises(SettingError, match="there is no 'TreeConfg'; did you mean 'TreeConfig'"):
        configure(resolved("digits_hybrid"), ["task.hmm.triphone=TreeConfg()"])
