"""JSGF files: the rules of a grammar, checked and resolved.

Format: "JSpeech Grammar Format", W3C Note, 2000. Options without weights are equally likely, `[x]` is spoken with
probability 1/2, and each repetition of `x*` and `x+` is followed by another with probability 1/2. Tags are skipped.
Imports and recursive rules are refused, since decoding graphs are finite.
"""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from murmur.speech.corpus.text_lines import text_of
from murmur.speech.lexicon.lexicon import is_reserved

DEEPEST = 50  # parentheses within parentheses
HEADER = "#JSGF"
_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<rule><[^\s<>;=|+()\[\]{}/"]+>)
    |(?P<quoted>"(?:[^"\\\n]|\\[^\n])*")
    |(?P<tag>\{(?:[^{}\\]|\\.)*\})
    |(?P<weight>/[^/*\n][^/\n]*/)
    |(?P<mark>[=;|()\[\]*+])
    |(?P<word>(?:\\\S|[^\s;=|*+<>()\[\]{}/"\\])+)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True)
class WordChain:
    """Words in their order; without words, the empty sentence."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class Sequence:
    """Parts spoken one after the other."""

    parts: tuple[Expansion, ...]


@dataclass(frozen=True)
class Choice:
    """One of several options, with their costs (-ln probability); without options, nothing can be spoken."""

    options: tuple[tuple[float, Expansion], ...]


@dataclass(frozen=True)
class Repeat:
    """A body spoken `least` (0 or 1) times or more."""

    body: Expansion
    least: int


@dataclass(frozen=True)
class Reference:
    """A rule by its name, and the line of the reference."""

    name: str
    line: int = field(compare=False)


Expansion = WordChain | Sequence | Choice | Repeat | Reference
NULL, VOID = WordChain(()), Choice(())


@dataclass(frozen=True)
class GrammarRule:
    """The expansion of one rule, True if it may be spoken by itself, and its line."""

    expansion: Expansion
    public: bool
    line: int


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def read_jsgf(path: Path) -> dict[str, GrammarRule]:
    """The rules of a file by name. At least one is public, each reference has its rule, and no rule contains itself.

    Raises:
        ValueError: the file has another content; the message names file and line.
    """
    text = text_of(path)
    header, _, _ = text.partition(";")
    fields = header.split()
    if "\n" in header or header == text or fields[:2] != [HEADER, "V1.0"] or len(fields) > 4:
        raise ValueError(f"{path}:1: a JSGF file begins with the line `{HEADER} V1.0;`")
    rules = _Parser(str(path), _tokens(str(path), text, len(header) + 1)).rules()
    if not any(rule.public for rule in rules.values()):
        raise ValueError(f"{path}: no rule is public: write `public` in front of the rules that may be spoken")
    _check_references(str(path), rules)
    return rules


def _tokens(name: str, text: str, begin: int) -> list[_Token]:
    found, place, line = [], begin, 1 + text.count("\n", 0, begin)
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise ValueError(f"{name}:{line}: cannot read {text[place : place + 20].partition(chr(10))[0]!r}")
        kind = str(match.lastgroup)
        if kind not in ("space", "tag"):
            found.append(_Token(kind, match[0], line))
        line += match[0].count("\n")
        place = match.end()
    return found


class _Parser:
    """Recursive descent over the tokens of a file."""

    def __init__(self, name: str, tokens: list[_Token]) -> None:
        self._name, self._tokens, self._place = name, tokens, 0
        self._grammar = ""
        self._depth = 0

    def rules(self) -> dict[str, GrammarRule]:
        """All rules of the file."""
        if self._next("a line `grammar NAME;`").text != "grammar":
            raise self._error("expected `grammar NAME;` behind the header", back=1)
        self._grammar = self._next("the grammar's name").text
        self._expect(";")
        found: dict[str, GrammarRule] = {}
        while self._place < len(self._tokens):
            token = self._next("a rule")
            if token.text == "import":
                raise self._error("imports are not read: copy the rules into this file", back=1)
            public = token.text == "public"
            if public:
                token = self._next("a rule name in angle brackets")
            if token.kind != "rule":
                raise self._error(f"expected a rule `<name> = ...;`, found {token.text!r}", back=1)
            name = self._local(token.text)
            if name in found or name in ("NULL", "VOID"):
                where = "reserved" if name not in found else f"defined in line {found[name].line} already"
                raise self._error(f"rule <{name}> is {where}: choose another name", back=1)
            self._expect("=")
            found[name] = GrammarRule(self._alternatives(), public, token.line)
            self._expect(";")
        return found

    def _alternatives(self) -> Expansion:
        options: list[tuple[float | None, Expansion]] = []
        while True:
            weight = self._weight(self._next("a weight")) if self._sees("weight") else None
            options.append((weight, self._sequence()))
            if self._peek() != "|":
                break
            self._place += 1
        weights = [weight for weight, _ in options if weight is not None]
        if not weights and len(options) == 1:
            return options[0][1]
        if weights and len(weights) < len(options):
            raise self._error(
                f"{len(weights)} of {len(options)} alternatives have a weight: give one to all or to none"
            )
        shares = weights or [1.0] * len(options)
        largest = max(shares)
        if largest == 0.0:
            return VOID
        total = math.fsum(share / largest for share in shares)
        costs = [math.log(total) - math.log(share / largest) if share / largest else math.inf for share in shares]
        return Choice(tuple((max(c, 0.0), x) for c, (_, x) in zip(costs, options, strict=True) if c < math.inf))

    def _weight(self, token: _Token) -> float:
        try:
            weight = float(token.text[1:-1])
        except ValueError:
            weight = -1.0
        if not 0.0 <= weight < math.inf:
            raise self._error(f"weight {token.text} must be a number of at least 0 between slashes", back=1)
        return weight

    def _sequence(self) -> Expansion:
        parts: list[Expansion] = []
        while self._sees("word", "quoted", "rule") or self._peek() in ("(", "["):
            part, last = self._item(), parts[-1] if parts else None
            if isinstance(part, WordChain) and isinstance(last, WordChain):
                parts[-1] = WordChain(last.words + part.words)
            else:
                parts.append(part)
        if not parts:
            found = "the end of the file" if self._peek() is None else repr(self._peek())
            raise self._error(f"expected words, a rule or a group, found {found}; for nothing write <NULL>")
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _item(self) -> Expansion:
        part = self._atom()
        operator = self._peek()
        if operator not in ("*", "+"):
            return part
        self._place += 1
        if self._peek() in ("*", "+"):
            raise self._error(f"{operator}{self._peek()}: one operator is enough, or group by parentheses")
        return Repeat(part, least=0 if operator == "*" else 1)

    def _atom(self) -> Expansion:
        token = self._next("an expansion")
        if token.text in ("(", "["):
            return self._group(token.text)
        if token.kind == "rule":
            name = self._local(token.text)
            special: dict[str, Expansion] = {"NULL": NULL, "VOID": VOID}
            return special[name] if name in special else Reference(name, token.line)
        raw = token.text[1:-1] if token.kind == "quoted" else token.text
        words = tuple(unicodedata.normalize("NFC", _ESCAPED.sub(r"\1", raw)).split())
        for word in words:
            if is_reserved(word):
                raise self._error(f"{word!r} is a reserved symbol and cannot be a word", back=1)
        if not words:
            raise self._error("an empty token: write words between the quotation marks, or <NULL>", back=1)
        return WordChain(words)

    def _group(self, opening: str) -> Expansion:
        self._depth += 1
        if self._depth > DEEPEST:
            raise self._error(f"more than {DEEPEST} groups within each other: give inner ones a rule of their own")
        inner = self._alternatives()
        self._expect(")" if opening == "(" else "]")
        self._depth -= 1
        half = math.log(2.0)
        return inner if opening == "(" else Choice(((half, NULL), (half, inner)))

    def _local(self, bracketed: str) -> str:
        """The name of a rule without that of this grammar; `<grammar.rule>` and `<rule>` are the same."""
        name = unicodedata.normalize("NFC", bracketed[1:-1])
        package, dot, simple = name.rpartition(".")
        if dot and package not in (self._grammar, self._grammar.rpartition(".")[2]):
            raise self._error(f"{bracketed} is a rule of another grammar: copy it into this file", back=1)
        return simple

    def _peek(self) -> str | None:
        return self._tokens[self._place].text if self._place < len(self._tokens) else None

    def _sees(self, *kinds: str) -> bool:
        return self._place < len(self._tokens) and self._tokens[self._place].kind in kinds

    def _next(self, wanted: str) -> _Token:
        if self._place == len(self._tokens):
            raise self._error(f"the file ends where {wanted} is expected")
        self._place += 1
        return self._tokens[self._place - 1]

    def _expect(self, mark: str) -> None:
        token = self._next(f"`{mark}`")
        if token.text != mark:
            raise self._error(f"expected `{mark}`, found {token.text!r}", back=1)

    def _error(self, what: str, back: int = 0) -> ValueError:
        place = min(self._place - back, len(self._tokens) - 1)
        line = self._tokens[place].line if self._tokens else 1
        return ValueError(f"{self._name}:{line}: {what}")


def _check_references(name: str, rules: Mapping[str, GrammarRule]) -> None:
    """Refuse references to missing rules, and rules that contain themselves."""
    mentions = {rule: list(_references(content.expansion)) for rule, content in rules.items()}
    for mentioned in itertools.chain.from_iterable(mentions.values()):
        if mentioned.name not in rules:
            raise ValueError(f"{name}:{mentioned.line}: there is no rule <{mentioned.name}> in this file")
    done: set[str] = set()
    for first in rules:
        path: dict[str, Iterator[Reference]] = {}  # the rules under examination, outermost first
        if first not in done:
            path[first] = iter(mentions[first])
        while path:
            inner = next(reversed(path))
            reference = next(path[inner], None)
            if reference is None:
                done.add(inner)
                del path[inner]
            elif reference.name in path:
                chain = [*list(path)[list(path).index(reference.name) :], reference.name]
                way = " -> ".join(f"<{rule}>" for rule in chain[:8])
                raise ValueError(
                    f"{name}:{reference.line}: rule <{reference.name}> contains itself ({way}): recursion is not "
                    "possible in a decoding graph; write repetition with * or +"
                )
            elif reference.name not in done:
                path[reference.name] = iter(mentions[reference.name])


def _references(expansion: Expansion) -> Iterator[Reference]:
    waiting = [expansion]
    while waiting:
        match waiting.pop():
            case Reference() as found:
                yield found
            case Sequence(parts):
                waiting += parts
            case Choice(options):
                waiting += [option for _, option in options]
            case Repeat(body):
                waiting.append(body)
            case _:
                pass
