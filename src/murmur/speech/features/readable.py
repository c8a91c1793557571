"""Check of recordings that are read later, such as those of test after hours of training."""

from __future__ import annotations

from murmur.speech.corpus.corpus import Corpus, CorpusError, Problem
from murmur.speech.features.analysis import opened


def check_readable(corpus: Corpus, rate_hz: int) -> None:
    """Check the audio of a corpus by the lengths of its files, without decoding samples or running commands.

    Raises:
        CorpusError: more than 1 % of the utterances have files that are damaged, cut short, or at another rate; names
            the first ones.
    """
    problems = []
    for utterance in corpus.utterances:
        audio = utterance.audio
        if audio is None or audio.command is not None:
            continue
        try:
            with opened(audio, rate_hz):
                pass
        except CorpusError as error:
            problems.append(Problem(utterance.id, str(audio.path), str(error)))
    corpus.without(problems)
