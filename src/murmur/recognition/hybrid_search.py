"""Decodes any speech with the network of a hybrid experiment: graph, scores, and times of words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress
from torch import nn

from murmur.run.timed import timed
from murmur.speech.corpus.corpus import Corpus
from murmur.speech.decoding.decode_set import Decoded, decode_set
from murmur.speech.decoding.decoder import DecodeOptions, Hypothesis
from murmur.speech.decoding.word_times import WordTimer
from murmur.speech.hmm import hybrid
from murmur.speech.language_model.grammar import Grammar
from murmur.speech.lexicon.lexicon import Lang
from murmur.tasks.hybrid.config import Decoding, Search, first_options
from murmur.tasks.hybrid.decode import DecodeHalf, System
from murmur.tasks.hybrid.hmm import Stage
from murmur.tasks.hybrid.task import HybridTask
from murmur.tasks.vocabulary import Vocabulary

FRAME_SECONDS = 0.01


@dataclass(frozen=True)
class HybridSearch:
    """Search with a network over the states of a hybrid task.

    Attributes:
        task: Task of the network's training.
        network: Network that maps feats_NTF to logits_NTC.
        grammar: Name of another grammar, or the user's own vocabulary; None for the task's grammar.
        kept: Folder that saves results as they are made; None saves nothing.
    """

    task: HybridTask
    network: nn.Module
    grammar: str | Vocabulary | None = None
    kept: Path | None = None

    @cached_property
    def stage(self) -> Stage:
        """Gaussian system with the states of the network."""
        return self.task.hmms.trained[-1]

    @cached_property
    def half(self) -> DecodeHalf:
        """Grammars and graphs of the set."""
        task = self.task
        silence = task.decoding.silence_probability
        if silence is None:
            silence = self.stage.silence_share(task.material.train.texts)
        return DecodeHalf(task.material, task.decoding, silence, task.cache, task.jobs, self.kept)

    @cached_property
    def words(self) -> tuple[Lang, Grammar]:
        """Vocabulary of decoding and its grammar.

        Raises:
            ValueError: there is no such grammar, or some words have no pronunciation.
        """
        return self.half.words(self.stage.model.lang, self.grammar or self.task.decoding.network.grammar)

    @cached_property
    def folder(self) -> Path:
        """Folder of the decoding graph, which is built if it is missing."""
        return self.half.graph(self.stage.model, *self.words)

    @property
    def timer(self) -> WordTimer:
        """Finder of the words' times."""
        lang, _ = self.words
        return WordTimer.of(lang, self.stage.model.transitions)

    @property
    def widest(self) -> DecodeOptions:
        """Settings of the widest search that the experiment tries."""
        return first_options(self.task.decoding.network)

    def decode(self, corpus: Corpus, options: DecodeOptions) -> Decoded:
        """Find the best hypothesis of each utterance, with a progress bar.

        Raises:
            ValueError: there is no such grammar, or features do not fit the network.
        """
        with timed("decoding graph"):
            graph = self.folder
        with timed("features"):
            feats = self.task.hmms.network_features(corpus)
        with Progress(console=Console(stderr=True)) as progress:
            bar = progress.add_task("decoding", total=len(feats))
            return decode_set(
                graph,
                self._scores(feats),
                options,
                self.task.jobs,
                lambda done: progress.update(bar, completed=done),
                self.kept,
            )

    def tune(self, dev: Corpus) -> DecodeOptions:
        """Return the settings with the fewest errors on these utterances, of those that the experiment tries."""
        with timed("decoding graph"):
            graph = self.folder
        with timed(f"trying scales on {len(dev.texts)} utterances"):
            scores = partial(self._score, self.task.hmms.network_features(dev))
            system = System("network", self.stage.model, several(self.task.decoding.network), {"dev": scores})
            return self.half.tune(system, graph, dev)

    def _scores(self, feats: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
        for name in feats:
            yield name, self._score(feats, name)

    def _score(self, feats: Mapping[str, np.ndarray], name: str) -> np.ndarray:
        return hybrid.log_likelihoods(self.network, feats[name], self.task.targets.log_prior)


def several(search: Search) -> Search:
    """Return the search with several scales and word costs, even if the experiment fixes them for its own grammar."""
    scales = search.scales if len(search.scales) > 1 else Decoding().network.scales
    penalties = search.insertion_penalties if len(search.insertion_penalties) > 1 else (0.0, 1.0, -1.0)
    return replace(search, scales=scales, insertion_penalties=penalties)


def word_lines(search: HybridSearch, found: Mapping[str, Hypothesis]) -> list[str]:
    """CTM lines of complete hypotheses; a partial one, whose last word may be cut, appears only in the text."""
    lines, timer = [], search.timer
    for utterance, hypothesis in found.items():
        if not hypothesis.complete:
            continue
        for time in timer(hypothesis):
            start, seconds = time.first_frame * FRAME_SECONDS, time.num_frames * FRAME_SECONDS
            lines.append(f"{utterance} 1 {start:.3f} {seconds:.3f} {time.word}\n")
    return lines
