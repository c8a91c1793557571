"""`murmur score`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from murmur.commands.options import grouped
from murmur.core.errors import SettingError
from murmur.core.path_checks import file_to_read, file_to_write, not_inputs
from murmur.core.printable import say
from murmur.speech.decoding.wer import Unit
from murmur.speech.scoring.systems import lines_of, score_recordings, score_texts, speakers_of, text_of

app = typer.Typer(add_completion=False)

Reference = Annotated[
    Path, typer.Argument(metavar="REF", help="Transcripts: a Kaldi text file or data directory, or an STM file.")
]
Hypotheses = Annotated[
    tuple[Path, ...], typer.Argument(metavar="HYP...", help="One or two files of hypotheses; CTM for an STM reference.")
]


@dataclass(frozen=True)
class Scoring:
    """The way to count and to compare.

    Attributes:
        unit: Unit that is counted.
        speakers: utt2spk: show errors by speaker; with 8 or more, draw speakers for the intervals.
        errors: Write all utterances, aligned, worst first, to this file.
        replications: Number of bootstrap draws.
        seed: Seed of the bootstrap draws.
        glm: GLM file: rules for the spelling of an STM and of its CTM.
    """

    unit: Unit = "word"
    speakers: Path | None = None
    errors: Path | None = None
    replications: Annotated[int, typer.Option(min=1)] = 10_000
    seed: Annotated[int, typer.Option(min=0)] = 0
    glm: Path | None = None


@app.command()
@grouped
def score(reference: Reference, hypotheses: Hypotheses, *, how: Scoring) -> None:
    """Compute the word or character error rate of hypotheses, with a 95 % bootstrap interval, by speaker.

    Example: murmur score data/test/text runs/decoded/text --speakers data/test/utt2spk --errors errors.txt

    The output is %WER 1.23 [ 12 / 975, 3 ins, 4 del, 5 sub ] and its interval. A data directory as REF supplies text
    and utt2spk. Two files of hypotheses are compared by a paired bootstrap: both are scored on the same draws.

    Example: murmur score data/test runs/a/text runs/b/text

    Time-marked references and hypotheses are scored as by NIST's sclite (-D -F): alternatives, optional words,
    fragments, segments left out, subsets by their labels. --glm gives rules that make spellings agree.

    Example: murmur score eval2000.stm recognised.ctm --glm en2000.glm
    """
    check(reference, hypotheses, how)
    speakers: Mapping[str, str] | None
    if reference.suffix == ".stm":
        systems, speakers = score_recordings(reference, hypotheses, how.glm)
    else:
        systems = score_texts(reference, hypotheses, how.unit)
        speakers = speakers_of(systems[0], reference, how.speakers)
    lines = lines_of(systems, speakers, how.replications, how.seed)
    say("\n".join(lines))
    for system, errors in zip(systems, reports(how.errors, len(hypotheses)), strict=False):
        system.write_errors(errors)


def check(reference: Path, hypotheses: Sequence[Path], how: Scoring) -> None:
    """Check, before any file is read, that all files can be read and the report can be written.

    Raises:
        SettingError: a file is missing, or options do not fit; the message names the first one.
    """
    if len(hypotheses) > 2:
        raise SettingError(f"one or two files of hypotheses can be scored, got {len(hypotheses)}")
    texts = [text_of(path) for path in (reference, *hypotheses)]
    for path in texts:
        if not path.is_file():
            raise SettingError(
                f"there is no file {path}: name a file of lines `utterance words...`, such as Kaldi's text"
            )
    for option, file in (("--speakers", how.speakers), ("--glm", how.glm)):
        if file is not None:
            file_to_read(file, option)
    if how.errors is not None:
        file_to_write(how.errors, "--errors")
        read = (*texts, reference / "utt2spk", how.speakers, how.glm)
        not_inputs(reports(how.errors, len(hypotheses)), "--errors", read)
    if reference.suffix == ".stm" and (how.unit != "word" or how.speakers is not None):
        raise SettingError("an STM reference names its speakers and is scored in words: leave --unit, --speakers out")
    if reference.suffix != ".stm" and how.glm is not None:
        raise SettingError("--glm needs an STM reference and CTM hypotheses")


def reports(errors: Path | None, systems: int) -> list[Path]:
    """Return the files of --errors, one for each system."""
    if errors is None or systems == 1:
        return [] if errors is None else [errors]
    return [errors.with_name(f"{errors.stem}-{number}{errors.suffix}") for number in range(1, systems + 1)]
