"""Pronunciation lexicons: formats of dictionaries, labels of phones and words, disambiguation symbols.

Phone labels: 0 epsilon (in a decision tree: outside the utterance), 1 silence, then spoken noise if there is any, then
the other phones in byte order up to P; after them the disambiguation symbols `#0` = P + 1 (back-off of the language
model), `#1` ... `#n` (homophones, prefixes) and last the symbol after an optional silence.
Word labels: `<eps>` = 0, the words in byte order, `#0`, `<s>`, `</s>`.
Disambiguation follows Mohri, Pereira and Riley, "Speech recognition with weighted finite-state transducers" (2008),
section 3.2.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from murmur.core.counted import counted
from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.corpus.file_content import columns, nfc, text_lines

log = logging.getLogger(__name__)
EPSILON = "<eps>"
BACKOFF, SENTENCE_START, SENTENCE_END = "#0", "<s>", "</s>"
SILENCE, NOISE = "SIL", "SPN"
SILENCE_ID = 1

Entry = tuple[str, tuple[str, ...]]
Topology = Literal["three-state", "chain"]
STRESSED = re.compile(r"^([A-Z]{2})[012]$")  # a vowel of CMUdict
SETTINGS = ("num_silence", "silence_probability", "topology")  # fields beside phones and lexicon
_RESERVED = re.compile(r"<eps>|<s>|</s>|#\d+")


class Pronunciation(NamedTuple):
    """One way to say a word: its phone labels and the number k of its disambiguation symbol #k (0: none)."""

    word: str
    phones: tuple[int, ...]
    disambig: int


@dataclass(frozen=True)
class Lang:
    """The phones, words and pronunciations of one system.

    Attributes:
        phones: phone names by label: phones[0] is epsilon, phones[1] silence.
        prons: every pronunciation, in the order of the lexicon.
        words: word labels, with `<eps>`, `#0`, `<s>` and `</s>`.
        num_disambig: number n of symbols #1 ... #n that the pronunciations use.
        num_silence: labels 1 ... num_silence are silence-like phones (silence, and spoken noise if there is any).
        silence_probability: probability of a silence before the first word and after each word.
        topology: states of the phones' HMMs, see `murmur.speech.hmm.topology`.
    """

    phones: tuple[str, ...]
    prons: tuple[Pronunciation, ...]
    words: Mapping[str, int]
    num_disambig: int
    num_silence: int = 1
    silence_probability: float = 0.5
    topology: Topology = "three-state"

    def __post_init__(self) -> None:
        if not 0.0 < self.silence_probability < 1.0:
            raise ValueError(
                f"the silence probability is {self.silence_probability}: choose a value between 0 and 1, both excluded"
            )

    @property
    def num_phones(self) -> int:
        """P: real phones have the labels 1 ... P."""
        return len(self.phones) - 1

    @property
    def silence_ids(self) -> tuple[int, ...]:
        """The labels of silence and of spoken noise."""
        return tuple(range(1, self.num_silence + 1))

    @property
    def backoff(self) -> int:
        """The phone-side label of #0."""
        return self.num_phones + 1

    @property
    def disambig(self) -> list[int]:
        """All phone-side disambiguation labels, ascending: #0, #1 ... #n, and the one after an optional silence."""
        return list(range(self.backoff, self.backoff + self.num_disambig + 2))

    @cached_property
    def word_of(self) -> tuple[str, ...]:
        """The words by label, the inverse of `words`."""
        return tuple(sorted(self.words, key=self.words.__getitem__))

    def unknown_words(self, text: str) -> list[str]:
        """The words of `text` that the lexicon lacks, in their order."""
        return [w for w in _words_of(text) if not self._is_word(w)]

    def word_ids(self, text: str) -> list[int]:
        """The labels of a transcript's words; a KeyError for one outside the lexicon."""
        if missing := self.unknown_words(text):
            raise KeyError(
                f"not in the lexicon: {', '.join(sorted(set(missing)))}; add pronunciations or drop the text"
            )
        return [self.words[w] for w in _words_of(text)]

    def with_lexicon(self, entries: Iterable[Entry]) -> Lang:
        """Another vocabulary over the same phones; one that this system lacks is a ValueError."""
        return replace(_assemble(entries, self.phones), **self._settings())

    def with_silence_probability(self, probability: float) -> Lang:
        """The same language with another silence probability."""
        return replace(self, silence_probability=probability)

    def to_json(self) -> dict[str, Any]:
        """Plain values, from which `from_json` makes an equal object."""
        entries = [[p.word, *(self.phones[label] for label in p.phones)] for p in self.prons]
        return {"phones": list(self.phones), "lexicon": entries, **self._settings()}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Lang:
        """The inverse of `to_json`."""
        entries = [(word, tuple(phones)) for word, *phones in content["lexicon"]]
        if content["topology"] not in get_args(Topology):
            raise ValueError(f"unknown topology {content['topology']!r}")
        return replace(_assemble(entries, content["phones"]), **{name: content[name] for name in SETTINGS})

    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SETTINGS}

    def _is_word(self, word: str) -> bool:
        return word in self.words and not _RESERVED.fullmatch(word)


def split_known(lang: Lang, texts: Mapping[str, str]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Usable transcripts, and the words that the lexicon lacks of the others, by utterance.

    An empty transcript counts as usable (it is silence).
    """
    refused = {u: missing for u, text in texts.items() if (missing := lang.unknown_words(text))}
    return {u: text for u, text in texts.items() if u not in refused}, refused


def is_reserved(name: str) -> bool:
    """True if a symbol has a special meaning in symbol tables, and cannot be a word or a phone."""
    return _RESERVED.fullmatch(name) is not None


def read_lexicon(path: Path, phones: Collection[str] = ()) -> list[Entry]:
    """Read `word phone phone ...` lines, without the columns that some formats have between word and phones.

        the 0.8 DH AH                   Kaldi's lexiconp.txt: a probability
        the 0.8 0.2 1.1 0.9 DH AH       lexiconp_silprob.txt, the Montreal Forced Aligner: four figures
        the [the] 0.8 DH AH             HTK, Julius: output symbol, probability (Julius also @-1.2)
        THE(2) DH IY                    CMUdict: another pronunciation; `;;;` and ` #` begin comments

    A number with a decimal point or an exponent is never a phone. A whole number may be one, as in X-SAMPA or for
    tones: it is taken as a phone if it stands behind other phones somewhere in the file, or if it is among `phones`,
    those of the system that the lexicon is for. Text is NFC. Repeated pronunciations are kept once.

    Raises:
        ValueError: a line has no phones, a word is a reserved symbol, a number may be a phone or a probability, or the
            file is empty; the message names the line.
    """
    entries: dict[Entry, None] = {}
    for place, word, own in _read_lines(path, phones):
        reserved = [name for name in (word, *own) if _RESERVED.fullmatch(name)]
        if reserved or not own:
            reason = f"is or has the reserved symbol {reserved[0]!r}" if reserved else "has no phones"
            raise ValueError(f"{place}: {word!r} {reason}: write `word phone phone ...`")
        entries[word, own] = None
    if not entries:
        raise ValueError(f"{path} holds no pronunciation: write `word phone phone ...` lines")
    return list(entries)


def listed_words(lines: Sequence[str]) -> list[str]:
    """The first word of each line of a word list, a lexicon or a symbol table, each once.

    Comments, reserved symbols and numbers of variants are left out as in `read_lexicon`.
    """
    rows = (_columns(nfc(line), f"word list:{number}") for number, line in enumerate(lines, 1))
    words = (_word(row[0]) for row in rows if row)
    return list(dict.fromkeys(word for word in words if not _RESERVED.fullmatch(word)))


def pronunciations_of(entries: Iterable[Entry]) -> dict[str, list[tuple[str, ...]]]:
    """The pronunciations of each word, in the order of the entries."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for word, phones in entries:
        found.setdefault(word, []).append(phones)
    return found


def without_stress(entries: Iterable[Entry]) -> list[Entry]:
    """The entries without CMUdict's stress digits on the phones (AH0 -> AH); equal ones are kept once."""
    return list(dict.fromkeys((word, tuple(STRESSED.sub(r"\1", p) for p in phones)) for word, phones in entries))


def make_lang(entries: Iterable[Entry], silence_probability: float = 0.5) -> Lang:
    """Number the phones and words of a lexicon and choose its disambiguation symbols.

    Raises:
        ValueError: an entry has no phones, a reserved name is used as a word or phone, or there is no entry.
    """
    entries = list(entries)
    names = {phone for _, phones in entries for phone in phones}
    silence = [SILENCE] + [NOISE] * (NOISE in names)
    phones = (EPSILON, *silence, *sorted(names.difference(silence)))
    lang = _assemble(entries, phones)
    return replace(lang, num_silence=len(silence), silence_probability=silence_probability)


def write_symbols(table: Mapping[str, int], path: Path) -> None:
    """Write `symbol label` lines by label, as kaldilm and sherpa-onnx read them.

    Raises:
        ValueError: a symbol is empty or holds white space (readers abort the process on it), or labels repeat.
    """
    bad = [s for s in table if not s or s.split() != [s]]
    if bad or len(set(table.values())) != len(table):
        raise ValueError(
            f"symbols must be free of white space and labels unique; offending: {bad or 'repeated labels'}"
        )
    lines = (f"{symbol} {label}\n" for symbol, label in sorted(table.items(), key=lambda item: item[1]))
    Path(path).write_text("".join(lines), encoding="utf-8")


def _words_of(text: str) -> list[str]:
    return nfc(text).split()


def _assemble(entries: Iterable[Entry], phones: Sequence[str]) -> Lang:
    entries = list(entries)
    label_of = {name: label for label, name in enumerate(phones)}
    for word, names in entries:
        unusable = [p for p in names if label_of.get(p, 0) == 0 or _RESERVED.fullmatch(p)]
        if not names or unusable or _RESERVED.fullmatch(word):
            raise ValueError(
                f"entry {word!r} {' '.join(names)!r}: needs known phones {unusable} and no reserved symbol"
            )
    if not entries:
        raise ValueError("the lexicon is empty: give at least one pronunciation")
    labelled = [(word, tuple(label_of[p] for p in names)) for word, names in entries]
    prons = _disambiguate(labelled)
    vocabulary = (EPSILON, *sorted({word for word, _ in entries}), BACKOFF, SENTENCE_START, SENTENCE_END)
    words = {word: label for label, word in enumerate(vocabulary)}
    return Lang(tuple(phones), prons, words, max(p.disambig for p in prons))


def _disambiguate(labelled: Sequence[tuple[str, tuple[int, ...]]]) -> tuple[Pronunciation, ...]:
    """Give #k to pronunciations shared by words or prefixes of other pronunciations, so that L can be determinised."""
    shared = Counter(phones for _, phones in labelled)
    ordered = sorted(shared)  # those that begin with a pronunciation follow it at once
    prefixes = {first for first, second in pairwise(ordered) if second[: len(first)] == first}
    used: Counter[tuple[int, ...]] = Counter()
    prons = []
    for word, phones in labelled:
        ambiguous = shared[phones] > 1 or phones in prefixes
        used[phones] += ambiguous
        prons.append(Pronunciation(word, phones, used[phones] if ambiguous else 0))
    return tuple(prons)


_COMMENT = re.compile(r"\s#")
_HASHES = re.compile(r"#+(\s|$)")
_VARIANT = re.compile(r"(?<=.)\(\d+\)$")
_DECIMAL = re.compile(r"[+-]?(\d+[.,]\d*|[.,]\d+)(e[+-]?\d+)?|[+-]?\d+e[+-]\d+", re.IGNORECASE)
_BEGINS = frozenset("0123456789+-.,")  # characters that a number may begin with
_WHOLE = re.compile(r"[+-]?[0-9]+")
_OUTPUT = re.compile(r"\[.*\]|\{.*\}")
_OTHER_FORMATS = {re.compile(r'\(\s*"'): "Festival", re.compile(r"<\?xml|<lexicon\b"): "PLS (XML)"}


class _Line(NamedTuple):
    """A pronunciation: file and number of its line, the word, the columns behind it."""

    place: str
    word: str
    columns: tuple[str, ...]


def _read_lines(path: Path, known: Collection[str] = ()) -> list[_Line]:
    """Read the pronunciations of a dictionary. Output symbols and figures are left out, which is logged.

    Raises:
        CorpusError: a number may be a phone or a figure, a word may hold a space, or the format is another one.
    """
    rows = text_lines(path)
    lines = list(_written(path, rows))
    _check_words(path, rows)
    plain = [_without_output(line) for line in lines]
    found = _without_figures(plain, known)
    for line in found:
        odd = next((c for c in line.columns if c[0] in _BEGINS and _DECIMAL.fullmatch(c)), None)
        if odd is not None:
            raise CorpusError(f"{line.place}: {line.word!r} has the number {odd} among its phones: remove it")
    changed = [line for line, new in zip(lines, found, strict=True) if new.columns != line.columns]
    if changed:
        first = f"{changed[0].word} {' '.join(changed[0].columns)}"
        log.warning(
            "%s: output symbols and probabilities of %d of %s are not used, such as %r: all pronunciations of a"
            " word are equally probable",
            *(path, len(changed), counted(len(lines), "line"), first),
        )
    return found


def _word(column: str) -> str:
    return _VARIANT.sub("", column) if column.endswith(")") else column


def _columns(line: str, place: str) -> list[str]:
    if line.startswith((";;;", "#")) and (line[0] == ";" or _HASHES.match(line)):
        return []
    return columns(_COMMENT.split(line, maxsplit=1)[0] if "#" in line else line, place)


def _written(path: Path, rows: Sequence[str]) -> Iterator[_Line]:
    for number, line in enumerate(rows, 1):
        place = f"{path}:{number}"
        if line.lstrip().startswith(("(", "<")):
            for begin, kind in _OTHER_FORMATS.items():
                if begin.match(line.lstrip()):
                    raise CorpusError(f"{place}: a dictionary of {kind}: write `word phone phone ...` lines")
        if fields := _columns(line, place):
            yield _Line(place, _word(fields[0]), tuple(fields[1:]))


def _check_words(path: Path, rows: Sequence[str]) -> None:
    """Refuse words with spaces in a file whose words and phones are separated by tabs."""
    if not any("\t" in row for row in rows):
        return
    rows = [row for row in rows if _columns(row, str(path))]
    for row in rows if all("\t" in row.strip() for row in rows) else ():
        word, *rest = row.strip().split("\t")
        if " " in word.strip() and any(" " in column.strip() for column in rest):
            raise CorpusError(f"{path}: the word {word.strip()!r} holds a space: join its parts, e.g. by an underscore")


def _without_output(line: _Line) -> _Line:
    """The line without HTK's output symbol and with the figure of Julius' @ as a number."""
    if not line.columns or line.columns[0][0] not in "@[{":
        return line
    figures, rest = tuple[str, ...](), line.columns
    for _ in range(2):  # they come in either order
        own, behind = rest[:1], rest[1:]
        if own and own[0].startswith("@") and _is_number(own[0][1:] or "@"):
            figures, rest = (f"{float(own[0][1:]):.6f}",), behind
        elif own and behind and _OUTPUT.fullmatch(own[0]) and not any(map(_OUTPUT.fullmatch, behind)):
            rest = behind
    return line._replace(columns=figures + rest)


def _is_number(column: str) -> bool:
    if column[0] not in _BEGINS:
        return False
    return _DECIMAL.fullmatch(column) is not None or _WHOLE.fullmatch(column) is not None


def _run(line: _Line) -> int:
    """Number of columns before the first that is no number."""
    if not line.columns or line.columns[0][0] not in _BEGINS:
        return 0
    return next((n for n, column in enumerate(line.columns) if not _is_number(column)), len(line.columns))


def _without_figures(lines: Sequence[_Line], known: Collection[str]) -> list[_Line]:
    runs = [_run(line) for line in lines]
    if not any(runs):
        return list(lines)
    sure = [
        max((n + 1 for n in range(run) if _DECIMAL.fullmatch(line.columns[n])), default=0)
        for line, run in zip(lines, runs, strict=True)
    ]
    most = max(sure, default=0)
    if most and all(run >= most for run in runs):  # every line has all figures, some of them as 0 or 1
        sure = [most] * len(lines)
    phones = _whole_phones(lines, runs) | set(known)
    found = []
    for line, run, figures in zip(lines, runs, sure, strict=True):
        doubtful = [column for column in line.columns[figures:run] if column not in phones]
        if doubtful:
            raise CorpusError(
                f"{line.place}: is {doubtful[0]} in {' '.join((line.word, *line.columns))[:80]!r} a phone or a figure?"
                " write probabilities with a decimal point, and give phones that are numbers another name"
            )
        found.append(line._replace(columns=line.columns[figures:]))
    return found


def _whole_phones(lines: Sequence[_Line], runs: Sequence[int]) -> set[str]:
    """Whole numbers that must be phones: behind other phones, last in a line, or in a file of numbers alone."""
    if all(_WHOLE.fullmatch(column) for line in lines for column in line.columns):
        return {column for line in lines for column in line.columns}
    behind = {column for line, run in zip(lines, runs, strict=True) for column in line.columns[run:]}
    last = {line.columns[-1] for line in lines if line.columns}
    return {column for column in behind | last if _WHOLE.fullmatch(column)}
