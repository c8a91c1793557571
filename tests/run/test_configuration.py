from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from murmur.core.errors import SettingError
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import Adam
from murmur.run.configuration import arguments_of, attribute_lines, configure, first_line, recipe_names, resolved, typed
from murmur.strategies import KAVG, SyncSGD
from murmur.tasks.toy import ToyTask


def test_settings_are_typed() -> None:
    changed = configure(
        resolved("toy"),
        ["budget.minibatches=7", "task.hidden=32", "task.ragged=True", "optimizer=Adam(lr=0.01)", "schedule.times=2"],
        "SyncSGD()",
    )
    assert changed.budget == Budget(minibatches=7)
    assert changed.task == ToyTask(hidden=32, ragged=True)
    assert changed.optimizer == Adam(lr=0.01)
    assert changed.strategy == SyncSGD()


def test_strategy_by_name_and_arguments() -> None:
    assert configure(resolved("toy"), strategy="KAVG(K=3)").strategy == KAVG(3)
    assert configure(resolved("toy"), ["strategy=KAVG(5)"]).strategy == KAVG(5)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("task.hiden=3", "ToyTask has no field 'hiden'; did you mean 'hidden'?"),
        ("budgt.epochs=3", "Experiment has no field 'budgt'; did you mean 'budget'?"),
        ("task.hidden=wide", "'wide' is not a value of type int"),
        ("task.hidden=1.5", "'1.5' is not a value of type int"),
        ("task.hidden", "--set needs name=value"),
        ("budget.epochs=-1", "finite and not negative"),
        ("strategy=KAVGG(K=3)", "there is no 'KAVGG'; did you mean 'KAVG'?"),
        ("strategy=KAVG(k=3)", "KAVG has no field 'k'; did you mean 'K'?"),
        ("strategy=KAVG(K=0)", "KAVG needs K >= 1, got 0"),
        ("strategy=__import__('os').system('x')", "only names, literals and calls"),
        ("strategy=KAVG(K=", "cannot be read"),
    ],
)
def test_mistakes_are_explained(setting: str, says: str) -> None:
    with pytest.raises(SettingError) as error:
        configure(resolved("toy"), [setting])
    assert says in str(error.value)


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from murmur.recipes.toy import experiment\n")
    assert resolved(str(file)) == resolved("toy")
    file.write_text("x = 1\n")
    with pytest.raises(SettingError, match="has no function experiment"):
        resolved(str(file))
    file.write_text("x = 1\ndef experiment(:\n")
    with pytest.raises(SettingError, match=r"mine.py, line 2: "):
        resolved(str(file))
    with pytest.raises(SettingError, match="there is no file"):
        resolved("nowhere.py")
    with pytest.raises(SettingError, match="did you mean 'toy'"):
        resolved("toyy")
    with pytest.raises(
        SettingError, match=r"neither a .py file nor a recipe"
    ):  # a module beside the recipes that is not one
        resolved("hybrid_hmm")


def test_every_recipe_has_a_module() -> None:
    assert {"toy", "ctc", "yesno", "librispeech"} <= set(recipe_names())
    assert not {"corpora", "hybrid_hmm", "ctc_data"} & set(recipe_names())


HOSTILE = ("(" * 5000, "-" * 100_000 + "1", "9" * 5000, "1+" * 100_000 + "1", "not " * 100_000 + "True", "{[]: 1}",
           "{1, [2]}", "\ud800", "\0", "KAVG(K=" * 150 + "1" + ")" * 150, "lambda: 1")  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: f"{len(text)} {text[:6]!r}")
def test_texts_that_python_cannot_read_are_refused_briefly(text: str) -> None:
    for name in ("optimizer", "schedule", "strategy.K", "budget.epochs", "task.ragged"):
        with pytest.raises(SettingError) as found:
            configure(resolved("toy"), [f"{name}={text}"])
        assert len(str(found.value)) < 1000
    with pytest.raises(SettingError):
        configure(resolved("toy"), (), text)


def test_too_large_numbers_are_refused() -> None:
    with pytest.raises(SettingError, match="an integer of 401 characters is too large"):
        configure(resolved("toy"), ["budget.epochs=1" + "0" * 400])


@pytest.mark.parametrize(
    "program", [b"\0", b"\xff\xfe", b"def experiment(:", b"(" * 10_000, b"-" * 100_000 + b"1", b"experiment = 1"]
)
def test_programs_that_python_cannot_read_are_named(program: bytes, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_bytes(program)
    with pytest.raises(SettingError, match=r"odd\.py"):
        resolved(str(tmp_path / "odd.py"))


@pytest.mark.parametrize("order", [1, -1])
def test_settings_that_are_valid_only_together_come_in_any_order(order: int) -> None:
    settings = ["task.front.perturb=on_the_fly", "task.front.noise.share=0.5", "task.front.bins=23"]
    front = configure(resolved("digits_demo"), settings[::order]).task.front  # type: ignore[attr-defined]
    assert (front.perturb, front.noise.share, front.bins) == ("on_the_fly", 0.5, 23)


def test_a_setting_that_nothing_makes_valid_is_the_one_that_is_named() -> None:
    settings = ["budget.epochs=2", "task.front.perturb=on_the_fly", "task.front.bins=many"]
    with pytest.raises(SettingError, match="nothing to draw"):
        configure(resolved("digits_demo"), settings)
    again = ["budget.epochs=2", "budget.epochs=3"]
    assert configure(resolved("toy"), again).budget.epochs == 3


@dataclass(frozen=True)
class Chain:
    """Value that may hold another value of its class."""

    length: int = 1
    rest: Chain | None = None


def test_classes_that_hold_themselves() -> None:
    assert typed("Chain(rest=Chain(length=2))", Chain | None, "task.chain") == Chain(rest=Chain(length=2))


SIZED = """
from murmur.engine.experiment import Experiment
from murmur.tasks.toy import ToyTask
from murmur.strategies import KAVG

def experiment(hidden: int = 8, name: str = "a", unnamed=3, scale: float = 1.0):
    if scale > 1:
        raise ValueError(f"too large: {scale}")
    return Experiment(ToyTask(hidden=hidden), KAVG(K=len(name)))
"""


def test_settings_name_parameters_of_the_function(tmp_path: Path) -> None:
    file = tmp_path / "sized.py"
    file.write_text(SIZED)
    found = resolved(str(file), ["seed=3", "name=abc", "hidden=16", "hidden = 17"])
    assert (found.task, found.strategy, found.seed) == (ToyTask(hidden=17), KAVG(K=3), 3)
    assert resolved(str(file)).task == ToyTask(hidden=8)
    assert resolved(str(file), ["task.hidden=5", "hidden=9"], strategy="SyncSGD").task == ToyTask(hidden=5)
    assert [setting.name for setting in arguments_of(str(file))] == ["hidden", "name", "scale"]
    assert [setting.default for setting in arguments_of(str(file), ["hidden=3"])] == ["3", "a", "1.0"]
    for words, said in (
        (["scale=2"], "scale=2: too large: 2.0"),
        (["hidden=many"], "hidden: 'many' is not a value of type int"),
        (["unnamed=4"], "Experiment has no field 'unnamed'"),
        (["hidden"], "--set needs name=value, got 'hidden'"),
    ):
        with pytest.raises(SettingError, match=re.escape(said)):
            resolved(str(file), words)


def test_an_error_of_the_files_own_code_is_no_mistake_of_a_setting(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("def experiment(size: int = 3):\n    raise ValueError('own')\n")
    with pytest.raises(ValueError, match="own") as found:
        resolved(str(file), [])
    assert not isinstance(found.value, SettingError)


class Base:
    """A base class.

    Attributes:
        inherited: from the base.
        replaced: by the derived class.
    """


class Derived(Base):
    """A derived class: with a colon.

    Args:
        argument: is no attribute.

    Attributes:
        one: short.
        two, three: begins here: a colon within,
            and ends: here.

        replaced: here.

    Text behind the section: not part of it.
    """


@dataclass
class Bare:
    field: int = 0


def test_entries_of_the_section() -> None:
    both = "begins here: a colon within, and ends: here."
    assert attribute_lines(Derived) == {
        "inherited": "from the base.",
        "one": "short.",
        "two": both,
        "three": both,
        "replaced": "here.",
    }


def test_class_without_the_section() -> None:
    assert attribute_lines(Bare) == {}


def test_first_line_is_the_one_of_an_author() -> None:
    assert first_line(Derived) == "A derived class: with a colon."
    assert first_line(Bare) == ""
