from __future__ import annotations

from dataclasses import dataclass

from murmur.run.attribute_lines import attribute_lines, first_line


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
