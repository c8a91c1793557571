"""Search settings for a user's own grammar: tuned on a development set, or taken from the run."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from murmur.core.counted import counted
from murmur.core.errors import SettingError
from murmur.recognition.mean_scores import MeanScores
from murmur.recognition.run_records import SETTINGS
from murmur.run.timed import timed
from murmur.speech.corpus.corpus import Corpus
from murmur.speech.decoding.decoder import DecodeOptions
from murmur.speech.language_model.grammar import sayable_words
from murmur.tasks.known_words import check_known
from murmur.tasks.prepare_data import check_data
from murmur.tasks.vocabulary import Vocabulary
from murmur.tasks.word_search import GraphSources, WordSearch, several

log = logging.getLogger(__name__)
PARTS = ("train", "dev", "test")
TUNED = ("acoustic_scale", "insertion_penalty")
RETRIES = 3  # of a beam of 13: 130, 1300, 13000


@dataclass(frozen=True)
class SearchRequest:
    """Search options of a command line.

    Attributes:
        grammar: Name of a grammar, or the user's own vocabulary; None for the run's grammar.
        dev: Development data for tuning; None keeps the run's values.
        given: Values by their names in DecodeOptions; None for those that are not given.
        tunes: "search" for scale and word cost, and the weight of a rescoring model; "weight" for this weight alone.
    """

    grammar: str | Vocabulary | None
    dev: str | None
    given: Mapping[str, float | None]
    tunes: Literal["search", "weight"] = "search"

    @property
    def search_dev(self) -> str | None:
        """Development data for tuning scale and word cost."""
        return self.dev if self.tunes == "search" else None

    @property
    def changes(self) -> dict[str, float]:
        """Settings with a value on the command line."""
        return {name: value for name, value in self.given.items() if value is not None}

    @property
    def named(self) -> str | None:
        """Name or file of the grammar; None for the run's own."""
        return str(self.grammar.source) if isinstance(self.grammar, Vocabulary) else self.grammar

    def is_best_path(self, graphs: GraphSources) -> bool:
        """True if a network is decoded without a graph."""
        return (self.grammar or graphs.search.grammar) == graphs.best_path


def check_request(graphs: GraphSources, request: SearchRequest) -> None:
    """Check the grammar, that its search has the settings, and, if tuning is requested, that it is possible.

    Raises:
        SettingError, CorpusError: there is no such grammar or data, or there is nothing to set or to tune.
    """
    check_grammar(graphs, request.grammar)
    if request.is_best_path(graphs) and request.changes:
        raise SettingError("a best path has no scale, penalty, beam or states to set: give a --grammar, such as loop")
    dev = request.dev
    if dev is None:
        return
    if request.is_best_path(graphs):
        raise SettingError("--dev: a best path has no scale to tune: give a --grammar, --lm or --words too")
    if request.search_dev is not None and set(TUNED) & set(request.changes):
        raise SettingError("--dev tunes the scale and the word cost: leave --scale and --penalty out")
    if dev in ("test", "train"):
        raise SettingError(f"--dev {dev}: settings that are tuned on {dev} say nothing about other speech: take dev")
    if dev not in PARTS:
        check_data(dev)


def check_grammar(graphs: GraphSources, grammar: str | Vocabulary | None) -> None:
    """Check that the grammar exists, and that the file of a user's own grammar is readable.

    Raises:
        ValueError: the grammar is missing or wrong; names the problem.
    """
    if isinstance(grammar, Vocabulary):
        _ = grammar.content
    elif grammar is not None:
        graphs.check_grammar(grammar, "--grammar")


def to_the_end(options: DecodeOptions, grammar: str | Vocabulary | None) -> DecodeOptions:
    """Settings with enough retries that a search in a user's grammar of sentences ends in a complete sentence."""
    own = isinstance(grammar, Vocabulary) and grammar.kind == "grammar"
    return replace(options, retries=RETRIES) if own else options


@contextmanager
def stored_in(kept: Path | None) -> Iterator[Path]:
    """Context with the folder `kept`, or with a temporary one."""
    if kept is not None:
        yield kept
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield Path(scratch)


def graph_folder(search: WordSearch) -> Path:
    """Folder of the graph of a search; builds it with a progress bar if it is missing."""
    with timed("lexicon and grammar"):
        _ = search.key
    return search.folder


def tuned(
    search: WordSearch, models: MeanScores, corpus: Corpus, dev: str, kept: Path | None = None
) -> dict[str, float]:
    """Search settings with the fewest errors on development data, which is named `dev`.

    Features and decoded utterances are stored in `kept`, where a later call finds them; None stores nothing.

    Raises:
        SettingError: no word of the development data is in the vocabulary.
    """
    texts, every = corpus.texts, search.sources.tune_every
    if not any(text.split() for text in texts.values()):
        raise SettingError(f"--dev {dev} has no transcribed word to tune on")
    check_known(texts, sayable_words(search.words[0]), f"--dev {dev}")
    _ = graph_folder(search)
    with stored_in(kept) as folder, timed(f"trying scales on {counted(len(texts), 'utterance')}"):
        feats = models.features(corpus, folder)
        tried = [name for name in list(texts)[::every] if name in feats[0]]
        scores = dict(models.all_scores([{name: own[name] for name in tried} for own in feats]))
        found = search.tune(several(search.sources), scores, {name: texts[name] for name in tried}, kept)
    settings = {name: getattr(found, name) for name in SETTINGS}
    log.info(
        "tuned on %s; to use it again: --scale %g --penalty %g",
        *(dev, settings["acoustic_scale"], settings["insertion_penalty"]),
    )
    return settings
