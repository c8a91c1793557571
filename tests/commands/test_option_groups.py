"""Groups of options: a dataclass in the signature of a command."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, ClassVar

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from murmur.commands.options import grouped
from murmur.plugins import commands


@dataclass(frozen=True)
class Shape:
    """A shape.

    Attributes:
        colours: A colour;
            repeatable.
        round_: Form.
        thin_lines: Draw thin lines.
    """

    panel: ClassVar[str] = "The shape"
    size: Annotated[int, typer.Option(min=1, help="Size of the shape.")]
    colours: Annotated[tuple[str, ...], typer.Option("--colour")] = ()
    round_: Annotated[bool, typer.Option("--round/--square")] = True
    thin_lines: bool = False


Words = Annotated[tuple[str, ...], typer.Argument(metavar="WORD...", help="The words.")]
Other = Annotated[float, typer.Option(help="Another.")]


def program() -> tuple[typer.Typer, list[object]]:
    app, called = typer.Typer(add_completion=False), list[object]()

    @app.command()
    @grouped
    def draw(words: Words, shape: Shape, other: Other = 0.5) -> None:
        """Draw words."""
        called.append((words, shape, other))

    return app, called


@pytest.mark.parametrize(
    ("words", "called"),
    [
        (["a", "--size", "3"], (("a",), Shape(3), 0.5)),
        (
            [
                "--other",
                "2",
                "a",
                "--colour",
                "red",
                "--size",
                "3",
                "--colour",
                "blue",
                "--square",
                "--thin-lines",
                "b",
            ],
            (("a", "b"), Shape(3, ("red", "blue"), round_=False, thin_lines=True), 2.0),
        ),
    ],
)
def test_the_command_receives_the_dataclass(words: list[str], called: object) -> None:
    app, found = program()
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert found == [called]


@pytest.mark.parametrize("words", [["a"], ["--size", "1"], ["a", "--size", "0"], ["a", "--size", "1", "--shape", "1"]])
def test_the_fields_are_checked_as_options_are(words: list[str]) -> None:
    app, found = program()
    assert CliRunner().invoke(app, words).exit_code == 2
    assert not found


def test_the_help_is_that_of_the_same_options_without_a_group() -> None:
    plain = typer.Typer(add_completion=False)

    @plain.command()
    def draw(
        words: Annotated[list[str], typer.Argument(metavar="WORD...", help="The words.")],
        size: Annotated[int, typer.Option(min=1, help="Size of the shape.", rich_help_panel="The shape")],
        colours: Annotated[
            list[str] | None, typer.Option("--colour", help="A colour; repeatable.", rich_help_panel="The shape")
        ] = None,
        round_: Annotated[bool, typer.Option("--round/--square", help="Form.", rich_help_panel="The shape")] = True,
        thin_lines: Annotated[
            bool, typer.Option("--thin-lines", help="Draw thin lines.", rich_help_panel="The shape")
        ] = False,
        other: Other = 0.5,
    ) -> None:
        """Draw words."""

    ours, theirs = (CliRunner().invoke(app, ["--help"]).output for app in (program()[0], plain))
    assert "Size of the shape." in ours
    assert ours == theirs


def test_two_options_of_one_name_are_refused() -> None:
    def draw(shape: Shape, size: Annotated[int, typer.Option()] = 1) -> None: ...

    with pytest.raises(ValueError, match="size"):
        grouped(draw)


def test_every_repeatable_option_of_murmur_is_a_list_to_typer() -> None:
    """A command without `grouped` would ask for two values of an option of the type tuple[str, ...]."""
    words = {name: get_command(import_module(command.module).app) for name, command in commands().items()}
    wrong = [f"{name} {param.name}" for name, found in words.items() for param in found.params if param.nargs > 1]
    assert not wrong
