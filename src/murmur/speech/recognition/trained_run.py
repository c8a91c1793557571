"""Recognises speech with a run's folder: its weights, and the recogniser that was saved beside them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from murmur.core.errors import SettingError
from murmur.execution.executors import Engine, Jobs
from murmur.run.configuration import resolved
from murmur.run.folder.contents import RECOGNISER
from murmur.run.origin import source_of
from murmur.run.preparation import task_to_do
from murmur.run.saved_model import Choice, model_to_read, read_into, told_choice
from murmur.run.timed import timed
from murmur.speech.corpus.corpus import Corpus, tell_losses
from murmur.speech.ctc import Units
from murmur.speech.decoding.decoder import DecodeOptions, Decoder
from murmur.speech.decoding.graph import DecodingGraph
from murmur.speech.decoding.graph_store import StoredGraph
from murmur.speech.features.analysis import LogMel, Mfcc, Ready, analyse
from murmur.speech.hmm.fmllr import Transforms, transforms_from_paths
from murmur.speech.recognition.run_records import (
    described_task,
    experiment_name,
    recorded,
    scales_of,
    settings_of,
    task_of,
)
from murmur.speech.recognition.tuning import PARTS, MeanScores, SearchRequest, check_request, to_the_end, tuned
from murmur.speech.tasks.acoustic_model import AcousticModel, NetworkConfig, UnknownNetwork, made_network, type_name
from murmur.speech.tasks.graph_sources import GraphSources, first_options
from murmur.speech.tasks.prepare_data import read_corpus
from murmur.speech.tasks.recogniser import PortableRecogniser, Recognises
from murmur.speech.tasks.speaker_inputs import AdaptedGaussians
from murmur.speech.tasks.vocabulary import Vocabulary
from murmur.speech.tasks.word_search import WordSearch

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class TransformSearch:
    """Search for the transforms of the speakers of new speech, which adapted features need."""

    gaussians: AdaptedGaussians  # speaker-adapted Gaussian system, which decodes unadapted features
    search: WordSearch
    options: DecodeOptions

    def __call__(self, feats: Mapping[str, np.ndarray], speakers: Mapping[str, str]) -> Transforms:
        """The transform W (D, D + 1) of each speaker; speakers with too little speech are left out.

        The speech of one speaker is decoded here, that of several in processes.

        Args:
            feats: {utterance: (T, F)} features of the Gaussian system, neither projected nor adapted.
            speakers: {utterance: speaker}.
        """
        pair = self.gaussians.pair
        scores = ((name, pair.loglikes(x_TF, None)) for name, x_TF in feats.items())
        if len({speakers[name] for name in feats}) < 2:
            decoder = Decoder(self.graph, self.options)
            paths = {name: decoder.decode(scores_TP).labels for name, scores_TP in scores}
        else:
            found = self.search.decode(scores, self.options)
            paths = {name: each.labels for name, each in found.hypotheses.items()}
        jobs = 1 if len(paths) < 2 else self.search.jobs
        return transforms_from_paths(pair, feats, paths, speakers, self.gaussians.fmllr, jobs)

    @cached_property
    def graph(self) -> DecodingGraph:
        """The graph of the search."""
        return StoredGraph.of(self.search.folder).read()


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """Trained network with its recogniser."""

    recogniser: PortableRecogniser  # everything besides the weights
    network: nn.Module  # in evaluation mode
    stem: Path  # file of the weights, without suffix
    name: str  # experiment and type of its task
    weights: str  # description of the chosen model of the run
    origin: Origin  # the run's experiment, for the parts of its corpus
    jobs: Jobs = 1
    grammar: str | Vocabulary | None = None  # of the passes for adapted features; None for their own

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
    def stack(self) -> int:
        """Input frames per output frame."""
        return self.acoustic.stack

    def scores_of(self, pieces: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        """(U, C) scores of each piece of all speech of one speaker, from its samples, computed as they are taken."""
        more = self.acoustic.speakers
        spectrum = analysed(pieces, self.front) if more is None or more.spectrum else {}
        cepstra = None if more is None else analysed(pieces, more.front)
        names = list(cepstra or spectrum)
        feats = self.acoustic.input(spectrum, cepstra, dict.fromkeys(names, ""), self.estimate)
        for name in names:
            yield self.scores(feats[name])

    @cached_property
    def estimate(self) -> TransformSearch | None:
        """Search that gives the transforms of new speakers; None for a network without adapted features."""
        more = self.acoustic.speakers
        if more is None or more.gaussians is None or more.first_pass is None:
            return None
        search = WordSearch(self.graphs, self.grammar or more.first_pass.grammar, self.recogniser.cache, self.jobs)
        return TransformSearch(more.gaussians, search, more.first_pass.options)

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

    @property
    def units(self) -> Units:
        """Units of a network that has a best path."""
        assert self.graphs.units is not None  # networks without units have no such grammar
        return self.graphs.units

    def with_others(self, others: Sequence[TrainedRun] = ()) -> MeanScores:
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
        search, given = self.search(request.grammar), dict(request.changes)
        dev = request.search_dev
        if search is not None and dev is not None:
            given = tuned(search, scoring or self.with_others(), self.corpus(dev), dev, kept) | given
        elif isinstance(request.grammar, Vocabulary) and "acoustic_scale" not in given:
            log.info("the acoustic scale is the run's, tuned with its own grammar; --dev DATA tunes it for this one")
        return search, to_the_end(self.options(given), request.grammar)

    def options(self, given: Mapping[str, Any]) -> DecodeOptions:
        """Return search settings: those given, else those that the run tuned on dev, else the experiment's first.

        Raises:
            SettingError: there is no acoustic scale, and this kind of network has no usual one.
        """
        settings = {**scales_of(self.folder), **given}
        if "acoustic_scale" not in settings:
            if self.graphs.untuned_scale is None:
                raise SettingError(no_scale(self.graphs))
            settings["acoustic_scale"] = self.graphs.untuned_scale
        return replace(first_options(self.graphs.search), **settings)


def analysed(pieces: Sequence[np.ndarray], front: LogMel | Mfcc | Ready) -> dict[str, np.ndarray]:
    """Features of each piece of audio by its number, from its samples."""
    assert not isinstance(front, Ready)  # features of a network on audio are computed from audio
    return {f"{i:06}": analyse(samples_S, front) for i, samples_S in enumerate(pieces)}


def no_scale(graphs: GraphSources) -> str:
    """Message for a search without an acoustic scale."""
    usual = graphs.free_scales[len(graphs.free_scales) // 2]
    return f"the run has no score.json with an acoustic scale tuned on dev: give --scale, such as {usual:g}"


@dataclass(frozen=True, eq=False)
class Wanted:
    """Model to open, and the files and names to check before it is loaded."""

    model: Path  # folder of a run, or one of its .safetensors files
    source: str | None = None  # experiment, for its corpus and its code; None for the one that run.json names
    settings: Sequence[str] = ()  # of the experiment; with any, the recogniser is made again from its corpus
    search: SearchRequest | None = None
    trust: bool = False  # True if any Python file that run.json names may be run
    choice: Choice | None = None
    jobs: Jobs | None = None  # None for those of the experiment
    data: str | None = None  # data to be decoded, a part of the run's corpus or another source

    def work(self, count: int) -> Jobs:
        """The wanted processes or engine, with `count` where no number is wanted."""
        if isinstance(self.jobs, Engine) and self.jobs.jobs is None:
            return replace(self.jobs, jobs=count)
        return self.jobs or count


@dataclass(frozen=True)
class Origin:
    """Experiment of a run in `folder`, loaded only for its corpus or for a network class of its own."""

    folder: Path
    wanted: Wanted

    @cached_property
    def source(self) -> str:
        """File or recipe of the experiment; refuses a file that may not be run."""
        return self.wanted.source or source_of(self.folder, recorded(self.folder, "run.json"), self.wanted.trust)

    @cached_property
    def task(self) -> Recognises:
        """Task of the experiment, set to prepare nothing.

        Raises:
            SettingError: the task recognises no speech, or files of the experiment are not there.
        """
        task: Any = task_of(self.folder, self.source, self.wanted.settings, self.wanted.jobs)
        if is_dataclass(task) and hasattr(task, "absent"):
            task = replace(task, absent="refuse")  # type: ignore[type-var]
        if not isinstance(task, Recognises):
            raise SettingError(f"{self.source} trains a {type(task).__name__}, which recognises no speech")
        made: Recognises = task
        return made

    def network(self, wanted: UnknownNetwork) -> NetworkConfig:
        """Description of a network by the class of that name which the experiment's task uses; needs no corpus."""
        task = resolved(self.source, [*settings_of(self.folder, self.source), *self.wanted.settings]).task
        kind = next((type(value) for value in _values_in(task) if type_name(value) == wanted.type), None)
        if kind is None:
            raise SettingError(f"the task of {self.source} uses no such class: name its experiment with --experiment")
        try:
            made: NetworkConfig = made_network(kind, wanted.values)
        except (TypeError, ValueError) as error:
            raise SettingError(f"the class of {self.source} does not take the run's values: {error}") from error
        return made


def _values_in(value: object) -> Iterator[object]:
    """Dataclass values among a value's fields, at any depth."""
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            inner = getattr(value, field.name)
            yield inner
            yield from _values_in(inner)


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
    origin = Origin(folder, wanted)
    saved = folder / RECOGNISER
    if saved.is_dir() and not wanted.settings:
        recogniser, run = _with_code(PortableRecogniser.open(saved), origin), recorded(folder, "run.json")
        name, jobs = experiment_name(folder, run), described_task(run).get("jobs")
    else:
        task = origin.task
        name, jobs = f"{origin.source}, {type(task).__name__}", getattr(task, "jobs", None)
        if isinstance(grammar, str):
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
    jobs = wanted.work(jobs if isinstance(jobs, int) and jobs > 0 else 1)
    return TrainedRun(recogniser, network.eval(), stem, name, told, origin, jobs, grammar)


def _with_code(recogniser: PortableRecogniser, origin: Origin) -> PortableRecogniser:
    """The recogniser with its network's class, which may be code of the experiment."""
    network = recogniser.acoustic.network
    if not isinstance(network, UnknownNetwork):
        return recogniser
    try:
        made = origin.network(network)
    except SettingError as error:
        raise SettingError(f"the network of {origin.folder} is a {network.type}, which is code: {error}") from error
    return replace(recogniser, acoustic=replace(recogniser.acoustic, network=made))
