"""Decodes a set of utterances with a trained run: texts, times, error rate, settings and speed.

Times of words are written as NIST's CTM, in seconds from the beginning of the utterance or of its recording:

    FILE CHANNEL BEGIN DURATION WORD

File and channel of a recording are those of `reco2file_and_channel`, or of a lhotse recording with two channels.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress, TaskID

from murmur.core.counted import are, counted
from murmur.core.errors import SettingError
from murmur.execution.processes import bar_of
from murmur.run.timed import timed
from murmur.speech.corpus.corpus import Corpus, CorpusError, Utterance, left_out
from murmur.speech.decoding.decode_set import Decoded
from murmur.speech.decoding.decoder import DecodeOptions
from murmur.speech.decoding.graph_store import StoredGraph
from murmur.speech.decoding.recogniser import CtcBestPath, Spans
from murmur.speech.decoding.wer import score
from murmur.speech.features.analysis import features_of
from murmur.speech.recognition.rescoring import Rescorer, Rescoring, opened_rescorer
from murmur.speech.recognition.run_records import SETTINGS, scales_of
from murmur.speech.recognition.trained_run import TrainedRun, no_scale
from murmur.speech.recognition.tuning import SearchRequest, graph_folder
from murmur.speech.tasks.word_search import WordSearch

log = logging.getLogger(__name__)
Words = Mapping[str, Sequence[tuple[str, int, int]]]  # of utterances, with first output frame, and frame after the last


@dataclass(frozen=True)
class Decoding:
    """Results of a set."""

    texts: Mapping[str, str]  # hypothesis of every utterance; empty for one without features
    word_lines: tuple[str, ...] | None  # CTM lines; None for units without lengths, such as the spikes of CTC
    lines: tuple[str, ...]  # for people
    facts: Mapping[str, Any]  # settings, speed and error rate, in JSON's terms
    recording_lines: tuple[str, ...] | None = None  # None for data whose recordings have no named channels


def decoded(
    run: TrainedRun,
    request: SearchRequest,
    data: str,
    scratch: Path,
    others: Sequence[TrainedRun],
    rescoring: Rescoring,
) -> Decoding:
    """Decode a part of the run's corpus or other data; features and results so far are stored in `scratch`.

    With `others`, scores are means over the run and these. Graph and search settings are those of `run`.

    Raises:
        SettingError, CorpusError: the settings do not fit the search, the data cannot be used, or other runs do not.
    """
    _check_settings(run, request)
    models = run.with_others(others)
    corpus = run.corpus(data)
    _warn_of_common(run, request.dev, corpus, data)
    rescorer = None if rescoring.rescore is None else opened_rescorer(rescoring, run, request, others)
    search, options = run.searched(request, models, scratch)
    if search is not None:
        graph_folder(search)
        if rescorer is not None:
            options, rescorer = rescorer.tuned(run, models, search, options, request.dev, scratch)
    with timed("features"):
        feats = models.features(corpus, scratch)
    pairs, count = models.all_scores(feats), len(feats[0])
    common: dict[str, Any] = {"model": str(run.stem), "weights": run.weights}
    common |= {"with": [str(other.stem) for other in others]} if others else {}
    common |= {"left_out": _left_out(run, corpus, feats[0])}
    if search is None:
        with timed(f"recognising {counted(count, 'utterance')}"):
            return _by_best_path(run, corpus, pairs, common)
    with bar_of() as progress:
        shown = partial(_advance, progress, progress.add_task("decoding"), count)
        found = search.decode(pairs, options, scratch, shown)
    made = _result(run, search, corpus, found, {**common, **_facts(found, options, request, run)})
    return made if rescorer is None else _rescored(run, search, corpus, found, made, rescorer)


def _check_settings(run: TrainedRun, request: SearchRequest) -> None:
    """Check that a search in a graph has an acoustic scale."""
    known = {**scales_of(run.folder), **request.changes}
    if not request.is_best_path(run.graphs) and request.search_dev is None and "acoustic_scale" not in known:
        raise SettingError(f"{no_scale(run.graphs)}, or tune it: --dev dev")


def _warn_of_common(run: TrainedRun, dev: str | None, corpus: Corpus, data: str) -> None:
    """Warn of utterances that are scored and also tune the settings: their error rate is not one of other speech."""
    common = 0 if dev is None else len(corpus.texts.keys() & run.corpus(dev).texts.keys())
    if common:
        told = counted(common, "utterance")
        log.warning("%s of --data %s %s in --dev %s too, which tunes the settings", told, data, are(common), dev)


def _advance(progress: Progress, bar: TaskID, count: int, done: int, known: int) -> None:
    """Show how much is done, without results of an earlier start, which tell nothing about the time left."""
    progress.update(bar, total=count - known, completed=done - known)


def _left_out(run: TrainedRun, corpus: Corpus, feats: Container[str]) -> dict[str, str]:
    """Reason of each utterance that is not decoded: its data cannot be used, or it has no features.

    Those without features have a transcript, so a warning says that all their words count as deleted.
    """
    reasons = {problem.utterance: problem.what for problem in corpus.problems}
    without = {u.id: _why_without(run, u) for u in corpus.utterances if u.id not in feats}
    if without:
        log.warning(
            "%s; each has an empty hypothesis, and its words count as deleted",
            left_out("utterance", list(without.items()), len(corpus)),
        )
    return {**reasons, **without}


def _why_without(run: TrainedRun, utterance: Utterance) -> str:
    """Reason why an utterance has no features."""
    more = run.acoustic.speakers
    for front in (run.acoustic.front, *(() if more is None else (more.front,))):
        try:
            features_of(utterance, front)
        except CorpusError as error:
            return str(error)
    return "it has no features"


def _rescored(
    run: TrainedRun, search: WordSearch, corpus: Corpus, found: Decoded, made: Decoding, rescorer: Rescorer
) -> Decoding:
    """The result with the hypotheses that the language model chooses; it also tells the error rate before."""
    with timed(f"rescoring {counted(len(found.lists), 'utterance')}"):
        again = _result(run, search, corpus, rescorer.chosen(found), {**made.facts, **rescorer.facts})
    before = tuple(f"before rescoring: {line}" for line in made.lines[1:])
    return replace(again, lines=(again.lines[0], *before, *again.lines[1:]))


def _result(run: TrainedRun, search: WordSearch, corpus: Corpus, found: Decoded, facts: Mapping[str, Any]) -> Decoding:
    """Texts, times and error rate of the best hypotheses."""
    columns = np.array(StoredGraph.of(search.folder).columns, dtype=np.int32)
    units = run.graphs.units
    words = words_of(found, search.spans(columns)) if units is None or is_sided(corpus) else {}
    made = _of_words(run, corpus, found.texts, words, {**facts, "partial": list(found.partial)})
    timed_words = word_lines(words, _frame_seconds(run)) if units is None else None
    summary = found.summary(run.acoustic.frames_per_second)
    return replace(made, word_lines=timed_words, lines=(summary, *made.lines))


def _by_best_path(
    run: TrainedRun, corpus: Corpus, pairs: Iterable[tuple[str, np.ndarray]], common: Mapping[str, Any]
) -> Decoding:
    recogniser = CtcBestPath(run.units)
    words = {
        name: [(word.word, word.first, word.end) for word in recogniser(scores_UC)[0]] for name, scores_UC in pairs
    }
    texts = {name: " ".join(word for word, _, _ in found) for name, found in words.items()}
    facts = {**common, "search": "best path"}
    return _of_words(run, corpus, texts, None if run.units.kind == "phone" else words, facts)


def _of_words(
    run: TrainedRun, corpus: Corpus, texts: Mapping[str, str], words: Words | None, facts: Mapping[str, Any]
) -> Decoding:
    """Hypotheses of all utterances in byte order, their error rate, and times of words in the recordings.

    Utterances without features were spoken too: theirs are empty. Units that are no words (None) have no error rate,
    and neither has data without transcripts.
    """
    texts = {name: texts.get(name, "") for name in sorted(corpus.texts, key=str.encode)}
    rate = None
    if words is not None and any(corpus.texts.values()):
        rate = score({name: corpus.texts[name] for name in texts}, texts)
    lines = () if rate is None else (f"{rate}; {run.weights}",)
    sided = words is not None and is_sided(corpus)
    placed = recording_lines(corpus, words or {}, _frame_seconds(run)) if sided else None
    return Decoding(texts, None, lines, {**facts, "wer": None if rate is None else rate.percent}, placed)


def _frame_seconds(run: TrainedRun) -> float:
    return run.acoustic.front.frame_shift_seconds * run.stack


def is_sided(corpus: Corpus) -> bool:
    """True if all utterances name their recording and its channel."""
    return all(u.audio is not None and u.audio.side is not None for u in corpus.utterances)


def words_of(found: Decoded, spans: Spans) -> Words:
    """Return the words of each utterance with their frames.

    Words of an incomplete search have no known times; they are spread evenly over its frames.
    """
    words = {}
    for utterance, hypothesis in found.hypotheses.items():
        count = len(hypothesis.words)
        even = [k * len(hypothesis.labels) // count for k in range(count)]
        at = spans(hypothesis, even)
        words[utterance] = [(word, *span) for word, span in zip(hypothesis.words, at, strict=True)]
    return words


def word_lines(words: Words, frame_seconds: float) -> tuple[str, ...]:
    """CTM lines of the words of all utterances, in the utterances' time."""
    return tuple(
        _line(utterance, "1", first * frame_seconds, (end - first) * frame_seconds, word)
        for utterance, own in words.items()
        for word, first, end in own
    )


def recording_lines(corpus: Corpus, words: Words, frame_seconds: float) -> tuple[str, ...]:
    """CTM lines in the recordings' time, ordered by file, channel and time."""
    rows = list[tuple[str, str, float, float, str]]()
    for utterance in corpus.utterances:
        audio = utterance.audio
        assert audio is not None
        assert audio.side is not None  # see is_sided
        for word, first, end in words.get(utterance.id, ()):
            begin = audio.start_seconds + first * frame_seconds
            rows.append((*audio.side, begin, (end - first) * frame_seconds, word))
    return tuple(_line(*row) for row in sorted(rows, key=lambda row: row[:3]))


def _line(file: str, channel: str, begin_seconds: float, seconds: float, word: str) -> str:
    return f"{file} {channel} {begin_seconds:.3f} {seconds:.3f} {word}\n"


def _facts(found: Decoded, options: DecodeOptions, request: SearchRequest, run: TrainedRun) -> dict[str, Any]:
    """Settings and speed of a search."""
    own = {} if request.named is None else {"grammar": request.named}
    settings = {field: getattr(options, field) for field in SETTINGS}
    speed = found.real_time_factor(run.acoustic.frames_per_second)
    return {**own, "search": settings, "real_time_factor": speed}
