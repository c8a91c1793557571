"""Search of a command line: its request, the scores that it reads, and settings tuned on development data.

Several networks with the same outputs decode together by the mean of their log posteriors:

    s(t, c) = 1/M sum_m [ln p_m(c | x_t) - ln p_m(c)]

Up to a constant per frame, which no search sees, this is ln of the normalised geometric mean of the posteriors, less
the mean log prior. Networks without a prior (CTC) have log posteriors alone.

Shapes: U output frames, C columns of the networks.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import nn

from murmur.core.counted import counted
from murmur.core.errors import SettingError
from murmur.run.timed import timed
from murmur.speech.corpus.corpus import Corpus
from murmur.speech.decoding.decoder import DecodeOptions
from murmur.speech.language_model.grammar import sayable_words
from murmur.speech.recognition.run_records import SETTINGS
from murmur.speech.tasks.acoustic_model import AcousticModel
from murmur.speech.tasks.graph_sources import GraphSources
from murmur.speech.tasks.prepare_data import check_data
from murmur.speech.tasks.speaker_inputs import Estimate
from murmur.speech.tasks.vocabulary import Vocabulary, check_known
from murmur.speech.tasks.word_search import WordSearch, several

log = logging.getLogger(__name__)
PARTS = ("train", "dev", "test")
TUNED = ("acoustic_scale", "insertion_penalty")
RETRIES = 3  # of a beam of 13: 130, 1300, 13000
Features = Sequence[Mapping[str, np.ndarray]]  # of each model: {utterance: feats_TF}


@dataclass(frozen=True)
class SearchRequest:
    """Search options of a command line."""

    grammar: str | Vocabulary | None  # None for the run's grammar
    dev: str | None  # development data for tuning; None keeps the run's values
    changes: Mapping[str, Any]  # settings of DecodeOptions
    tunes: Literal["search", "weight"] = "search"  # "weight" for that of a rescoring model alone

    @property
    def search_dev(self) -> str | None:
        """Development data for tuning scale and word cost."""
        return self.dev if self.tunes == "search" else None

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
    if isinstance(request.grammar, Vocabulary):
        _ = request.grammar.content
    elif request.grammar is not None:
        graphs.check_grammar(request.grammar, "--grammar")
    dev, best_path = request.dev, request.is_best_path(graphs)
    if best_path and request.changes:
        raise SettingError("a best path has no scale, penalty, beam or states to set: give a --grammar, such as loop")
    if dev is None:
        return
    if best_path:
        raise SettingError("--dev: a best path has no scale to tune: give a --grammar, --lm or --words too")
    if request.search_dev is not None and set(TUNED) & set(request.changes):
        raise SettingError("--dev tunes the scale and the word cost: leave --scale and --penalty out")
    if dev in ("test", "train"):
        raise SettingError(f"--dev {dev}: settings that are tuned on {dev} say nothing about other speech: take dev")
    if dev not in PARTS:
        check_data(dev)


def to_the_end(options: DecodeOptions, grammar: str | Vocabulary | None) -> DecodeOptions:
    """Settings with enough retries that a search in a user's grammar of sentences ends in a complete sentence."""
    own = isinstance(grammar, Vocabulary) and grammar.kind == "grammar"
    return replace(options, retries=RETRIES) if own else options


@dataclass(frozen=True, eq=False)
class MeanScores:
    """Mean scores of one or more models."""

    models: tuple[tuple[AcousticModel, nn.Module], ...]  # acoustic models with their networks; at least one
    # function of each model that estimates transforms of speakers; None for models that need none
    estimates: tuple[Estimate | None, ...]

    def features(self, corpus: Corpus, cache: Path) -> Features:
        """Inputs of the networks for a corpus; analyses are stored in `cache`.

        Raises:
            CorpusError: audio is missing, damaged or at another rate, or there are no features of this size.
        """
        pairs = zip(self.models, self.estimates, strict=True)
        return [acoustic.features(corpus, cache, estimate) for (acoustic, _), estimate in pairs]

    def of_some(self, corpus: Corpus, cache: Path, every: int) -> Iterator[tuple[str, np.ndarray]]:
        """Pairs of utterance and mean scores_UC for every n-th utterance of a corpus."""
        feats = self.features(corpus, cache)
        names = [name for name in list(corpus.texts)[::every] if name in feats[0]]
        return self.all_scores([{name: own[name] for name in names} for own in feats])

    def all_scores(self, feats: Features) -> Iterator[tuple[str, np.ndarray]]:
        """Pairs of utterance and mean scores_UC, computed as they are taken.

        Raises:
            SettingError: the models have scores of other shapes for an utterance, or one has no features of it.
        """
        (first, network), *others = self.models
        for name, own_UC in first.all_scores(network, feats[0]):
            rows = [own_UC]
            for (acoustic, other), theirs in zip(others, feats[1:], strict=True):
                if name not in theirs:
                    raise SettingError(
                        f"--with: {name} has features for one model and none for another: decode it with each alone"
                    )
                rows.append(acoustic.scores(other, theirs[name]))
                if rows[-1].shape != own_UC.shape:
                    raise SettingError(
                        f"--with: {name} has scores of shapes {own_UC.shape} and {rows[-1].shape} (frames, outputs):"
                        " models that decode together need equal frames"
                    )
            yield name, np.stack(rows).mean(0, dtype=np.float32) if others else own_UC


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
    texts = corpus.texts
    if not any(text.split() for text in texts.values()):
        raise SettingError(f"--dev {dev} has no transcribed word to tune on")
    check_known(texts, sayable_words(search.words[0]), f"--dev {dev}")
    graph_folder(search)
    stored = tempfile.TemporaryDirectory() if kept is None else nullcontext(str(kept))
    with stored as folder, timed(f"trying scales on {counted(len(texts), 'utterance')}"):
        scores = dict(models.of_some(corpus, Path(folder), search.sources.tune_every))
        found = search.tune(several(search.sources), scores, {name: texts[name] for name in scores}, kept)
    settings = {name: getattr(found, name) for name in SETTINGS}
    log.info(
        "tuned on %s; to use it again: --scale %g --penalty %g",
        *(dev, settings["acoustic_scale"], settings["insertion_penalty"]),
    )
    return settings
