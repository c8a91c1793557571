"""Pronunciations for given words: those of a base lexicon, and guesses by espeak-ng or by spelling for the rest.

The library comes with the `espeakng-loader` wheel (extra `synth`; espeak-ng itself is GPL-3 and is loaded at run time
only). The interface is `espeak_TextToPhonemes` of espeak-ng's `speak_lib.h`.
"""

from __future__ import annotations

import ctypes
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

from murmur.core.counted import counted
from murmur.core.whole_files import write_text_whole
from murmur.speech.corpus.corpus import left_out
from murmur.speech.corpus.file_content import text_of
from murmur.speech.corpus.synth import SynthesisError, load_espeak
from murmur.speech.lexicon.lexicon import STRESSED, Entry, pronunciations_of, read_lexicon
from murmur.speech.lexicon.spelling import JOINERS, Digits, UnspeakableError, check_word, folded, graphemes, spell

_IPA = 0x02
_SEPARATOR = ord("_") << 8
_UTF8 = 1
PRIMARY, SECONDARY = "\u02c8", "\u02cc"
_LANGUAGE_MARK = re.compile(r"\([a-z-]+\)")  # espeak-ng puts the name of a language in brackets when it changes to it

Phones = tuple[str, ...]


class PhoneError(ValueError):
    """A phone has no image in the lexicon's phone set; `phone` is the missing one, as /IPA/ or by name."""

    def __init__(self, message: str, phone: str) -> None:
        super().__init__(message)
        self.phone = phone


@dataclass(frozen=True)
class Sound:
    """One symbol of espeak-ng and its stress: 1 primary, 2 secondary, 0 none."""

    ipa: str
    stress: int


class Phonemizer:
    """Conversion of words to sounds by a voice of espeak-ng; the library's voice is global, so use one at a time.

    Raises:
        SynthesisError: the extra `synth` is not installed, or there is no such voice.
    """

    def __init__(self, voice: str = "en-us") -> None:
        self._library, _ = load_espeak()
        self._library.espeak_TextToPhonemes.restype = ctypes.c_char_p
        self.voice = voice
        if self._library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise SynthesisError(f"espeak-ng has no voice {voice!r}: take one such as en-us, de or fr")

    def __call__(self, word: str) -> tuple[Sound, ...]:
        """The sounds of one isolated word; an UnspeakableError if there are none."""
        rest, clauses = ctypes.c_char_p(_as_read(word).encode()), []
        while rest.value:  # one clause per call, which advances the pointer, finally to NULL
            clause = self._library.espeak_TextToPhonemes(ctypes.byref(rest), _UTF8, _IPA | _SEPARATOR)
            clauses.append((clause or b"").decode())
        symbols = re.split(r"[_\s]+", _LANGUAGE_MARK.sub("_", "_".join(clauses)))
        sounds = tuple(
            Sound(unicodedata.normalize("NFD", bare), 1 if PRIMARY in symbol else 2 if SECONDARY in symbol else 0)
            for symbol in symbols
            if (bare := symbol.strip(PRIMARY + SECONDARY))
        )
        if not sounds:
            raise UnspeakableError(f"espeak-ng says nothing for {word!r}")
        return sounds


def _as_read(word: str) -> str:
    """A word in espeak-ng's form: lower case, no ligatures; a single letter loses its marks, which it would name."""
    text = unicodedata.normalize("NFKC", folded(word).translate(dict.fromkeys(map(ord, JOINERS))))
    return unicodedata.normalize("NFD", text)[0] if len(graphemes(text)) == 1 else text


@dataclass(frozen=True)
class PhoneMap:
    """Images of IPA symbols.

    Attributes:
        images: phones of each symbol; empty for a symbol that is left out. A name with a stress mark in front is for
            stressed symbols alone, and two symbols joined by + are looked up before each of them.
        vowels: phones that take a stress digit if the lexicon has them, like CMUdict's AH0, AH1, AH2.
    """

    images: Mapping[str, Phones]
    vowels: frozenset[str] = frozenset()

    @staticmethod
    def read(path: Path) -> PhoneMap:
        """Read lines `IPA phone phone ...` without stress digits; `#` begins a comment.

        Raises:
            ValueError: a symbol twice, or none at all; the message names the line.
        """
        return PhoneMap.parse(text_of(path), str(path))

    @staticmethod
    def parse(text: str, name: str, vowels: frozenset[str] = frozenset()) -> PhoneMap:
        """Parse the text of a map; `name` is for messages. Raises as `read` does."""
        images: dict[str, Phones] = {}
        for number, line in enumerate(text.split("\n"), 1):
            fields = unicodedata.normalize("NFD", line.split("#", 1)[0]).split()
            if fields and fields[0] in images:
                raise ValueError(f"{name}:{number}: {fields[0]!r} appears twice: give each symbol one image")
            if fields:
                images[fields[0]] = tuple(unicodedata.normalize("NFC", phone) for phone in fields[1:])
        if not images:
            raise ValueError(f"{name} holds no line `IPA phone phone ...`")
        return PhoneMap(images, vowels)

    def __call__(self, word: str, sounds: tuple[Sound, ...], stress: bool) -> Phones:
        """The phones of a word's sounds, vowels with a digit if `stress` is set.

        Raises:
            PhoneError: a symbol has no image.
        """
        phones: list[str] = []
        place = 0
        while place < len(sounds):
            image, taken = self._image(word, sounds[place : place + 2])
            left = next((sound.stress for sound in sounds[place : place + taken] if sound.stress), 0)
            for phone in image:
                vowel = stress and phone in self.vowels
                phones.append(f"{phone}{left}" if vowel else phone)
                left = 0 if vowel else left  # a diphthong of two vowels is stressed on the first
            place += taken
        return tuple(phones)

    def _image(self, word: str, ahead: tuple[Sound, ...]) -> tuple[Phones, int]:
        """The phones of the next sounds, and the number of sounds that they represent."""
        first = ahead[0]
        names = [("+".join(sound.ipa for sound in ahead), 2)] if len(ahead) == 2 else []
        names += [(PRIMARY + first.ipa, 1)] if first.stress else []
        for name, taken in [*names, (first.ipa, 1)]:
            if name in self.images:
                return self.images[name], taken
        raise PhoneError(
            f"espeak-ng says /{first.ipa}/ in {word!r}, which has no image in the phone set: add a line "
            f"`{first.ipa} PHONE` to the phone map",
            f"/{first.ipa}/",
        )


@dataclass(frozen=True)
class EspeakGuess:
    """Pronunciations by espeak-ng.

    Attributes:
        phone_map: images of espeak-ng's symbols.
        allowed: phone set; empty for any.
        stress: add stress digits to vowels.
        digits: read out words with digits, as espeak-ng reads numbers.
        voice: voice of espeak-ng.
        script: first word of Unicode's names of the letters that the voice reads; it spells the names of others.
    """

    phone_map: PhoneMap
    allowed: Collection[str] = ()
    stress: bool = False
    digits: Digits = "refuse"
    voice: str = "en-us"
    script: str = ""

    how = "guessed by espeak-ng"

    @cached_property
    def _phonemizer(self) -> Phonemizer:
        return Phonemizer(self.voice)

    def __call__(self, word: str) -> Phones:
        """The phones of a word.

        Raises:
            UnspeakableError: the text is not a word.
            PhoneError: a sound has no image in the phone set.
        """
        check_word(word, self.digits)
        foreign = [c for c in folded(word) if c.isalpha() and not unicodedata.name(c, "").startswith(self.script)]
        if foreign:
            raise UnspeakableError(f"{word!r} holds {foreign[0]!r}, which {self.voice} does not read")
        phones = self.phone_map(word, self._phonemizer(word), self.stress)
        if not phones:
            raise UnspeakableError(f"the phone map leaves nothing of {word!r}")
        check_phones(word, phones, self.allowed)
        return phones


@dataclass(frozen=True)
class GraphemeGuess:
    """The letters of a word as its phones; see `murmur.speech.lexicon.spelling`."""

    allowed: Collection[str] = ()
    digits: Digits = "refuse"

    how = "spelled"

    def __call__(self, word: str) -> Phones:
        """The graphemes of a word; raises as `EspeakGuess` does."""
        phones = spell(word, self.digits)
        check_phones(word, phones, self.allowed)
        return phones


def check_phones(word: str, phones: Phones, allowed: Collection[str]) -> None:
    """Raise a PhoneError that names the first phone outside a phone set, if there is one."""
    for phone in phones:
        if allowed and phone not in allowed:
            raise PhoneError(
                f"{word!r} is guessed as {' '.join(phones)}, but the base lexicon has no phone {phone!r}: give "
                f"{word!r} a line of its own, or map the sound to a phone that is there",
                phone,
            )


VOWELS = frozenset({"AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW"})
CONSONANTS = frozenset("BDFGKLMNPRSTVWYZ") | {"CH", "DH", "HH", "JH", "NG", "SH", "TH", "ZH"}
PHONES = VOWELS | CONSONANTS

# The map of reduced vowels, and the rule that /r/ after an r-coloured vowel is part of it, were chosen on one half of
# CMUdict's words (docs/lexicons.md).
ARPABET = PhoneMap.parse(
    """
    p P
    b B
    t T
    d D
    k K
    \u0261 G
    m M
    n N
    \u014b NG
    f F
    v V
    \u03b8 TH
    \u00f0 DH
    s S
    z Z
    \u0283 SH
    \u0292 ZH
    h HH
    t\u0283 CH
    d\u0292 JH
    l L
    \u0279 R
    w W
    j Y
    \u027e T     # the flap of butter; ladder has d
    \u0294 T     # the stop of button
    n\u0329 AH N
    \u0259l AH L
    i IY
    i\u02d0 IY
    \u026a IH
    \u1d7b IH    # the last vowel of roses
    \u025b EH
    \u00e6 AE
    \u0251\u02d0 AA
    \u0254 AO
    \u0254\u02d0 AO
    \u028a AH    # unstressed, as in regular
    \u02c8\u028a UH
    u\u02d0 UW
    \u028c AH
    \u0250 AH
    \u0259 AH
    \u025a ER
    \u025c\u02d0 ER
    \u025a+\u0279 ER
    \u025c\u02d0+\u0279 ER
    e\u026a EY
    a\u026a AY
    \u0254\u026a OY
    a\u028a AW
    o\u028a OW
    i\u0259 IY AH
    i\u0259+\u0279 IH R
    a\u026a\u0259 AY AH
    a\u026a\u025a AY ER
    a\u026a\u025a+\u0279 AY R
    \u0254\u02d0\u0279 AO R
    \u0254\u02d0\u0279+\u0279 AO R
    \u0251\u02d0\u0279 AA R
    \u0251\u02d0\u0279+\u0279 AA R
    \u025b\u0279 EH R
    \u025b\u0279+\u0279 EH R
    \u026a\u0279 IH R
    \u026a\u0279+\u0279 IH R
    \u028a\u0279 UH R
    \u028a\u0279+\u0279 UH R
    x K
    r R
    \u0281 R
    a AA
    e EY
    o OW
    o\u02d0 OW
    u UW
    y UW
    \u0252 AA
    \u00f8 ER
    \u0153 ER
    \u0272 N Y
    \u0261\u02b2 G    # Argyll
    \u0251\u0303 AA N
    \u0254\u0303 AO N
    \u025b\u0303 AE N
    """,
    "murmur.speech.lexicon.g2p",
    VOWELS,
)


LEXICON, ORIGINS, REFUSED = "lexicon.txt", "pronunciations.tsv", "refused.tsv"
SEEN = "seen"
NAMED = 8  # refused words in a message


class Guesser(Protocol):
    """Phones of a word that no lexicon has; raises UnspeakableError if the text is not a word."""

    @property
    def how(self) -> str:
        """A short description for the list of origins."""

    def __call__(self, word: str) -> Phones:
        """The phones of a word."""


class Origin(NamedTuple):
    """One pronunciation and its origin."""

    word: str
    phones: Phones
    how: str


@dataclass(frozen=True)
class Completed:
    """Pronunciations of the requested words, in byte order of the words.

    Attributes:
        origins: pronunciations; those of one word are adjacent, in the order of the base lexicon.
        refused: {word: reason}.
    """

    origins: tuple[Origin, ...]
    refused: dict[str, str]

    @property
    def entries(self) -> list[Entry]:
        """The lexicon."""
        return [(origin.word, origin.phones) for origin in self.origins]

    @property
    def guessed(self) -> list[Origin]:
        """Words that the base lexicon lacks under the same spelling."""
        return [origin for origin in self.origins if origin.how != SEEN]

    def reasons(self) -> str:
        """Reasons why the first words were refused, one line each."""
        lines = [f"\n    {word}: {why}" for word, why in list(self.refused.items())[:NAMED]]
        more = len(self.refused) - len(lines)
        return "".join(lines) + (f"\n    and {more} more" if more > 0 else "")

    def summary(self, counts: Counter[str]) -> str:
        """Numbers of words by origin, and the refused words with their share of the running text."""
        kinds = Counter(how.partition(" as ")[0] for how in {word: how for word, _, how in self.origins}.values())
        lines = [f"{counted(kinds.total(), 'word')}, {counted(len(self.origins), 'pronunciation')}"]
        lines += [f"  {count} {how}" for how, count in kinds.most_common()]
        if self.refused:
            share = 100 * sum(counts[word] for word in self.refused) / counts.total()
            lines.append(f"  {left_out('word', list(self.refused.items()), kinds.total() + len(self.refused))}")
            lines.append(f"  {share:.2f} % of the running words are left out, see {REFUSED}")
        return "\n".join(lines)

    def write(self, folder: Path) -> None:
        """Write lexicon.txt, pronunciations.tsv (word, pronunciation, how), refused.tsv (word, why) atomically."""
        folder.mkdir(parents=True, exist_ok=True)
        lexicon = "".join(f"{word} {' '.join(phones)}\n" for word, phones in self.entries)
        rows = "".join(f"{word}\t{' '.join(phones)}\t{how}\n" for word, phones, how in self.origins)
        refused = "".join(f"{word}\t{why}\n" for word, why in self.refused.items())
        write_text_whole(folder / ORIGINS, f"word\tpronunciation\thow\n{rows}")
        write_text_whole(folder / REFUSED, f"word\twhy\n{refused}")
        write_text_whole(folder / LEXICON, lexicon)


def is_as_written(folder: Path) -> bool:
    """True if lexicon.txt of a folder has the pronunciations that are listed beside it: it was not edited."""
    if not (folder / ORIGINS).is_file():
        return False
    rows = [line.split("\t") for line in (folder / ORIGINS).read_text(encoding="utf-8").split("\n")[1:]]
    listed = {(row[0], tuple(row[1].split())) for row in rows if len(row) > 1}
    try:
        return set(read_lexicon(folder / LEXICON)) == listed
    except ValueError:  # an edit that is no lexicon
        return False


def complete(words: Iterable[str], base: Sequence[Entry] = (), guess: Guesser | None = None) -> Completed:
    """Pronunciations of `words`: those of `base`; else those there in another case or apostrophes; else a guess.

    Raises:
        PhoneError: guesses need phones that the phone set lacks; the message names each with a word.
    """
    prons = pronunciations_of(base)
    alike: dict[str, list[str]] = {}
    for word in prons:
        alike.setdefault(folded(word), []).append(word)
    origins: list[Origin] = []
    refused: dict[str, str] = {}
    lacking: dict[str, PhoneError] = {}
    for word in sorted({unicodedata.normalize("NFC", word) for word in words}, key=str.encode):
        others = alike.get(folded(word))
        if word in prons:
            origins += [Origin(word, phones, SEEN) for phones in prons[word]]
        elif others is not None:
            ways = {phones: other for other in reversed(others) for phones in prons[other]}  # each with its first word
            origins += [Origin(word, phones, f"seen as {other}") for phones, other in ways.items()]
        elif guess is None:
            refused[word] = "not in the lexicon"
        else:
            try:
                origins.append(Origin(word, guess(word), guess.how))
            except UnspeakableError as error:
                refused[word] = str(error)
            except PhoneError as error:
                lacking.setdefault(error.phone, error)
    if lacking:
        listing = "".join(f"\n  {error}" for error in lacking.values())
        raise PhoneError(f"the phone set lacks {', '.join(sorted(lacking))}:{listing}", ", ".join(sorted(lacking)))
    return Completed(tuple(origins), refused)


def completed_base(words: Iterable[str], base: Sequence[Entry], guess: Guesser | None = None) -> Completed:
    """The result of `complete`, with all other words of `base` added."""
    known = {word for word, _ in base}
    return complete([*known, *words], base, guess)


def has_stress(entries: Iterable[Entry]) -> bool:
    """True if phones carry CMUdict's stress digits (AH0)."""
    return any(STRESSED.fullmatch(phone) for _, phones in entries for phone in phones)


def phone_set(entries: Iterable[Entry]) -> frozenset[str]:
    """The phones of a lexicon, with every stress for a vowel that occurs with one."""
    found = {phone for _, phones in entries for phone in phones}
    vowels = {match[1] for phone in found if (match := STRESSED.fullmatch(phone))}
    return frozenset(found | {f"{vowel}{digit}" for vowel in vowels for digit in "012"})
