"""Recognises speech with a run's folder: its weights, and the recogniser that was saved beside them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from murmur.core.errors import SettingError
from murmur.engine.task import NamesGrammars
from murmur.recognition.mean_scores import MeanScores
from murmur.recognition.origin import Origin, experiment_name, recorded_jobs
from murmur.recognition.run_records import recorded, scales_of
from murmur.recognition.transform_search import TransformSearch
from murmur.recognition.tuning import PARTS, SearchRequest, check_request, to_the_end, tuned
from murmur.run.folder.contents import RECOGNISER
from murmur.run.saved_model import Choice, read_into, told_choice
from murmur.run.task_checks import model_to_read, task_to_do
from murmur.run.timed import timed
from murmur.speech.corpus.corpus import Corpus, tell_losses
from murmur.speech.ctc import criterion as ctc
from murmur.speech.decoding.decoder import DecodeOptions
from murmur.speech.features.analysis import LogMel, Mfcc, analyse
from murmur.speech.features.cmvn import Scope
from murmur.tasks.acoustic_model import AcousticModel, UnknownNetwork
from murmur.tasks.hybrid.config import first_options
from murmur.tasks.prepare_data import read_corpus
from murmur.tasks.recogniser import PortableRecogniser
from murmur.tasks.speaker_inputs import SpeakerInputs
from murmur.tasks.vocabulary import Vocabulary
from murmur.tasks.word_search import GraphSources, WordSearch

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """Trained network with its recogniser.

    Attributes:
        recogniser: Everything besides the weights.
        network: Network in evaluation mode.
        stem: File of the weights, without suffix.
        name: Experiment and type of its task.
        weights: Description of the chosen model of the run.
        origin: The run's experiment, for the parts of its corpus.
        jobs: Decoding processes.
        grammar: Grammar of the command line, which also the passes for adapted features use; None for the run's own.
    """

    recogniser: PortableRecogniser
    network: nn.Module
    stem: Path
    name: str
    weights: str
    origin: Origin
    jobs: int = 1
    grammar: str | Vocabulary | None = None

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self.stem.parent

    @property
    def acoustic(self) -> AcousticModel:
        """Front end, normalisation, network and prior."""
        return self.recogniser.acoustic

    @property
    def graphs(self) -> GraphSources:
        """Sources of decoding graphs."""
        return self.recogniser.graphs

    @property
    def front(self) -> LogMel:
        """Front end that turns audio into the network's features.

        Raises:
            SettingError: the network was trained on features that came with its corpus.
        """
        front = self.acoustic.front
        if not isinstance(front, LogMel):
            raise SettingError(
                f"{self.folder} was trained on features that came with the corpus, which cannot be computed from audio:"
                " train on audio"
            )
        return front

    @property
    def cmvn(self) -> Scope:
        """Scope of the statistics that normalised the features in training."""
        return self.acoustic.cmvn

    @property
    def stack(self) -> int:
        """Input frames per output frame."""
        return self.acoustic.stack

    @property
    def log_prior(self) -> Tensor | None:
        """ln p(pdf), (C,); None for CTC."""
        return self.acoustic.log_prior

    def inputs(self, pieces: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Inputs of the network for all speech of one speaker, from the samples of its pieces."""
        names, more = [f"{i:06}" for i in range(len(pieces))], self.acoustic.speakers
        if not names:
            return []

        def analysed(front: LogMel | Mfcc) -> dict[str, np.ndarray]:
            return {name: analyse(samples_S, front) for name, samples_S in zip(names, pieces, strict=True)}

        spectrum = analysed(self.front) if more is None or more.spectrum else {}
        cepstra = analysed(self._cepstra(more)) if more is not None else None
        found = self.acoustic.input(spectrum, cepstra, dict.fromkeys(names, ""), self.estimate)
        return [found[name] for name in names]

    def _cepstra(self, more: SpeakerInputs) -> Mfcc:
        assert isinstance(more.front, Mfcc)  # as the network's own front end computes its features from audio
        return more.front

    @cached_property
    def estimate(self) -> TransformSearch | None:
        """Search that gives the transforms of new speakers; None for a network without adapted features."""
        more = self.acoustic.speakers
        if more is None or more.gaussians is None or more.first_pass is None:
            return None
        search = WordSearch(self.graphs, self.grammar or more.first_pass.grammar, self.recogniser.cache, self.jobs)
        return TransformSearch(more.gaussians, search, more.first_pass)

    def scores(self, feats_TF: np.ndarray) -> np.ndarray:
        """(U, C) scores of the network's input, see `AcousticModel.scores`."""
        return self.acoustic.scores(self.network, feats_TF)

    def corpus(self, data: str) -> Corpus:
        """Utterances of a part of the run's corpus (train, dev, test), or of other data.

        Raises:
            SettingError, CorpusError: there is no such data, or the run's corpus is not there.
        """
        if data not in PARTS:
            other = read_corpus(data)
            tell_losses(data, len(other), other.problems)
            return other
        found: Corpus = self.origin.task.utterances(data)
        return found

    def search(self, grammar: str | Vocabulary | None) -> WordSearch | None:
        """Search with a grammar, by default the run's own; None for the best path of the network."""
        grammar = grammar or self.graphs.search.grammar
        if grammar == self.graphs.best_path:
            return None
        return WordSearch(self.graphs, grammar, self.recogniser.cache, self.jobs, self.acoustic.frames_per_second)

    def best_path(self, scores_UC: np.ndarray) -> str:
        """Text of the network's best path."""
        units = self.graphs.units
        assert units is not None  # networks without units have no such grammar
        (columns,) = ctc.greedy(torch.from_numpy(scores_UC)[None], torch.tensor([len(scores_UC)]))
        return units.decode(columns)

    @property
    def scoring(self) -> MeanScores:
        """Scores of this model alone."""
        return MeanScores(((self.acoustic, self.network),), (self.estimate,))

    def with_others(self, others: Sequence[TrainedRun]) -> MeanScores:
        """Mean scores of this model and others.

        Raises:
            SettingError: the outputs or the frame rate of another model differ.
        """
        for other in others:
            if other.graphs.outputs_key != self.graphs.outputs_key:
                raise SettingError(
                    f"--with {other.stem}: its outputs are not those of {self.stem} (other phones, topology or tree, or"
                    " other units): models that decode together need the same corpus, lexicon and task.hmm"
                )
            rates = (self.acoustic.frames_per_second, other.acoustic.frames_per_second)
            if rates[0] != rates[1]:
                raise SettingError(
                    f"--with {other.stem}: it has {rates[1]:g} output frames a second, {self.stem} has {rates[0]:g}"
                )
        every = (self, *others)
        return MeanScores(tuple((run.acoustic, run.network) for run in every), tuple(run.estimate for run in every))

    def searched(
        self, request: SearchRequest, scoring: MeanScores | None = None, kept: Path | None = None
    ) -> tuple[WordSearch | None, DecodeOptions]:
        """Return the search of a command line and its settings, tuned if the command line requests it.

        `scoring` gives the scores for tuning; None for those of this model. Tuning stores its features and results in
        `kept`, where a later call finds them.

        Raises:
            ValueError: some words have no pronunciation, or there is no acoustic scale.
        """
        search, given = self.search(request.grammar), request.changes
        dev = request.search_dev
        if search is not None and dev is not None:
            found = tuned(search, scoring or self.scoring, self.corpus(dev), dev, kept)
            given = {**found, **given}
        elif isinstance(request.grammar, Vocabulary) and "acoustic_scale" not in given:
            log.info("the acoustic scale is the run's, tuned with its own grammar; --dev DATA tunes it for this one")
        return search, to_the_end(self.options(given), request.grammar)

    def options(self, given: Mapping[str, float | None]) -> DecodeOptions:
        """Return search settings: those given, else those that the run tuned on dev, else the experiment's first.

        Raises:
            SettingError: there is no acoustic scale, and this kind of network has no usual one.
        """
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        settings: dict[str, Any] = {**scales_of(self.folder), **changes}
        if "acoustic_scale" not in settings:
            if self.graphs.untuned_scale is None:
                raise SettingError(no_scale(self.graphs))
            settings["acoustic_scale"] = self.graphs.untuned_scale
        if "max_active" in settings:
            settings["max_active"] = int(settings["max_active"])
        return replace(first_options(self.graphs.search), **settings)


def no_scale(graphs: GraphSources) -> str:
    """Message for a search without an acoustic scale."""
    usual = graphs.free_scales[len(graphs.free_scales) // 2]
    return f"the run has no score.json with an acoustic scale tuned on dev: give --scale, such as {usual:g}"


@dataclass(frozen=True, eq=False)
class Wanted:
    """Model to open, and the files and names to check before it is loaded.

    Attributes:
        model: Folder of a run, or one of its .safetensors files.
        source: Experiment of the run as the caller names it, for its corpus and its code; None for the one that
            run.json names.
        settings: Changes to the experiment; with any, the recogniser is made again from the experiment's corpus.
        search: Search options to check.
        trust: True if any Python file that run.json names may be run.
        choice: Model of the run.
        jobs: Decoding processes; None for those of the experiment.
        data: Data to be decoded, a part of the run's corpus or another source.
    """

    model: Path
    source: str | None = None
    settings: Sequence[str] = ()
    search: SearchRequest | None = None
    trust: bool = False
    choice: Choice | None = None
    jobs: int | None = None
    data: str | None = None


def open_run(wanted: Wanted) -> TrainedRun:
    """Open a trained model; checks all names before it loads the weights.

    A finished run holds its recogniser. Only for other runs, or with `settings`, the recogniser is made from the
    experiment, its corpus and its cache.

    Raises:
        SettingError: there is no model, no record of its experiment, no such grammar, a file of the recogniser is
            damaged, or the task is not recognition.
        CorpusError: the corpus is needed and is not there.
    """
    stem = model_to_read(wanted.model, wanted.choice)
    folder = stem.parent
    grammar = None if wanted.search is None else wanted.search.grammar
    run = recorded(folder, "run.json")
    origin = Origin(folder, wanted.source, tuple(wanted.settings), wanted.trust, wanted.jobs)
    saved = folder / RECOGNISER
    if saved.is_dir() and not wanted.settings:
        recogniser = _with_code(PortableRecogniser.open(saved), folder, origin)
        name, jobs = experiment_name(folder, run), recorded_jobs(run)
    else:
        task = origin.task
        name, jobs = f"{origin.source}, {type(task).__name__}", recorded_jobs({}, task)
        if isinstance(task, NamesGrammars) and isinstance(grammar, str):
            task.check_grammar(grammar, "--grammar")  # before the recogniser needs prepared data
        recogniser = task.recogniser()
    if {wanted.data, None if wanted.search is None else wanted.search.dev} & set(PARTS):
        task_to_do(origin.task)
    if wanted.search is not None:
        check_request(recogniser.graphs, wanted.search)
    with timed("loading the model"):
        network = recogniser.acoustic.build()
        facts = read_into(network, stem)
    told = told_choice(stem, wanted.choice, facts)
    return TrainedRun(recogniser, network.eval(), stem, name, told, origin, wanted.jobs or jobs, grammar)


def _with_code(recogniser: PortableRecogniser, folder: Path, origin: Origin) -> PortableRecogniser:
    """The recogniser with its network's class, which may be code of the experiment.

    Raises:
        SettingError: the class is code that may not be run, or that the experiment does not use.
    """
    network = recogniser.acoustic.network
    if not isinstance(network, UnknownNetwork):
        return recogniser
    try:
        made = origin.network(network)
    except SettingError as error:
        raise SettingError(f"the network of {folder} is a {network.type}, which is code: {error}") from error
    return replace(recogniser, acoustic=replace(recogniser.acoustic, network=made))
