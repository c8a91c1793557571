"""Decodes a set of utterances with a trained run: texts, times, error rate, settings and speed."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress, TaskID

from murmur.core.counted import are, counted
from murmur.core.errors import SettingError
from murmur.execution.processes import bar_of
from murmur.recognition.recording_words import Word, is_sided, recording_lines, words_of
from murmur.recognition.rescoring import Rescorer, RescoringRequest, opened_rescorer
from murmur.recognition.run_records import SETTINGS, scales_of
from murmur.recognition.trained_run import TrainedRun, no_scale
from murmur.recognition.tuning import SearchRequest, graph_folder
from murmur.run.timed import timed
from murmur.speech.corpus.corpus import Corpus, CorpusError, Utterance
from murmur.speech.corpus.left_out import left_out as told_left_out
from murmur.speech.decoding.decode_set import Decoded
from murmur.speech.decoding.decoder import DecodeOptions
from murmur.speech.decoding.graph_store import StoredGraph
from murmur.speech.decoding.recogniser import CtcBestPath
from murmur.speech.decoding.wer import score
from murmur.speech.features.analysis import features_of
from murmur.tasks.word_search import WordSearch

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Decoding:
    """Results of a set.

    Attributes:
        texts: hypothesis of every utterance; empty for one without features.
        word_lines: CTM lines; None for units without lengths, such as the spikes of CTC.
        lines: lines for people.
        facts: settings, speed and error rate, in JSON's terms.
        recording_lines: CTM lines in the recordings' time; None for data whose recordings have no named channels.
    """

    texts: Mapping[str, str]
    word_lines: tuple[str, ...] | None
    lines: tuple[str, ...]
    facts: Mapping[str, Any]
    recording_lines: tuple[str, ...] | None = None


def decoded(
    run: TrainedRun,
    request: SearchRequest,
    data: str,
    scratch: Path,
    others: Sequence[TrainedRun] = (),
    rescoring: RescoringRequest | None = None,
) -> Decoding:
    """Decode a part of the run's corpus or other data; features and results so far are stored in `scratch`.

    With `others`, scores are means over the run and these. Graph and search settings are those of `run`. With
    `rescoring`, a language model chooses among the best hypotheses of each utterance.

    Raises:
        SettingError, CorpusError: the settings do not fit the search, the data cannot be used, or other runs do not.
    """
    check_settings(run, request)
    models = run.with_others(others)
    corpus = run.corpus(data)
    warn_of_common(run, request.dev, corpus, data)
    rescorer = None if rescoring is None else opened_rescorer(rescoring, run, request, others)
    search, options = run.searched(request, models, scratch)
    if search is not None:
        _ = graph_folder(search)
        if rescorer is not None:
            options, rescorer = rescorer.tuned(run, models, search, options, request.dev, scratch)
    with timed("features"):
        feats = models.features(corpus, scratch)
    pairs, count = models.all_scores(feats), len(feats[0])
    common = _models(run, others) | {"left_out": left_out(run, corpus, feats[0])}
    if search is None:
        with timed(f"recognising {counted(count, 'utterance')}"):
            return _by_best_path(run, corpus, pairs, common)
    with bar_of() as progress:
        found = search.decode(
            pairs, options, scratch, partial(_advance, progress, progress.add_task("decoding"), count)
        )
    made = _result(run, search, corpus, found, {**common, **_facts(found, options, request, run)})
    return made if rescorer is None else _rescored(run, search, corpus, found, made, rescorer)


def _advance(progress: Progress, bar: TaskID, count: int, done: int, known: int) -> None:
    """Show how much is done, without results of an earlier start, which tell nothing about the time left."""
    progress.update(bar, total=count - known, completed=done - known)


def _models(run: TrainedRun, others: Sequence[TrainedRun]) -> dict[str, Any]:
    """Names of the models that decode, in JSON's terms."""
    found: dict[str, Any] = {"model": str(run.stem), "weights": run.weights}
    return found | ({"with": [str(other.stem) for other in others]} if others else {})


def left_out(run: TrainedRun, corpus: Corpus, feats: Container[str]) -> dict[str, str]:
    """Reason of each utterance that is not decoded: its data cannot be used, or it has no features.

    Those without features have a transcript, so a warning says that all their words count as deleted.
    """
    reasons = {problem.utterance: problem.what for problem in corpus.problems}
    without = {u.id: _why_without(run, u) for u in corpus.utterances if u.id not in feats}
    if without:
        log.warning(
            "%s; each has an empty hypothesis, and its words count as deleted",
            told_left_out("utterance", list(without.items()), len(corpus)),
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


def warn_of_common(run: TrainedRun, dev: str | None, corpus: Corpus, data: str) -> None:
    """Warn of utterances that are scored and also tune the settings: their error rate is not one of other speech."""
    common = 0 if dev is None else len(corpus.texts.keys() & run.corpus(dev).texts.keys())
    if common:
        told = counted(common, "utterance")
        log.warning("%s of --data %s %s in --dev %s too, which tunes the settings", told, data, are(common), dev)


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
    texts = _of_all(corpus, found.texts)
    lines, percent = _rate(corpus.texts, texts, run.weights)
    summary = found.summary(run.acoustic.frames_per_second)
    words = None if run.graphs.units is not None else tuple(word_lines(run, search, found))
    placed = None
    if is_sided(corpus):
        spans = search.spans(StoredGraph.of(search.folder).read().columns)
        placed = recording_lines(corpus, words_of(found, spans), _frame_seconds(run))
    changed = {**facts, "partial": list(found.partial), "wer": percent}
    return Decoding(texts, words, (summary, *lines), changed, placed)


def _by_best_path(
    run: TrainedRun, corpus: Corpus, pairs: Iterable[tuple[str, np.ndarray]], common: Mapping[str, Any]
) -> Decoding:
    units = run.graphs.units
    assert units is not None  # networks without units have no best path
    are_words, recogniser = units.kind != "phone", CtcBestPath(units)
    texts, words = dict[str, str](), dict[str, list[Word]]()
    for name, scores_UC in pairs:
        texts[name] = run.best_path(scores_UC)
        words[name] = [(word.word, word.first, word.end) for word in recogniser(scores_UC)[0]]
    texts = _of_all(corpus, texts)
    lines, percent = _rate(corpus.texts if are_words else {}, texts, run.weights)
    placed = recording_lines(corpus, words, _frame_seconds(run)) if are_words and is_sided(corpus) else None
    return Decoding(texts, None, lines, {**common, "search": "best path", "wer": percent}, placed)


def _of_all(corpus: Corpus, texts: Mapping[str, str]) -> dict[str, str]:
    """Hypotheses of all utterances in byte order; those without features were spoken too, and theirs are empty."""
    return {name: texts.get(name, "") for name in sorted(corpus.texts, key=str.encode)}


def _frame_seconds(run: TrainedRun) -> float:
    return run.acoustic.front.frame_shift_seconds * run.stack


def check_settings(run: TrainedRun, request: SearchRequest) -> None:
    """Check that a search in a graph has an acoustic scale.

    Raises:
        SettingError: it has none.
    """
    known = {**scales_of(run.folder), **request.changes}
    if not request.is_best_path(run.graphs) and request.search_dev is None and "acoustic_scale" not in known:
        raise SettingError(f"{no_scale(run.graphs)}, or tune it: --dev dev")


def word_lines(run: TrainedRun, search: WordSearch, found: Decoded) -> Iterator[str]:
    """CTM lines of all words of the texts; those of partial hypotheses have the times of `words_of`."""
    spans = search.spans(StoredGraph.of(search.folder).read().columns)
    frame_seconds = _frame_seconds(run)
    for utterance, words in words_of(found, spans).items():
        for word, first, end in words:
            yield f"{utterance} 1 {first * frame_seconds:.3f} {(end - first) * frame_seconds:.3f} {word}\n"


def _facts(found: Decoded, options: DecodeOptions, request: SearchRequest, run: TrainedRun) -> dict[str, Any]:
    """Settings and speed of a search."""
    own = {} if request.named is None else {"grammar": request.named}
    settings = {field: getattr(options, field) for field in SETTINGS}
    speed = found.real_time_factor(run.acoustic.frames_per_second)
    return {**own, "search": settings, "real_time_factor": speed}


def _rate(
    references: Mapping[str, str], texts: Mapping[str, str], weights: str
) -> tuple[tuple[str, ...], float | None]:
    """Line with the error rate, and the rate in percent; nothing if the data has no transcripts."""
    if not any(references.values()):
        return (), None
    rate = score({name: references[name] for name in texts}, texts)
    return (f"{rate}; {weights}",), rate.percent
