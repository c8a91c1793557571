"""Scores of one or two systems on the same references: rates with bootstrap intervals, by speaker, and compared."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from murmur.core.counted import counted, named
from murmur.report.error_rate import compare, interval
from murmur.speech.corpus.kaldi_dir import read_pairs, read_table
from murmur.speech.decoding.wer import ErrorRate, Unit, score_by_group, score_utterances, total_of, write_error_report
from murmur.speech.scoring.time_marked import (
    by_label,
    named_as,
    read_ctm,
    read_glm,
    read_stm,
    score_segments,
    write_alignments,
)

log = logging.getLogger(__name__)
FEW_SPEAKERS = 8  # with fewer speakers, utterances are drawn instead of speakers


@dataclass(frozen=True)
class ScoredFile:
    """A file of hypotheses: errors of each utterance or segment, their writer, and lines about subsets."""

    file: Path
    rates: Mapping[str, ErrorRate]
    write_errors: Callable[[Path], None]
    subsets: Sequence[str] = ()


def text_of(path: Path) -> Path:
    """The file of transcripts that a path names: itself, or that of a data directory."""
    return path / "text" if path.is_dir() else path


def score_texts(reference: Path, hypotheses: Sequence[Path], unit: Unit) -> list[ScoredFile]:
    """Score files of lines `utterance words...`.

    Raises:
        ValueError: a file is malformed, or has other utterances than the reference.
    """
    references, *found = (read_table(text_of(path)) for path in (reference, *hypotheses))
    systems = []
    for file, texts in zip(hypotheses, found, strict=True):
        report = partial(write_error_report, references=references, hypotheses=texts, unit=unit)
        systems.append(ScoredFile(file, score_utterances(references, texts, unit), report))
    return systems


def speakers_of(system: ScoredFile, reference: Path, utt2spk: Path | None) -> dict[str, str] | None:
    """Speakers of the scored utterances by `utt2spk`, or by that of a data directory; None without such a file.

    Raises:
        ValueError: an utterance has no speaker.
    """
    file = utt2spk or reference / "utt2spk"
    if utt2spk is None and not file.is_file():
        return None
    speaker_of = read_pairs(file)
    if missing := sorted(system.rates.keys() - speaker_of.keys()):
        raise ValueError(f"{file} names no speaker of {missing[0]!r}, one of {counted(len(missing), 'utterance')}")
    return {utterance: speaker_of[utterance] for utterance in system.rates}


def score_recordings(
    reference: Path, hypotheses: Sequence[Path], glm: Path | None
) -> tuple[list[ScoredFile], dict[str, str]]:
    """Score CTM files against an STM file; return the systems, and the speaker of each segment.

    Raises:
        TimeMarkError: a file cannot be read; the message names file and line.
    """
    rules = None if glm is None else read_glm(glm)
    stm = read_stm(reference, str if rules is None else rules.of_reference)
    systems, speaker_of = [], dict[str, str]()
    for file in hypotheses:
        words = read_ctm(file)
        if rules is not None:
            words = {at: rules.of_hypothesis(found) for at, found in words.items()}
        scored = score_segments(stm, words)
        if silent := [" ".join(each) for each in stm.segments if each not in named_as(stm.segments, words)]:
            recordings = counted(len(stm.segments), "recording")
            log.warning("%s has no word of %d of %s: %s", file, len(silent), recordings, named(silent))
        rates = {f"{n}": each.rate for n, each in enumerate(scored)}  # segments may begin together
        subsets = [f"{stm.names.get(label, label)}: {rate}" for label, rate in by_label(scored).items()]
        systems.append(ScoredFile(file, rates, partial(write_alignments, scored=scored), subsets))
        speaker_of = {f"{n}": each.segment.speaker for n, each in enumerate(scored)}
    return systems, speaker_of


def lines_of(
    systems: Sequence[ScoredFile], speaker_of: Mapping[str, str] | None, replications: int, seed: int
) -> list[str]:
    """Error rates with 95 % intervals, as Kaldi's lines; the difference of two systems; rates by speaker.

    Raises:
        ValueError: the references hold no token.
    """
    few = speaker_of is None or len(set(speaker_of.values())) < FEW_SPEAKERS
    group_of, over = (None, "utterances") if few else (speaker_of, "speakers")
    lines, rates = list[str](), [system.rates for system in systems]
    for system in systems:
        found = interval(system.rates, group_of, replications=replications, seed=seed)
        total = total_of(system.rates.values(), next(iter(system.rates.values())).unit)
        shown = f"  {system.file}" if len(systems) > 1 else ""
        lines.append(f"{total}; 95 % interval {found.low:.2f}-{found.high:.2f} over {over}{shown}")
        lines += system.subsets
    if len(systems) == 2:
        both = compare(rates[0], rates[1], group_of, replications=replications, seed=seed)
        change = both.difference
        lines.append(
            f"second - first: {change.value:+.2f} % absolute, 95 % interval {change.low:+.2f} to {change.high:+.2f}"
            f" over {over}; the second is better in {100 * both.second_better:.1f} % of the draws"
        )
    if speaker_of is not None:
        columns = [score_by_group(each, speaker_of) for each in rates]
        width = max(map(len, columns[0]))
        for speaker in columns[0]:
            lines.append(f"{speaker:<{width}}  {'   '.join(str(column[speaker]) for column in columns)}")
    return lines
