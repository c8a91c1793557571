"""`murmur score`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from murmur.core.errors import SettingError
from murmur.core.path_checks import file_to_read, file_to_write
from murmur.speech.corpus.kaldi_dir import read_table
from murmur.speech.decoding.bootstrap import compare, interval
from murmur.speech.decoding.error_report import write_error_report
from murmur.speech.decoding.wer import ErrorRate, Unit, score_by_group, score_utterances, total_of

app = typer.Typer(add_completion=False)
FEW_SPEAKERS = 8  # with fewer speakers, utterances are drawn instead of speakers


@dataclass(frozen=True)
class Draws:
    """Settings of bootstrap intervals; `speakers` maps utterances to speakers, None to draw utterances."""

    speakers: Mapping[str, str] | None
    replications: int
    seed: int

    @property
    def unit(self) -> str:
        """Name of the drawn units, for messages."""
        return "utterances" if self.speakers is None else "speakers"


Reference = Annotated[Path, typer.Argument(metavar="REF", help="Transcripts: a Kaldi text file or data directory.")]
Hypotheses = Annotated[list[Path], typer.Argument(metavar="HYP...", help="One or two files of hypotheses.")]
UnitOption = Annotated[Unit, typer.Option(help="Unit that is counted.")]
Speakers = Annotated[
    Path | None, typer.Option(help="utt2spk: show errors by speaker; with 8 or more, draw speakers for the intervals.")
]
Errors = Annotated[Path | None, typer.Option(help="Write all utterances, aligned, worst first, to this file.")]
Replications = Annotated[int, typer.Option(min=1, help="Number of bootstrap draws.")]
Seed = Annotated[int, typer.Option(help="Seed of the bootstrap draws.")]


@app.command()
def score(
    reference: Reference,
    hypotheses: Hypotheses,
    unit: UnitOption = "word",
    speakers: Speakers = None,
    errors: Errors = None,
    replications: Replications = 10_000,
    seed: Seed = 0,
) -> None:
    """Compute the word or character error rate of hypotheses, with a 95 % bootstrap interval, by speaker.

    Example: murmur score data/test/text runs/decoded/text --speakers data/test/utt2spk --errors errors.txt

    The output is %WER 1.23 [ 12 / 975, 3 ins, 4 del, 5 sub ] and its interval. A data directory as REF supplies text
    and utt2spk. Two files of hypotheses are compared by a paired bootstrap: both are scored on the same draws.

    Example: murmur score data/test runs/a/text runs/b/text
    """
    if len(hypotheses) > 2:
        raise SettingError(f"one or two files of hypotheses can be scored, got {len(hypotheses)}")
    check(reference, hypotheses, speakers, errors)
    own = reference / "utt2spk"
    speakers = speakers or (own if own.is_file() else None)
    references = texts_of(reference)
    speaker_of = None if speakers is None else read_table(speakers)
    few = speaker_of is None or len(set(speaker_of.values())) < FEW_SPEAKERS
    draws = Draws(None if few else speaker_of, replications, seed)
    scores = []
    for number, file in enumerate(hypotheses, 1):
        found = texts_of(file)
        scores.append(score_utterances(references, found, unit))
        typer.echo(line_of(scores[-1], draws) + (f"  {file}" if len(hypotheses) > 1 else ""))
        if errors is not None:
            several = errors.with_name(f"{errors.stem}-{number}{errors.suffix}")
            write_error_report(errors if len(hypotheses) == 1 else several, references, found, unit)
    if len(scores) == 2:
        typer.echo(difference_of(scores[0], scores[1], draws))
    if speaker_of is not None:
        typer.echo(by_speaker(scores, speaker_of))


def check(reference: Path, hypotheses: list[Path], speakers: Path | None, errors: Path | None) -> None:
    """Check, before any file is read, that all files can be read and the report can be written.

    Raises:
        SettingError: a file is missing; the message names the first one.
    """
    for path in (reference, *hypotheses):
        if not _text(path).is_file():
            raise SettingError(
                f"there is no file {_text(path)}: name a file of lines `utterance words...`, such as Kaldi's text"
            )
    if speakers is not None:
        file_to_read(speakers, "--speakers")
    if errors is not None:
        file_to_write(errors, "--errors")


def texts_of(path: Path) -> dict[str, str]:
    """Return {utterance: text} of a file of lines `utterance words...`.

    Raises:
        CorpusError: the file is malformed.
    """
    return read_table(_text(path), values_required=False)


def _text(path: Path) -> Path:
    return path / "text" if path.is_dir() else path


def line_of(scores: Mapping[str, ErrorRate], draws: Draws) -> str:
    """Return the error rate as a line of Kaldi's, followed by the interval.

    Raises:
        ValueError: the references hold no token.
    """
    found = interval(scores, draws.speakers, replications=draws.replications, seed=draws.seed)
    rate = total_of(scores.values(), next(iter(scores.values())).unit)
    return f"{rate}; 95 % interval {found.low:.2f}-{found.high:.2f} over {draws.unit}"


def difference_of(first: Mapping[str, ErrorRate], second: Mapping[str, ErrorRate], draws: Draws) -> str:
    """Second rate minus the first, with its interval and the share of draws in which the second is better."""
    found = compare(first, second, draws.speakers, replications=draws.replications, seed=draws.seed)
    change = found.difference
    return (
        f"second - first: {change.value:+.2f} % absolute, 95 % interval {change.low:+.2f} to {change.high:+.2f} over"
        f" {draws.unit}; the second is better in {100 * found.second_better:.1f} % of the draws"
    )


def by_speaker(scores: list[dict[str, ErrorRate]], speaker_of: Mapping[str, str]) -> str:
    """Return one line per speaker with one column per system."""
    columns = [score_by_group(each, speaker_of) for each in scores]
    width = max(len(speaker) for speaker in columns[0])
    return "\n".join(
        f"{speaker:<{width}}  {'   '.join(str(column[speaker]) for column in columns)}" for speaker in columns[0]
    )
