"""Search for words: a decoding graph made from its sources, its settings tuned on dev, sets decoded with it."""

from __future__ import annotations

import logging
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from murmur.core.errors import READ_ONLY
from murmur.execution.executors import Jobs
from murmur.speech.decoding.decode_set import Decoded, Scores, decode_set
from murmur.speech.decoding.decoder import DecodeOptions
from murmur.speech.decoding.graph import DecodingGraph, Tell
from murmur.speech.decoding.graph_store import (
    Build,
    build_graph,
    building,
    ensure_graph,
    graph_bar,
    graph_is_there,
    is_large,
)
from murmur.speech.decoding.recogniser import Spans
from murmur.speech.decoding.tuning import DevelopmentSet, Trial, middle_of_best, tune_acoustic_scale, tune_beam, widened
from murmur.speech.language_model.grammar import Grammar
from murmur.speech.lexicon.lexicon import Lang
from murmur.speech.tasks.graph_sources import TOLERANCE_PERCENT, GraphSources, Search, first_options
from murmur.speech.tasks.vocabulary import Vocabulary

log = logging.getLogger(__name__)
FREE_PENALTIES = (0.0, 1.0, -1.0)  # tried if the experiment fixes the word cost for its own grammar


@dataclass(frozen=True, eq=False)
class WordSearch:
    """Search with one grammar.

    Attributes:
        grammar: name of a grammar, or the user's own vocabulary.
        frames_per_second: rate of the scores.
    """

    sources: GraphSources
    grammar: str | Vocabulary
    cache: Path
    jobs: Jobs = 1
    frames_per_second: float = 100.0

    @cached_property
    def words(self) -> tuple[Lang, Grammar]:
        return self.sources.words(self.grammar)

    @cached_property
    def folder(self) -> Path:
        """Folder of the decoding graph, which is built if it is missing, with a progress bar.

        If the cache cannot be written, as in a run on a read-only file system, the graph is built in a temporary
        folder, which is removed with this search or at the end of the process.
        """
        try:
            return self.build()
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
            log.info("%s cannot be written (%s): the graph is built in a temporary folder", self.cache, error.strerror)
        scratch = Path(tempfile.mkdtemp(prefix="murmur-graph-"))
        weakref.finalize(self, shutil.rmtree, scratch, ignore_errors=True)
        return self._build_in(scratch, partial(self._made, scratch))

    def build(self, make: Callable[[], DecodingGraph] | None = None) -> Path:
        """Build the graph in the cache if it is missing, by `make` if it is given; return its folder."""
        return self._build_in(self.cache, make or partial(self._made, self.cache))

    def _build_in(self, cache: Path, make: Callable[[], DecodingGraph]) -> Path:
        folder = self._place_in(cache)
        ensure_graph(folder, self.key, make)
        return folder

    def _made(self, scratch: Path) -> DecodingGraph:
        with graph_bar() as tell:
            return build_graph(self.builds, self.words[1], scratch, tell)

    def _place_in(self, cache: Path) -> Path:
        return cache / f"graph-{self.key[:16]}"

    @cached_property
    def key(self) -> str:
        return self.sources.key(*self.words)

    @property
    def place(self) -> Path:
        """Folder of the graph in the cache, whether it is there or not."""
        return self._place_in(self.cache)

    @property
    def is_built(self) -> bool:
        return graph_is_there(self.place, self.key)

    @property
    def is_large(self) -> bool:
        return is_large(self.words[1])

    @property
    def builds(self) -> Build:
        return partial(self.sources.build, *self.words)

    @property
    def built(self) -> Path | None:
        """Folder of the decoding graph if this search has built or found it."""
        return self.__dict__.get("folder")

    def spans(self, columns: np.ndarray) -> Spans:
        """Rule that finds the frames of words on a path; `columns` holds the scores' column of each input label."""
        return self.sources.spans(self.words[0], columns)

    def decode(
        self,
        scores: Scores,
        options: DecodeOptions,
        kept: Path | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Decoded:
        """The best words of every utterance; results are saved in the folder `kept` as they are made."""
        return decode_set(self.folder, scores, options, self.jobs, progress, kept)

    def tune(
        self,
        settings: Search,
        scores: Mapping[str, np.ndarray],
        references: Mapping[str, str],
        kept: Path | None = None,
        name: str = "network",
    ) -> DecodeOptions:
        """Penalty and scale with the fewest errors on dev, and the fastest beam that is as good as the widest.

        Among equal penalties the first is taken, among equal scales the middle one: on small sets many are equal, and
        the ends of such a range lie next to worse ones. Of three scales and more, the range is widened while the best
        one is at an end, with the best penalty.

        Args:
            settings: values to try.
            scores: (U, C) scores of the dev utterances.
            references: their transcripts.
            kept: folder where results are saved as they are made.
            name: name of the system in log lines.
        """
        development = DevelopmentSet(self.folder, scores, references, self.jobs, self.frames_per_second, kept)
        first, found = first_options(settings), []
        for penalty in settings.insertion_penalties:
            _, trials = tune_acoustic_scale(development, settings.scales, replace(first, insertion_penalty=penalty))
            found.append(trials)
            _log_trials(name, trials)
        trials = min(found, key=lambda trials: middle_of_best(trials).rate.errors)
        best = _widely(development, trials, name) if len(trials) > 2 else middle_of_best(trials)
        if len(settings.beams) > 1:
            best, trials = tune_beam(development, settings.beams, best.options, TOLERANCE_PERCENT)
            _log_trials(name, trials)
        return best.options


def several(sources: GraphSources) -> Search:
    """Return the search with several scales and word costs, even if the experiment fixes them for its own grammar."""
    search = sources.search
    scales = search.scales if len(search.scales) > 1 else sources.free_scales
    penalties = search.insertion_penalties if len(search.insertion_penalties) > 1 else FREE_PENALTIES
    return replace(search, scales=scales, insertion_penalties=penalties)


def _widely(development: DevelopmentSet, trials: Sequence[Trial], name: str) -> Trial:
    every = widened(development, trials)
    _log_trials(name, [trial for trial in every if trial not in trials])
    best = middle_of_best(every)
    if best in (every[0], every[-1]):
        log.warning("%s: scale %g is at the end of the tried range", name, best.options.acoustic_scale)
    return best


def _log_trials(name: str, trials: Sequence[Trial]) -> None:
    for trial in trials:
        log.info("%s, dev: %s", name, trial)


@contextmanager
def graphs_beside(searches: Sequence[WordSearch]) -> Iterator[None]:
    """Build the missing graphs of searches while the block runs, and wait for them at its end with a bar.

    A cache that cannot be written stays without them.
    """
    missing = {search.place: search for search in searches if not search.is_built}
    large = [search for search in missing.values() if search.is_large]
    for search in missing.values():
        if search not in large:
            _try(lambda search=search: search.build())  # type: ignore[misc]
    if not large or not _try(lambda: large[0].cache.mkdir(parents=True, exist_ok=True)):
        yield
        return
    with building([search.builds for search in large], large[0].cache) as results:
        yield
        for search, result in zip(large, results, strict=True):
            search.build(_shown(result))


def _shown(result: Callable[[Tell], DecodingGraph]) -> Callable[[], DecodingGraph]:
    def wait() -> DecodingGraph:
        with graph_bar() as tell:
            return result(tell)

    return wait


def _try(action: Callable[[], object]) -> bool:
    """Do something in a cache; False if it cannot be written."""
    try:
        action()
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise
        log.info("the search graph is built when it is needed: %s", error)
        return False
    return True
