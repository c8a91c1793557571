"""Options for rescoring n-best lists with an LSTM language model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from murmur.core.errors import SettingError
from murmur.recognition.rescoring import RescoringRequest, check_rescoring

NBEST = 100
RESCORING = "Rescoring (docs/language_models.md)"
Rescore = Annotated[
    Path | None,
    typer.Option(
        metavar="RUN",
        help="Run of an LSTM language model (murmur train lm), which chooses among the best hypotheses.",
        rich_help_panel=RESCORING,
    ),
]
LmWeight = Annotated[
    float | None,
    typer.Option(
        help="Weight of the LSTM in its mixture with the n-gram model; by default as tuned by --dev, which"
        " tunes nothing else if --scale or --penalty is given.",
        min=0.0,
        max=1.0,
        rich_help_panel=RESCORING,
    ),
]
Listed = Annotated[
    int, typer.Option("--nbest", help="Hypotheses of each utterance to rescore.", min=2, rich_help_panel=RESCORING)
]


def chosen_rescoring(run: Path | None, weight: float | None, listed: int) -> RescoringRequest | None:
    """Return the rescoring of the options; None without a language model.

    Raises:
        SettingError: there is no such model, or options need it.
    """
    if run is None:
        if weight is not None or listed != NBEST:
            raise SettingError(f"{'--nbest' if weight is None else '--lm-weight'} is for --rescore RUN")
        return None
    request = RescoringRequest(run, weight, listed)
    check_rescoring(request)
    return request
