"""Comparison of the words that decoding can output with those of the language model and of held-out transcripts."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

from murmur.core.counted import are, counted, named
from murmur.core.errors import SettingError
from murmur.speech.language_model.arpa import read_unigrams
from murmur.speech.language_model.ngram import END, START, UNKNOWN_NAMES
from murmur.speech.lexicon.lexicon import read_lexicon

log = logging.getLogger(__name__)
NOT_SPOKEN = frozenset({START, END, *UNKNOWN_NAMES})


def decoding_words(lexicon: Path, model: Path | None) -> list[str]:
    """Words of a lexicon that are also unigrams of a language model, in byte order; all of them without a model.

    Logs the words of the model that the lexicon lacks, with their share of its probability.

    Raises:
        ValueError: a file is malformed.
    """
    spoken = {word for word, _ in read_lexicon(lexicon)}
    if model is None:
        return sorted(spoken, key=str.encode)
    chances = {word: 10**log10 for word, log10 in read_unigrams(model).items() if word not in NOT_SPOKEN}
    lost = sorted(set(chances) - spoken, key=lambda word: (-chances[word], word.encode()))
    if lost:
        log.warning(
            "%d of %s of the language model %s cannot be recognised (the lexicon lacks them): %s; %.1f %% of the"
            " probability of its words is lost; upper and lower case count",
            *(len(lost), counted(len(chances), "word"), model.name, named(lost)),
            100 * sum(chances[word] for word in lost) / sum(chances.values()),
        )
    return sorted(spoken.intersection(chances), key=str.encode)


def check_known(texts: Mapping[str, str], words: Collection[str], name: str) -> None:
    """Log how many words of held-out transcripts are outside the vocabulary; refuse texts with none inside.

    Args:
        texts: transcripts.
        words: words that decoding can output.
        name: name of the data in messages.

    Raises:
        SettingError: no word is in the vocabulary.
    """
    counts = Counter(word for text in texts.values() for word in text.split())
    known = set(words)
    missing = Counter({word: count for word, count in counts.items() if word not in known})
    lost = named([word for word, _ in missing.most_common()])
    if counts and missing.total() == counts.total():
        raise SettingError(
            f"{name}: none of its {counted(counts.total(), 'word')} ({lost}) is in the vocabulary of"
            f" {counted(len(known), 'word')} ({named(sorted(known))}): take speech that the grammar is made for; upper"
            " and lower case count"
        )
    if missing:
        log.warning(
            "%d of %s of %s %s not in the vocabulary: %s",
            *(missing.total(), counted(counts.total(), "word"), name, are(missing.total()), lost),
        )
