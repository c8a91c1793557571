"""Search graphs that are built in preparation, beside its other work, so that decoding finds them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from murmur.speech.decoding.graph import DecodingGraph, Tell
from murmur.speech.decoding.graph_build import building, graph_bar
from murmur.tasks.word_search import READ_ONLY, WordSearch

log = logging.getLogger(__name__)


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
