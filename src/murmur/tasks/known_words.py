"""Comparison of the words that decoding can output with those of the language model and of held-out transcripts."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from murmur.core.errors import SettingError
from murmur.speech.language_model.arpa import read_unigrams
from murmur.speech.language_model.ngram import END, START, UNKNOWN_NAMES
from murmur.speech.lexicon.lexicon import read_lexicon

log = logging.getLogger(__name__)
NAMED = 5  # words in a message
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
            "%d of %d words of the language model %s are not in the lexicon and cannot be recognised, such as %s: %.1f "
            "%% of the probability of its words is lost; upper and lower case count",
            *(len(lost), len(chances), model.name, _some(lost)),
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
    if counts and missing.total() == counts.total():
        raise SettingError(
            f"{name}: none of its {counts.total()} words ({_some([word for word, _ in missing.most_common(NAMED)])}) "
            f"is in the vocabulary of {len(known)} words ({_some(sorted(known))}): take speech that the grammar is made"
            " for; upper and lower case count"
        )
    if missing:
        log.warning(
            "%d of %d words of %s are not in the vocabulary, such as %s",
            *(missing.total(), counts.total(), name, _some([word for word, _ in missing.most_common(NAMED)])),
        )


def _some(words: Sequence[str]) -> str:
    return ", ".join(words[:NAMED])
