"""Decoding of any speech with the network of a hybrid experiment: its graph, its scores, the times of its words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from rich.console import Console
from rich.progress import Progress
from torch import nn

from murmur.commands.timed import timed
from murmur.recipes.hybrid import HybridTask
from murmur.recipes.hybrid_config import first_options
from murmur.recipes.hybrid_decode import DecodeHalf
from murmur.recipes.hybrid_hmm import Stage
from murmur.speech import hybrid
from murmur.speech.corpus import Corpus
from murmur.speech.decode import DecodeOptions, Hypothesis
from murmur.speech.decode_set import Decoded, decode_set
from murmur.speech.lexicon import Lang
from murmur.speech.word_times import WordTimer

FRAME_SECONDS = 0.01


@dataclass(frozen=True)
class HybridSearch:
    """A network on the states of a hybrid task.

    Attributes:
        task: the task it was trained for.
        network: feats_NTF to logits_NTC.
        grammar: another than the task's; None for that one.
    """

    task: HybridTask
    network: nn.Module
    grammar: str | None = None

    @cached_property
    def stage(self) -> Stage:
        """The Gaussian system whose states the network knows."""
        return self.task.hmms.trained[-1]

    @cached_property
    def half(self) -> DecodeHalf:
        """Grammars and graphs of the set."""
        task = self.task
        silence = task.decoding.silence_probability
        if silence is None:
            silence = self.stage.silence_share(task.material.train.texts)
        return DecodeHalf(task.material, task.decoding, silence, task.cache, task.jobs)

    @property
    def lang(self) -> Lang:
        """The vocabulary of decoding."""
        return self.half.language(self.stage.model.lang)

    @property
    def timer(self) -> WordTimer:
        """What finds words in time."""
        return WordTimer.of(self.lang, self.stage.model.transitions)

    @property
    def widest(self) -> DecodeOptions:
        """The widest search that the experiment tries."""
        return first_options(self.task.decoding.network)

    def decode(self, corpus: Corpus, options: DecodeOptions) -> Decoded:
        """The best hypothesis of each utterance, with a progress bar.

        Raises:
            ValueError: there is no such grammar, or features do not fit the network.
        """
        with timed("decoding graph"):
            graph = self.half.graph(self.stage.model, self.grammar or self.task.decoding.network.grammar)
        with timed("features"):
            feats = self.task.hmms.network_features(corpus)
        with Progress(console=Console(stderr=True)) as progress:
            bar = progress.add_task("decoding", total=len(feats))
            return decode_set(
                graph, self._scores(feats), options, self.task.jobs, lambda done: progress.update(bar, completed=done)
            )

    def _scores(self, feats: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
        for name in feats:
            yield name, hybrid.log_likelihoods(self.network, feats[name], self.task.targets.log_prior)


def word_lines(search: HybridSearch, found: Mapping[str, Hypothesis]) -> list[str]:
    """CTM lines of hypotheses; a partial one, whose last word may be cut, has its words only in the text."""
    lines, timer = [], search.timer
    for utterance, hypothesis in found.items():
        if not hypothesis.complete:
            continue
        for time in timer(hypothesis):
            start, seconds = time.first_frame * FRAME_SECONDS, time.num_frames * FRAME_SECONDS
            lines.append(f"{utterance} 1 {start:.3f} {seconds:.3f} {time.word}\n")
    return lines
