"""Pronunciations guessed by espeak-ng: its IPA symbols, and their images in a lexicon's phone set.

The library comes with the `espeakng-loader` wheel (extra `synth`; espeak-ng itself is GPL-3 and is loaded at run time
only). The interface is `espeak_TextToPhonemes` of espeak-ng's `speak_lib.h`.
"""

from __future__ import annotations

import ctypes
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from murmur.speech.corpus.synth import SynthesisError, load_espeak
from murmur.speech.corpus.text_lines import text_of
from murmur.speech.lexicon.spelling import JOINERS, Digits, UnspeakableError, check_word, folded, graphemes, spell

_IPA = 0x02
_SEPARATOR = ord("_") << 8
_UTF8 = 1
PRIMARY, SECONDARY = "\u02c8", "\u02cc"
_LANGUAGE_MARK = re.compile(r"\([a-z-]+\)")  # espeak-ng puts the name of a language in brackets when it changes to it

Phones = tuple[str, ...]
Guesser = Callable[[str], Phones]


class PhoneError(ValueError):
    """A phone has no image in the lexicon's phone set; the message names it and the word.

    Attributes:
        phone: missing phone, as /IPA/ or by name.
    """

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
        """The sounds of one isolated word.

        Raises:
            UnspeakableError: espeak-ng returns no sound.
        """
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
