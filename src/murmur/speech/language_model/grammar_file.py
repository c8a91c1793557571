"""Readers of grammar files: JSGF, acceptors as OpenFst's text, lists of words.

JSGF: "JSpeech Grammar Format", W3C Note, 2000. Options without weights are equally likely, `[x]` is spoken with
probability 1/2, and each repetition of `x*` and `x+` is followed by another with probability 1/2. Tags are skipped.
Imports and recursive rules are refused, since decoding graphs are finite.
"""

from __future__ import annotations

import gzip
import itertools
import math
import re
import unicodedata
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

from murmur.core.counted import counted
from murmur.speech.corpus.file_content import columns, is_gzip, numbered_lines, text_of
from murmur.speech.language_model.grammar import MOST_ARCS, Acceptor, Arc, deterministic
from murmur.speech.lexicon.lexicon import EPSILON, is_reserved

ARPA_BEGIN = b"\\data\\"
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
_HALF = math.log(2.0)


def read_grammar(path: Path) -> Acceptor:
    """The deterministic acceptor of a JSGF file, or of an acceptor in OpenFst's text form.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file has another content; the message names file and line.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no grammar file {path}: check the path")
    if _begin(path).startswith(HEADER.encode()):
        found = acceptor_of_rules(read_jsgf(path), str(path))
    elif looks_like_arpa(path):
        raise ValueError(f"{path} looks like a language model, not like a grammar: give it as --lm")
    else:
        found = _read_text_acceptor(path)
    return deterministic(found, str(path))


def looks_like_arpa(path: Path) -> bool:
    """True for files that begin like language models."""
    return any(line.strip() == ARPA_BEGIN for line in _begin(path).split(b"\n"))


def _begin(path: Path) -> bytes:
    """The first bytes of a file, unpacked."""
    with gzip.open(path) if is_gzip(path) else open(path, "rb") as file:
        try:
            return file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is damaged ({error}): copy it again") from error


def read_words(path: Path) -> tuple[str, ...]:
    """The words of a list, one per line, in byte order; lines that begin with `#` are comments.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a line with several words, a reserved symbol, or no word at all; the message names the line.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no word list {path}: check the path")
    found = set()
    for place, line in numbered_lines(path):
        fields = columns(line, place)
        if fields[0].startswith("#") and not is_reserved(fields[0]):
            continue
        if len(fields) > 1:
            raise ValueError(
                f"{place}: {counted(len(fields), 'word')} on a line: a word list has one a line; for phrases"
                " write a grammar (--grammar)"
            )
        found.add(_checked(fields[0], place))
    if not found:
        raise ValueError(f"{path} holds no word: write one a line")
    return tuple(sorted(found, key=str.encode))


def _read_text_acceptor(path: Path) -> Acceptor:
    """Lines `FROM TO WORD [COST]` and `STATE [COST]` for final states; the first line's FROM is the start."""
    arcs: list[Arc] = []
    finals: dict[int, float] = {}
    number_of: dict[int, int] = {}
    for place, line in numbered_lines(path):
        fields = columns(line, place)
        numbers = [_state(field, place) for field in fields[: 2 if len(fields) > 2 else 1]]
        states = [number_of.setdefault(state, len(number_of)) for state in numbers]
        cost = _not_negative(fields[-1]) if len(fields) in (2, 4) else 0.0
        if cost is None:
            raise ValueError(f"{place}: cost {fields[-1][:40]!r} must be a number of at least 0, -ln of a probability")
        if len(fields) > 4:
            raise ValueError(f"{place}: {len(fields)} fields: write `FROM TO WORD [COST]`, or `STATE [COST]`")
        if len(fields) > 2:
            word = None if fields[2] == EPSILON else _checked(fields[2], place)
            arcs.append(Arc(states[0], word, cost, states[1]))
        elif states[0] in finals:
            raise ValueError(f"{place}: state {fields[0]} is final in an earlier line already")
        else:
            finals[states[0]] = cost
    found = Acceptor(tuple(arcs), finals).trimmed()
    if not found.words:
        raise ValueError(f"{path}: no sentence with a word leads from the first state to a final one")
    return found


def _checked(word: str, place: str) -> str:
    if is_reserved(word):
        raise ValueError(f"{place}: {word!r} is a reserved symbol and cannot be a word")
    return word


def _state(field: str, place: str) -> int:
    if not (field.isascii() and field.isdigit() and len(field) <= 18):
        raise ValueError(
            f"{place}: {field[:40]!r} is no number of a state: a grammar is a JSGF file, whose first line is "
            f"`{HEADER} V1.0;`, or has lines `FROM TO WORD [COST]` and `STATE [COST]`"
        )
    return int(field)


def _not_negative(text: str) -> float | None:
    """The number in a text; None if there is none that is finite and at least 0."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0.0 <= number < math.inf else None


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
    """A rule by its name."""

    name: str


Expansion = WordChain | Sequence | Choice | Repeat | Reference
NULL, VOID = WordChain(()), Choice(())


class GrammarRule(NamedTuple):
    """The expansion of one rule, and True if it may be spoken by itself."""

    expansion: Expansion
    public: bool


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
    parser = _Parser(str(path), _tokens(str(path), text, len(header) + 1))
    rules = parser.rules()
    if not any(rule.public for rule in rules.values()):
        raise ValueError(f"{path}: no rule is public: write `public` in front of the rules that may be spoken")
    mentions = {
        name: {other: line for other, line in parser.mentions[name].items() if other in _references(rule.expansion)}
        for name, rule in rules.items()
    }
    _check_references(str(path), mentions)
    return rules


def _references(part: Expansion) -> set[str]:
    """Rules that can be spoken in a part; alternatives of weight 0 are not in it."""
    match part:
        case Reference(name):
            return {name}
        case Sequence(parts):
            return set().union(*map(_references, parts))
        case Choice(options):
            return set().union(*(_references(option) for _, option in options))
        case Repeat(body):
            return _references(body)
        case WordChain():
            return set()


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
    """Recursive descent over the tokens of a file; `mentions`: {rule: {rule that it refers to: line}}."""

    def __init__(self, name: str, tokens: list[_Token]) -> None:
        self._name, self._tokens, self._place = name, tokens, 0
        self._grammar = ""
        self._depth = 0
        self.mentions: dict[str, dict[str, int]] = {}

    def rules(self) -> dict[str, GrammarRule]:
        if self._next("a line `grammar NAME;`").text != "grammar":
            raise self._error("expected `grammar NAME;` behind the header", back=1)
        self._grammar = self._next("the grammar's name").text
        self._expect(";")
        found: dict[str, GrammarRule] = {}
        lines: dict[str, int] = {}
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
                where = "reserved" if name not in found else f"defined in line {lines[name]} already"
                raise self._error(f"rule <{name}> is {where}: choose another name", back=1)
            self._expect("=")
            lines[name], self.mentions[name] = token.line, {}
            found[name] = GrammarRule(self._alternatives(), public)
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
        weight = _not_negative(token.text[1:-1])
        if weight is None:
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
            if name in ("NULL", "VOID"):
                return NULL if name == "NULL" else VOID
            next(reversed(self.mentions.values())).setdefault(name, token.line)
            return Reference(name)
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
        return inner if opening == "(" else Choice(((_HALF, NULL), (_HALF, inner)))

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


def _check_references(name: str, mentions: Mapping[str, Mapping[str, int]]) -> None:
    """Refuse references to missing rules, and rules that contain themselves; `mentions`: {rule: {rule: line}}."""
    for mentioned, line in itertools.chain.from_iterable(each.items() for each in mentions.values()):
        if mentioned not in mentions:
            raise ValueError(f"{name}:{line}: there is no rule <{mentioned}> in this file")
    try:
        TopologicalSorter(mentions).prepare()
    except CycleError as error:
        chain = error.args[1][::-1]
        way = " -> ".join(f"<{rule}>" for rule in chain[:8])
        raise ValueError(
            f"{name}:{mentions[chain[-2]][chain[-1]]}: rule <{chain[-1]}> contains itself ({way}): recursion is not "
            "possible in a decoding graph; write repetition with * or +"
        ) from None


def acceptor_of_rules(rules: Mapping[str, GrammarRule], name: str) -> Acceptor:
    """All sentences of the public rules, which are equally likely; `name` is for messages.

    Raises:
        ValueError: the rules expand to too many arcs, or allow no sentence with a word.
    """
    public = [rule.expansion for rule in rules.values() if rule.public]
    whole = Choice(tuple((math.log(len(public)), x) for x in public))
    written = _WrittenOut(rules)
    waiting: list[_Between] = [(whole, 0, 1)]
    for steps in itertools.count(1):
        if not waiting:
            break
        if len(written.arcs) + steps > 2 * MOST_ARCS:
            raise ValueError(
                f"{name}: the rules take more than {MOST_ARCS} arcs when they are written out: a language model "
                "(--lm) fits so many sentences better"
            )
        waiting += written.add(*waiting.pop())
    found = Acceptor(tuple(written.arcs), {1: 0.0}).trimmed()
    if not found.words:
        raise ValueError(f"{name}: the grammar allows no sentence with a word")
    return found


_Between = tuple[Expansion, int, int]


class _WrittenOut:
    """Arcs of expansions; each reference gets a copy of its rule. The states 0 and 1 exist from the start."""

    def __init__(self, rules: Mapping[str, GrammarRule]) -> None:
        self._rules = rules
        self.arcs: list[Arc] = []
        self._states = 2

    def add(self, part: Expansion, source: int, target: int) -> list[_Between]:
        """Put an expansion between two states; return its parts that are still to be added."""
        match part:
            case WordChain(words):
                self._spell(words, source, 0.0, target)
                return []
            case Sequence(parts):
                inner = [source, *self._new(len(parts) - 1), target]
                return [(x, inner[n], inner[n + 1]) for n, x in enumerate(parts)]
            case Choice(options):
                return [x for cost, option in options for x in self._option(cost, option, source, target)]
            case Repeat(body, least):
                begin, end = self._new(2)
                ways = [(end, _HALF, begin), (end, _HALF, target)]
                ways += [(source, 0.0, begin)] if least else [(source, _HALF, begin), (source, _HALF, target)]
                self.arcs += [Arc(here, None, cost, there) for here, cost, there in ways]
                return [(body, begin, end)]
            case Reference(name):
                return [(self._rules[name].expansion, source, target)]

    def _option(self, cost: float, option: Expansion, source: int, target: int) -> list[_Between]:
        if isinstance(option, WordChain):  # needs no state, of which long lists would need thousands
            self._spell(option.words, source, cost, target)
            return []
        (begin,) = self._new(1)
        self.arcs.append(Arc(source, None, cost, begin))
        return [(option, begin, target)]

    def _spell(self, words: Iterable[str], source: int, cost: float, target: int) -> None:
        chain = tuple(words) or (None,)
        inner = [source, *self._new(len(chain) - 1), target]
        costs = [cost] + [0.0] * (len(chain) - 1)
        self.arcs += map(Arc, inner, chain, costs, inner[1:])

    def _new(self, count: int) -> range:
        self._states += count
        return range(self._states - count, self._states)
