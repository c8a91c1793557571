"""Recognises speech with a run's folder: network, front end, normalisation, prior and graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from murmur.core.errors import SettingError
from murmur.recognition.hybrid_search import HybridSearch
from murmur.recognition.run_records import figures_on_test, recorded, scales_of, task_of
from murmur.recognition.tuning import SearchRequest, check_request, settings_of_search, to_the_end
from murmur.run.origin import source_of
from murmur.run.saved_model import Choice, read_into, told_choice
from murmur.run.task_checks import model_to_read, task_to_do
from murmur.run.timed import timed
from murmur.speech.corpus.corpus import Corpus
from murmur.speech.decoding.decoder import DecodeOptions
from murmur.speech.features.analysis import LogMel, sample_rate_hz
from murmur.speech.features.cmvn import Pair, Scope, statistics
from murmur.speech.features.shards import is_prepared, prepare
from murmur.speech.hmm import hybrid
from murmur.tasks.corpora import splits
from murmur.tasks.ctc.data import BINS
from murmur.tasks.ctc.decode import GREEDY, CtcSearch
from murmur.tasks.ctc.task import CtcTask
from murmur.tasks.hybrid.task import HybridTask
from murmur.tasks.prepared import refuse_to_make
from murmur.tasks.vocabulary import Vocabulary


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """Trained network with the task of its training.

    Attributes:
        task: Task of the training, hybrid or CTC.
        network: Network in evaluation mode.
        folder: Folder of the run.
        name: Name of the experiment.
        weights: Description of the chosen model of the run.
    """

    task: HybridTask | CtcTask
    network: nn.Module
    folder: Path
    name: str
    weights: str

    @cached_property
    def train(self) -> Corpus:
        """Training utterances."""
        task = self.task
        return task.material.train if isinstance(task, HybridTask) else splits(task.root)[0]

    @cached_property
    def front(self) -> LogMel:
        """Front end that turns audio into the network's features.

        Raises:
            SettingError: the network was trained on features that came with its corpus.
        """
        if self.train.utterances[0].features is not None:
            raise SettingError(
                f"{self.folder} was trained on features that came with the corpus, which cannot be computed from audio:"
                " train on audio"
            )
        bins = self.task.front.bins if isinstance(self.task, HybridTask) else BINS
        return LogMel(rate_hz=sample_rate_hz(self.train), bins=bins)

    @property
    def cmvn(self) -> Scope:
        """Scope of the statistics that normalised the features in training."""
        return self.task.front.cmvn if isinstance(self.task, HybridTask) else self.task.cmvn

    @property
    def stack(self) -> int:
        """Input frames per output frame."""
        return 1 if isinstance(self.task, HybridTask) else self.task.stack

    @property
    def log_prior(self) -> Tensor | None:
        """ln p(pdf), (C,); None for CTC."""
        return self.task.targets.log_prior if isinstance(self.task, HybridTask) else None

    def training_statistics(self) -> Pair:
        """Mean and deviation of all training frames."""
        if not is_prepared(self.train, self.front, self.task.cache):
            refuse_to_make("features of train", self.task.cache)
        store = prepare(self.train, self.front, self.task.cache, self.task.jobs)
        return statistics(store[name] for name in store)

    def scores(self, feats_TF: np.ndarray) -> np.ndarray:
        """(U, C) log-likelihoods up to a constant of normalised features, or log posteriors of CTC."""
        prior = self.log_prior
        if prior is not None:
            return hybrid.log_likelihoods(self.network, feats_TF, prior)
        with torch.inference_mode():
            lengths_N = torch.tensor([len(feats_TF)])
            logits_NUC = self.network(torch.from_numpy(np.ascontiguousarray(feats_TF))[None], lengths_N)
            log_probs_UC: np.ndarray = logits_NUC[0].float().log_softmax(-1).numpy()
        return log_probs_UC

    def search(self, grammar: str | Vocabulary | None) -> HybridSearch | CtcSearch | None:
        """Search with a grammar; None for the best path of CTC.

        Raises:
            SettingError: the grammar needs a graph of words, but the network writes phones and has no lexicon.
        """
        if isinstance(self.task, HybridTask):
            return HybridSearch(self.task, self.network, grammar)
        if isinstance(grammar, Vocabulary):
            return self.task.search.with_own(grammar)
        name = grammar or self.task.decoding.grammar
        if name == GREEDY:
            return None
        return replace(self.task.search, decoding=replace(self.task.decoding, grammar=name))

    def searched(self, request: SearchRequest) -> tuple[HybridSearch | CtcSearch | None, DecodeOptions]:
        """Return the search of a command line and its settings, tuned if the command line requests it.

        Raises:
            ValueError: some words have no pronunciation, or there is no acoustic scale.
        """
        search = self.search(request.grammar)
        options = self.options(settings_of_search(self.task, self.network, search, request))
        return search, to_the_end(options, request.grammar)

    def options(self, given: Mapping[str, float | int | None]) -> DecodeOptions:
        """Return search settings: those given, else those that the run tuned on dev, else the experiment's first.

        Raises:
            SettingError: a hybrid system without an acoustic scale.
        """
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if isinstance(self.task, HybridTask):
            settings = {**scales_of(self.folder), **changes}
            if "acoustic_scale" not in settings:
                raise SettingError(
                    "the run has no score.json with an acoustic scale tuned on dev: give --scale, such as 0.3"
                )
            first = HybridSearch(self.task, self.network).widest
        else:
            settings, first = {**_ctc_scales(self.folder), **changes}, self.task.decoding.first
            settings.setdefault("acoustic_scale", 1.0)
        if "max_active" in settings:
            settings["max_active"] = int(settings["max_active"])
        return replace(first, **settings)


def graph_folder(search: HybridSearch | CtcSearch) -> Path:
    """Folder of the decoding graph, which is built if it is missing."""
    with timed("decoding graph"):
        return search.folder


def open_run(
    model: Path,
    experiment: str | None = None,
    settings: Sequence[str] = (),
    search: SearchRequest | None = None,
    trust: bool = False,
    choice: Choice | None = None,
) -> TrainedRun:
    """Open the run of a folder or of one of its .safetensors files; checks all names before it loads the model.

    `choice` selects a model of the run. `trust` allows any Python file that run.json names to be run.

    Raises:
        SettingError: there is no model, no record of its experiment, no such grammar, or the task is not recognition.
    """
    stem = model_to_read(model, choice)
    folder = stem.parent
    if experiment is None:
        experiment = source_of(folder, recorded(folder, "run.json"), trust)
    task = task_of(folder, experiment, settings)
    if not isinstance(task, HybridTask | CtcTask):
        raise SettingError(f"{experiment} trains a {type(task).__name__}, which recognises no speech")
    task = replace(task, absent="refuse")
    task_to_do(task)
    if search is not None:
        check_request(task, search)
    with timed("loading the model"):
        network = task.model()
        facts = read_into(network, stem)
    return TrainedRun(task, network.eval(), folder, experiment, told_choice(stem, choice, facts))


def _ctc_scales(folder: Path) -> dict[str, float]:
    """Settings that a CTC run with a graph tuned on dev, from its score.json."""
    figures = figures_on_test(folder)
    names = {"acoustic_scale": "acoustic scale", "insertion_penalty": "insertion penalty"}
    return {field: figures[name] for field, name in names.items() if name in figures}
