"""References and hypotheses of a test set, utterance by utterance, in the form of a task's `Score`."""

from __future__ import annotations

from collections.abc import Mapping

from murmur.engine.task import Recognised
from murmur.speech.decoding.wer import score_utterances


def recognised(
    references: Mapping[str, str], hypotheses: Mapping[str, str], speakers: Mapping[str, str] | None = None
) -> tuple[Recognised, ...]:
    """All utterances, sorted by name, with their word errors; an unknown speaker is "".

    Raises:
        ValueError: an utterance is missing on one side.
    """
    return tuple(
        Recognised(name, (speakers or {}).get(name, ""), references[name], hypotheses[name], rate.errors, rate.tokens)
        for name, rate in score_utterances(references, hypotheses).items()
    )
