"""Pronunciation lexicons and symbol tables; the transducers made from them are in lexicon_fst.py.

Phone labels: 0 epsilon (in a decision tree: outside the utterance), 1 silence, then spoken noise if there is any, then
the other phones in byte order up to P; after them the disambiguation symbols `#0` = P + 1 (back-off of the language
model), `#1` ... `#n` (homophones, prefixes) and last the symbol after an optional silence.
Word labels: `<eps>` = 0, the words in byte order, `#0`, `<s>`, `</s>`.
Disambiguation follows Mohri, Pereira and Riley, "Speech recognition with weighted finite-state transducers" (2008),
section 3.2.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from murmur.speech.lexicon.dictionary import read_lines, words_in

EPSILON = "<eps>"
BACKOFF, SENTENCE_START, SENTENCE_END = "#0", "<s>", "</s>"
SILENCE, NOISE = "SIL", "SPN"
SILENCE_ID = 1

Entry = tuple[str, tuple[str, ...]]
Topology = Literal["three-state", "chain"]
STRESSED = re.compile(r"^([A-Z]{2})[012]$")  # a vowel of CMUdict
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
        unknown: word for all words outside the lexicon; None refuses such words.
        silence_probability: probability of a silence before the first word and after each word.
        topology: states of the phones' HMMs, see `murmur.speech.hmm.topology`.
    """

    phones: tuple[str, ...]
    prons: tuple[Pronunciation, ...]
    words: Mapping[str, int]
    num_disambig: int
    num_silence: int = 1
    unknown: str | None = None
    silence_probability: float = 0.5
    topology: Topology = "three-state"

    def __post_init__(self) -> None:
        if not 0.0 < self.silence_probability < 1.0:
            raise ValueError(
                f"the silence probability is {self.silence_probability}: choose a value between 0 and 1, both excluded"
            )
        if self.unknown is not None and self.unknown not in self.words:
            raise ValueError(f"the unknown word {self.unknown!r} is not in the lexicon: add a line for it")

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

    def phone_table(self) -> dict[str, int]:
        """The phone-side symbol table, disambiguation symbols included."""
        table = {name: label for label, name in enumerate(self.phones)}
        return table | {f"#{k}": label for k, label in enumerate(self.disambig)}

    def unknown_words(self, text: str) -> list[str]:
        """The words of `text` that the lexicon lacks, in their order, even if `unknown` replaces them."""
        return [w for w in _words_of(text) if not self._is_word(w)]

    def word_ids(self, text: str) -> list[int]:
        """The labels of a transcript's words.

        Raises:
            KeyError: a word is not in the lexicon, and the lexicon has no unknown word.
        """
        missing = self.unknown_words(text)
        if missing and self.unknown is None:
            raise KeyError(
                f"not in the lexicon: {', '.join(sorted(set(missing)))}; add pronunciations or drop the text"
            )
        return [self.words[w if self._is_word(w) else str(self.unknown)] for w in _words_of(text)]

    def with_lexicon(self, entries: Iterable[Entry]) -> Lang:
        """Another vocabulary over the same phones, for decoding with more words than in training.

        The unknown word keeps its pronunciations if `entries` does not list it.

        Raises:
            ValueError: a pronunciation uses a phone that this system lacks.
        """
        entries = list(entries)
        if all(word != self.unknown for word, _ in entries):
            entries += [(p.word, tuple(self.phones[i] for i in p.phones)) for p in self.prons if p.word == self.unknown]
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
        settings = {k: content[k] for k in ("num_silence", "unknown", "silence_probability")}
        if "topology" in content:
            if content["topology"] not in get_args(Topology):
                raise ValueError(f"unknown topology {content['topology']!r}")
            settings["topology"] = content["topology"]
        return replace(_assemble(entries, content["phones"]), **settings)

    def _settings(self) -> dict[str, Any]:
        settings = {
            "num_silence": self.num_silence,
            "unknown": self.unknown,
            "silence_probability": self.silence_probability,
        }
        # Files and digests of three-state systems are those from before there was another topology.
        return settings if self.topology == "three-state" else {**settings, "topology": self.topology}

    def _is_word(self, word: str) -> bool:
        return word in self.words and not _RESERVED.fullmatch(word)


@dataclass(frozen=True)
class KnownTexts:
    """Transcripts that the lexicon covers, and those that it does not cover.

    Attributes:
        texts: usable transcripts, {utterance: text}.
        refused: {utterance: its words that the lexicon lacks}; empty if there is an unknown word.
        unknown_counts: number of occurrences of each missing word in all transcripts.
    """

    texts: dict[str, str]
    refused: dict[str, tuple[str, ...]]
    unknown_counts: dict[str, int]


def split_known(lang: Lang, texts: Mapping[str, str]) -> KnownTexts:
    """Divide transcripts into usable ones and those with words outside the lexicon.

    An empty transcript counts as usable (it is silence). If `lang.unknown` is set, all transcripts are usable.
    """
    missing = {u: tuple(lang.unknown_words(text)) for u, text in texts.items()}
    refused = {u: words for u, words in missing.items() if words} if lang.unknown is None else {}
    counts = Counter(w for words in missing.values() for w in words)
    kept = {u: text for u, text in texts.items() if u not in refused}
    return KnownTexts(kept, refused, dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))))


def is_reserved(name: str) -> bool:
    """True if a symbol has a special meaning in symbol tables, and cannot be a word or a phone."""
    return _RESERVED.fullmatch(name) is not None


def read_lexicon(path: Path, phones: Collection[str] = ()) -> list[Entry]:
    """Read `word phone phone ...` lines: a Kaldi lexicon.txt, CMUdict, or a dictionary with probabilities.

    The formats are those of `murmur.speech.lexicon.dictionary`. Text is NFC. Repeated pronunciations are kept once.
    `phones` are those of the system that the lexicon is for, if there is one.

    Raises:
        ValueError: a line has no phones, a word is a reserved symbol, a number may be a phone or a probability, or the
            file is empty; the message names the line.
    """
    entries: dict[Entry, None] = {}
    for place, word, own in read_lines(path, phones):
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
    words = (unicodedata.normalize("NFC", word) for word in words_in(lines))
    return list(dict.fromkeys(word for word in words if not _RESERVED.fullmatch(word)))


def pronunciations_of(entries: Iterable[Entry]) -> dict[str, list[tuple[str, ...]]]:
    """The pronunciations of each word, in the order of the entries."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for word, phones in entries:
        found.setdefault(word, []).append(phones)
    return found


def without_stress(entries: Iterable[Entry]) -> list[Entry]:
    """The entries without CMUdict's stress digits on the phones (AH0 -> AH); equal ones are kept once.

    Other phones that end in a digit, such as those of SAMPA or tones, are unchanged.
    """
    return list(dict.fromkeys((word, tuple(STRESSED.sub(r"\1", p) for p in phones)) for word, phones in entries))


def make_lang(entries: Iterable[Entry], unknown: str | None = None, silence_probability: float = 0.5) -> Lang:
    """Number the phones and words of a lexicon and choose its disambiguation symbols.

    `unknown` names the word for all words outside the lexicon; if the lexicon does not list it, it is added with the
    phone of spoken noise (SPN), which is modelled like silence.

    Raises:
        ValueError: an entry has no phones, a reserved name is used as a word or phone, or there is no entry.
    """
    entries = list(entries)
    if unknown is not None and all(word != unknown for word, _ in entries):
        entries.append((unknown, (NOISE,)))
    names = {phone for _, phones in entries for phone in phones}
    silence = [SILENCE] + [NOISE] * (NOISE in names)
    phones = (EPSILON, *silence, *sorted(names.difference(silence)))
    lang = _assemble(entries, phones)
    return replace(lang, num_silence=len(silence), unknown=unknown, silence_probability=silence_probability)


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
    return unicodedata.normalize("NFC", text).split()


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
