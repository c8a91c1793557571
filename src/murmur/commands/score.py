"""`murmur score`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from murmur.core.counted import NAMED, counted
from murmur.core.errors import SettingError
from murmur.core.path_checks import file_to_read, file_to_write, not_an_input
from murmur.core.printable import say
from murmur.speech.corpus.kaldi_dir import read_pairs, read_table
from murmur.speech.decoding.bootstrap import compare, interval
from murmur.speech.decoding.error_report import write_error_report
from murmur.speech.decoding.wer import ErrorRate, Unit, score_by_group, score_utterances, total_of
from murmur.speech.scoring.glm import read_glm
from murmur.speech.scoring.stm import Recording, TimedWord, TimeMarkError, read_ctm, read_stm
from murmur.speech.scoring.stm import Reference as StmReference
from murmur.speech.scoring.time_marked import by_label, named_as, score_segments, write_alignments

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


Reference = Annotated[
    Path, typer.Argument(metavar="REF", help="Transcripts: a Kaldi text file or data directory, or an STM file.")
]
Hypotheses = Annotated[
    list[Path], typer.Argument(metavar="HYP...", help="One or two files of hypotheses; CTM for an STM reference.")
]
UnitOption = Annotated[Unit, typer.Option(help="Unit that is counted.")]
Speakers = Annotated[
    Path | None, typer.Option(help="utt2spk: show errors by speaker; with 8 or more, draw speakers for the intervals.")
]
Errors = Annotated[Path | None, typer.Option(help="Write all utterances, aligned, worst first, to this file.")]
Replications = Annotated[int, typer.Option(min=1, help="Number of bootstrap draws.")]
MappingFile = Annotated[Path | None, typer.Option(help="GLM file: rules for the spelling of an STM and of its CTM.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the bootstrap draws.")]


@app.command()
def score(
    reference: Reference,
    hypotheses: Hypotheses,
    unit: UnitOption = "word",
    speakers: Speakers = None,
    errors: Errors = None,
    replications: Replications = 10_000,
    seed: Seed = 0,
    glm: MappingFile = None,
) -> None:
    """Compute the word or character error rate of hypotheses, with a 95 % bootstrap interval, by speaker.

    Example: murmur score data/test/text runs/decoded/text --speakers data/test/utt2spk --errors errors.txt

    The output is %WER 1.23 [ 12 / 975, 3 ins, 4 del, 5 sub ] and its interval. A data directory as REF supplies text
    and utt2spk. Two files of hypotheses are compared by a paired bootstrap: both are scored on the same draws.

    Example: murmur score data/test runs/a/text runs/b/text

    Time-marked references and hypotheses are scored as by NIST's sclite (-D -F): alternatives, optional words,
    fragments, segments left out, subsets by their labels. --glm gives rules that make spellings agree.

    Example: murmur score eval2000.stm recognised.ctm --glm en2000.glm
    """
    if len(hypotheses) > 2:
        raise SettingError(f"one or two files of hypotheses can be scored, got {len(hypotheses)}")
    check(reference, hypotheses, speakers, errors, glm)
    if reference.suffix == ".stm":
        if unit != "word" or speakers is not None:
            raise SettingError(
                "an STM reference names its speakers and is scored in words: leave --unit, --speakers out"
            )
        score_time_marked(reference, hypotheses, glm, errors, replications, seed)
        return
    if glm is not None:
        raise SettingError("--glm needs an STM reference and CTM hypotheses")
    score_texts(reference, hypotheses, unit, speakers, errors, replications, seed)


def score_texts(
    reference: Path,
    hypotheses: list[Path],
    unit: Unit,
    speakers: Path | None,
    errors: Path | None,
    replications: int,
    seed: int,
) -> None:
    """Score files of lines `utterance words...`."""
    own = reference / "utt2spk"
    speakers = speakers or (own if own.is_file() else None)
    references = texts_of(reference)
    speaker_of = None if speakers is None else read_pairs(speakers, "UTTERANCE SPEAKER")
    if speaker_of is not None:
        speaker_of = {u: speaker_of[u] for u in references if u in speaker_of}
        if missing := sorted(references.keys() - speaker_of.keys()):
            raise SettingError(
                f"{speakers} names no speaker of {missing[0]!r}, one of {counted(len(missing), 'utterance')}"
            )
    few = speaker_of is None or len(set(speaker_of.values())) < FEW_SPEAKERS
    draws = Draws(None if few else speaker_of, replications, seed)
    scores = []
    for number, file in enumerate(hypotheses, 1):
        found = texts_of(file)
        scores.append(score_utterances(references, found, unit))
        say(line_of(scores[-1], draws) + (f"  {file}" if len(hypotheses) > 1 else ""))
        if errors is not None:
            write_error_report(reports(errors, len(hypotheses))[number - 1], references, found, unit)
    if len(scores) == 2:
        say(difference_of(scores[0], scores[1], draws))
    if speaker_of is not None:
        say(by_speaker(scores, speaker_of))


def check(
    reference: Path, hypotheses: list[Path], speakers: Path | None, errors: Path | None, glm: Path | None
) -> None:
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
    if glm is not None:
        file_to_read(glm, "--glm")
    if errors is not None:
        file_to_write(errors, "--errors")
        read = [*map(_text, (reference, *hypotheses)), reference / "utt2spk", *filter(None, (speakers, glm))]
        for path in reports(errors, len(hypotheses)):
            not_an_input(path, "--errors", read)


def reports(errors: Path, systems: int) -> list[Path]:
    """Return the files of --errors, one for each system."""
    if systems == 1:
        return [errors]
    return [errors.with_name(f"{errors.stem}-{number}{errors.suffix}") for number in range(1, systems + 1)]


def score_time_marked(
    reference: Path, hypotheses: list[Path], glm: Path | None, errors: Path | None, replications: int, seed: int
) -> None:
    """Score CTM files against an STM file: in all, by subset, by speaker.

    Raises:
        SettingError: a file cannot be read; the message names file and line.
    """
    try:
        rules = None if glm is None else read_glm(glm)
        stm = read_stm(reference, str if rules is None else rules.of_reference)
        words = [read_ctm(path) for path in hypotheses]
        if rules is not None:
            words = [{at: rules.of_hypothesis(found) for at, found in each.items()} for each in words]
        scored = [score_segments(stm, each) for each in words]
        for file, each in zip(hypotheses, words, strict=True):
            tell_silent(stm, each, file)
    except TimeMarkError as error:
        raise SettingError(str(error)) from error
    speaker_of = {f"{n}": each.segment.speaker for n, each in enumerate(scored[0])}  # segments may begin together
    few = len(set(speaker_of.values())) < FEW_SPEAKERS
    draws = Draws(None if few else speaker_of, replications, seed)
    scores = [{f"{n}": each.rate for n, each in enumerate(found)} for found in scored]
    for number, (file, found) in enumerate(zip(hypotheses, scored, strict=True), 1):
        say(line_of(scores[number - 1], draws) + (f"  {file}" if len(hypotheses) > 1 else ""))
        for label, rate in by_label(found).items():
            say(f"{stm.names.get(label, label)}: {rate}")
        if errors is not None:
            write_alignments(reports(errors, len(hypotheses))[number - 1], found)
    if len(scores) == 2:
        say(difference_of(scores[0], scores[1], draws))
    say(by_speaker(scores, speaker_of))


def tell_silent(reference: StmReference, hypothesis: Mapping[Recording, Sequence[TimedWord]], file: Path) -> None:
    """Print the recordings of a reference that have no word in a hypothesis: their words count as deletions."""
    silent = [" ".join(each) for each in reference.segments if each not in named_as(reference.segments, hypothesis)]
    if silent:
        named = ", ".join(silent[:NAMED]) + (f" and {len(silent) - NAMED} more" if len(silent) > NAMED else "")
        say(
            f"{file} has no word of {len(silent)} of {counted(len(reference.segments), 'recording')}: {named}", err=True
        )


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
