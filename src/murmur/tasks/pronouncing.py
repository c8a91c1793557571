"""Lexicons for sets with words in their transcripts that their lexicon lacks."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from murmur.core.counted import counted, named
from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.lexicon.arpabet import ARPABET, PHONES
from murmur.speech.lexicon.g2p import EspeakGuess, GraphemeGuess, PhoneMap
from murmur.speech.lexicon.lexicon import Entry, read_lexicon
from murmur.speech.lexicon.pronounce import LEXICON, Completed, Guesser, completed_base, has_stress, phone_set
from murmur.speech.lexicon.spelling import Digits
from murmur.tasks.prepared import Absent, refuse_to_make

log = logging.getLogger(__name__)
Guess = Literal["none", "espeak", "graphemes"]


def guesser(
    guess: Guess, base: Sequence[Entry] = (), digits: Digits = "refuse", voice: str = "en-us", map: Path | None = None
) -> Guesser | None:
    """A guesser of pronunciations for words that `base` lacks, in the phones of `base`.

    espeak-ng's sounds become CMUdict's phones, or those of the file `map`; vowels carry stress digits if and only if
    those of `base` do.

    Raises:
        ValueError: the map cannot be read, or this voice needs one.
    """
    phones = phone_set(base)
    if guess == "none":
        return None
    if guess == "graphemes":
        return GraphemeGuess(phones, digits)
    english = voice == "en-us"
    if map is None and not english:
        raise ValueError(f"the sounds of voice {voice!r} need a phone map (lines `IPA phone`): only en-us needs none")
    if map is None and phones and not phones & (PHONES | {f"{p}{d}" for p in PHONES for d in "012"}):
        raise ValueError(
            f"the base lexicon has none of CMUdict's phones; it has {sorted(phones)[:5]}: give a phone map"
        )
    images = ARPABET if map is None else PhoneMap.read(map)
    return EspeakGuess(images, phones, has_stress(base), digits, voice, "LATIN" if english else "")


def completed_lexicon(path: Path, texts: Iterable[str], guess: Guess, cache: Path, absent: Absent = "make") -> Path:
    """The lexicon at `path`, or one completed with the words of `texts` that it lacks.

    A completed lexicon is stored in a folder of `cache`, with the origin of each pronunciation; the log names it.

    Raises:
        CorpusError: there is no lexicon and guessing is off, or no word has a pronunciation.
        PhoneError: a guess needs a phone that the lexicon lacks.
    """
    if not path.is_file() and guess == "none":
        raise CorpusError(
            f"there is no lexicon {path}: name one (task.lexicon), or guess all words (task.guess=espeak)"
        )
    base = read_lexicon(path) if path.is_file() else []
    words = sorted({word for text in texts for word in text.split()})
    if not set(words).difference(word for word, _ in base):
        return path
    content = hashlib.sha256(json.dumps([base, words, guess]).encode()).hexdigest()[:16]
    folder = cache / f"lexicon-{content}"
    if (folder / LEXICON).is_file():  # written last, so all files exist
        return folder / LEXICON
    if absent == "refuse":
        refuse_to_make(f"the completed lexicon {folder.name}", cache)
    found = completed_base(words, base, guesser(guess, base))
    log_words(found, folder)
    if not found.entries:
        raise CorpusError(f"no word of the transcripts has a pronunciation: {found.reasons()}")
    found.write(folder)
    return folder / LEXICON


def log_words(found: Completed, folder: Path) -> None:
    """Log the guessed words and the refused ones."""
    guessed = sorted({origin.word for origin in found.guessed}, key=str.encode)
    if guessed:
        log.info("%s guessed or found in another case (%s): %s", counted(len(guessed), "word"), named(guessed), folder)
    if found.refused:
        log.warning("%s without a pronunciation: %s", counted(len(found.refused), "word"), found.reasons())
