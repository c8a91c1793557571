"""Chain models: a network trained by lattice-free MMI alone, with outputs at a third of the frame rate.

    murmur train an4_chain --set task.hybrid.corpus=FOLDER --out runs/chain
    murmur train an4_chain --set task.hybrid.corpus=FOLDER --set 'task.tree=TreeConfig()' --out runs/chain_tree

The numerator of an utterance holds all paths of its transcript (`murmur.speech.sequence.transcripts`). A flat start
needs no Gaussian system; a tree is grown on the alignments of one, which also give targets for a cross-entropy beside
the criterion. Povey et al., "Purely sequence-trained neural networks for ASR based on lattice-free MMI", Interspeech
2016; Hadian et al., "End-to-end speech recognition using lattice-free MMI", Interspeech 2018.

Shapes: N utterances, T frames, U = ceil(T / stack) output frames, F values per frame, C pdfs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from murmur.core.errors import SettingError
from murmur.core.model_mode import evaluating
from murmur.core.setting_names import settings_under
from murmur.engine.task import Loss, Score, Unmade
from murmur.speech.corpus.corpus import Corpus
from murmur.speech.corpus.digits import digits_folder
from murmur.speech.decoding.graph_store import outputs_key
from murmur.speech.features.analysis import LogMel
from murmur.speech.features.batching import UtteranceBatches, pad
from murmur.speech.features.chunks import IGNORED
from murmur.speech.hmm import hybrid as frame_criterion
from murmur.speech.hmm.grow import TreeConfig
from murmur.speech.hmm.states import HmmStates
from murmur.speech.models import Network, Tdnn
from murmur.speech.sequence import criteria
from murmur.speech.sequence.numerators import Numerators
from murmur.speech.sequence.state_graph import StateGraph
from murmur.tasks.acoustic_model import AcousticModel, training_statistics
from murmur.tasks.chain.criterion import ChainMmi
from murmur.tasks.chain.data import ChainData, Utterances, chain_states
from murmur.tasks.data_digest import digest_of, rows_of
from murmur.tasks.graphs_beside import graphs_beside
from murmur.tasks.hybrid.config import Decoding, Search
from murmur.tasks.hybrid.decode import DecodeHalf, System
from murmur.tasks.hybrid.graphs import CHAIN_SCALES, HmmSources
from murmur.tasks.hybrid.hmm import HmmHalf
from murmur.tasks.hybrid.task import HybridTask
from murmur.tasks.precision import products_in
from murmur.tasks.prepared import Absent
from murmur.tasks.recogniser import PortableRecogniser
from murmur.tasks.unprepared import digits_to_make, features_of, features_to_make
from murmur.tasks.word_search import WordSearch

SHORTEST_PHONE = 3  # frames of an aligned phone with three states
EVALUATED = 16  # utterances of dev that are evaluated together


@dataclass(frozen=True, eq=False)
class ChainBatch:
    """Whole utterances.

    Attributes:
        feats: (N, T, F) features, with zeros after the end of each utterance.
        lengths: (N,) frames.
        targets: (N, U) aligned pdfs; `IGNORED` where there are none.
        numerators: numerators of the utterances.
        frames: output frames of all utterances.
    """

    feats: Tensor
    lengths: Tensor
    targets: Tensor
    numerators: Numerators
    frames: int


@dataclass(frozen=True)
class ChainTask:
    """Lattice-free MMI on whole utterances, and decoding at the rate of the network's outputs.

    The loss is -F + w L, with F = ln Z_num - ln Z_den, L the cross-entropy of the aligned pdfs and w its weight.

    Attributes:
        hybrid: set, features, Gaussian systems, augmentation and decoding; `chunks.size` is the number of utterances in
            a minibatch. Its network is not used. The acoustic scales that `decoding.network` tries include 1; a
            `decoding.silence_probability` of None takes the share of places with a silence in the alignments of train
            with a tree, and for a flat start the probability that training uses.
        network: the network; its `stack` is the number of frames per output.
        criterion: phone model, leak and cross-entropy.
        tree: tree of states in context, grown on alignments; None for a flat start with monophones.
        shifts: frames by which the features of each epoch in turn are shifted, so that all frames are taken.
        absent: "make" to make training data that is missing from the cache, "refuse" to end with an error.
    """

    hybrid: HybridTask = field(
        default_factory=lambda: HybridTask(decoding=Decoding(network=Search(scales=CHAIN_SCALES)))
    )
    network: Network = field(default_factory=lambda: Tdnn(stack=3))
    criterion: ChainMmi = field(default_factory=ChainMmi)
    tree: TreeConfig | None = None
    shifts: tuple[int, ...] = (-1, 0, 1)
    absent: Absent = field(default="make", repr=False)

    def __post_init__(self) -> None:
        if not self.shifts:
            raise ValueError("shifts names no shift: give (0,) for none")
        if self.tree is None and self.criterion.tolerance_frames is not None:
            raise ValueError(
                f"criterion.tolerance_frames = {self.criterion.tolerance_frames}: a flat start has no alignments: set a"
                " tree, or None"
            )

    def __getstate__(self) -> dict[str, object]:
        """The fields alone, like the hybrid task."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def check(self) -> None:
        """Check the hybrid task, that its features are those of speed 1, and that decoding tries the scale of training.

        Raises:
            SettingError: the settings do not fit this criterion; CorpusError, SynthesisError: something is missing.
        """
        with settings_under("task.hybrid"):
            self.hybrid.check()
        self._check_utterances()
        front = self.hybrid.front
        if front.draws or tuple(front.speeds) != (1.0,):
            raise SettingError("task.hybrid.front.speeds: chain models take the recordings as they are, set (1.0,)")
        if front.input.of_speakers:
            raise SettingError(
                "task.hybrid.front.input: chain models take the spectrum alone, since a flat start has no Gaussian"
                " system: leave fmllr and ivector out"
            )
        if self.hybrid.realigned_by is not None:
            raise SettingError("task.hybrid.realigned_by: numerators are made from Gaussian alignments, set it to None")
        scales = self.hybrid.decoding.network.scales
        if not min(scales) <= 1 <= max(scales):
            raise SettingError(
                f"task.hybrid.decoding.network.scales: {scales} are scales of posteriors; the outputs of a chain model"
                f" are log-likelihoods, whose scale is near 1: set it to {CHAIN_SCALES}"
            )

    def _check_utterances(self) -> None:
        step, shifts = self.network.stack, self.shifts
        if self.hybrid.chunks.parts != 1:
            raise SettingError("task.hybrid.chunks.parts: chain models take whole utterances of all parts, set it to 1")
        if max(map(abs, shifts)) >= step:
            raise SettingError(
                f"task.shifts: {shifts} with an output for every {step} frames: a shift of {step} or more takes the"
                " frames of another output again"
            )
        if self.tree is not None and step > SHORTEST_PHONE:
            raise SettingError(
                f"task.network.stack: {step} with a tree: aligned phones of {SHORTEST_PHONE} frames would have no"
                f" output, set it to {SHORTEST_PHONE} or less"
            )

    @cached_property
    def _hybrid(self) -> HybridTask:
        return self.hybrid if self.absent == "make" else replace(self.hybrid, absent=self.absent)

    @property
    def _half(self) -> HmmHalf:
        return self._hybrid.hmms

    def unprepared(self) -> list[Unmade]:
        """Data that is not prepared yet, with the Gaussian systems only where a tree needs them."""
        task = self._hybrid
        if self.tree is not None:
            return task.unprepared()
        if task.corpus is None and not digits_folder(task.cache, task.digits).is_dir():
            spoken, hours = digits_to_make(task.cache, task.digits)
            used = {part: hours[part] for part in ("train", "dev")}
            return [spoken, *features_of(used, task.front.bins, task.cache, "log-mel features")]
        parts = {part: task.utterances(part) for part in ("train", "dev")}
        return features_to_make(parts, self._half.network_front(parts["train"]), task.cache, "features")

    def prepare(self) -> ChainData:
        """Make features, alignments, numerators and the search graph."""
        with settings_under("task.hybrid"):
            self._hybrid.check_words()
        self._half.check_test()
        _ = self._states  # the Gaussian systems, which the graph is made from
        with graphs_beside([self._words]):
            return self.data

    @cached_property
    def data(self) -> ChainData:
        """States, denominator and utterances."""
        return ChainData.of(self._half, self._states, self.criterion, self.network.stack, self.shifts)

    @property
    def per_epoch(self) -> int:
        """Minibatches in one pass over the training utterances."""
        return self._order.per_epoch

    @property
    def samples_per_epoch(self) -> float:
        """Output frames in one pass."""
        return float(sum(-(-len(feats_TF) // self.network.stack) for feats_TF in self.data.train.feats))

    def model(self) -> nn.Module:
        """A fresh network, feats_NTF and lengths_N to outputs_NUC."""
        return self._acoustic.build()

    def outputs_digest(self) -> str:
        """Digest of the states that the outputs stand for."""
        return outputs_key(self._states.lang, self._states.transitions)

    @cached_property
    def data_digest(self) -> str:
        """Digest of utterances, texts and numbers of frames."""
        pairs = ((self.data.train, self._half.material.train), (self.data.dev, self._half.material.dev))
        return digest_of(*(rows_of(part, dict(zip(own.names, own.feats, strict=True))) for own, part in pairs))

    def minibatch(self, n: int) -> ChainBatch:
        """Minibatch n with its shift and masks: a pure function of the task's fields and n."""
        return self._drawn(n, self._order[n], (self.hybrid.seed, n))

    @property
    def most_pieces(self) -> int:
        """Utterances of a minibatch."""
        return self.hybrid.chunks.size

    def piece(self, n: int, number: int, of: int) -> ChainBatch | None:
        """Some utterances of minibatch n, with masks of their own."""
        every = self._order[n]
        own = every[len(every) * number // of : len(every) * (number + 1) // of]
        name = (self.hybrid.seed, n) if of == 1 else (self.hybrid.seed, n, number, of)
        return self._drawn(n, own, name) if len(own) else None

    def loss(self, model: nn.Module, minibatch: ChainBatch) -> Loss:
        """The criterion, summed over the output frames."""
        objective, entropy, _ = self._totals(model, minibatch)
        return Loss(self.criterion.cross_entropy * entropy - objective, float(minibatch.frames))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """On dev, per output frame: "loss" (nats), "objective"; with alignments "cross-entropy", "frame accuracy"."""
        dev = self.data.dev
        sums, frames = torch.zeros(3, dtype=torch.float64), 0
        with evaluating(model), torch.no_grad():
            for group in UtteranceBatches(tuple(map(len, dev.feats)), EVALUATED).in_order():
                batch = self._batch(dev, group, [dev.feats[i] for i in group], 0)
                sums += torch.stack([part.double().cpu() for part in self._totals(model, batch)])
                frames += batch.frames
        objective, entropy, right = (sums / frames).tolist()
        figures = {"loss": self.criterion.cross_entropy * entropy - objective, "objective": objective}
        return figures if self.tree is None else {**figures, "cross-entropy": entropy, "frame accuracy": right}

    def test(self, model: nn.Module) -> Score:
        """Error rates on dev and test, all settings tuned on dev."""
        return self.test_in(model, None)

    def test_in(self, model: nn.Module, kept: Path | None) -> Score:
        """`test`, with the decoding results saved in a folder and not decoded again."""
        task, acoustic = self._hybrid, self._acoustic
        decoder = DecodeHalf(task.material, task.decoding.tune_every, task.cache, kept)
        parts = {"dev": task.material.dev, "test": task.material.test}
        feats = {name: self._half.network_features(part) for name, part in parts.items()}
        scorers = {name: partial(_scores, acoustic, model, own) for name, own in feats.items()}
        results = decoder.evaluate(System("network", self._words, task.decoding.network, scorers), parts)
        figures = {name: value for result in results for name, value in result.figures.items()}
        return Score(figures, tuple(map(str, results)), results[-1].recognised)

    def check_grammar(self, name: str, option: str) -> None:
        """Check that the set has a grammar; `option` is the setting or option that names it."""
        with settings_under("task.hybrid"):
            self.hybrid.check_grammar(name, option)

    def recogniser(self) -> PortableRecogniser:
        """Everything besides the weights that recognition with the network needs."""
        return PortableRecogniser(self._acoustic, self._words.sources, self.hybrid.cache, self._words.built)

    def utterances(self, part: str) -> Corpus:
        """Utterances of "train", "dev" or "test"."""
        return self._hybrid.utterances(part)

    @cached_property
    def _order(self) -> UtteranceBatches:
        lengths = tuple(map(len, self.data.train.feats))
        return UtteranceBatches(lengths, self.hybrid.chunks.size, self.hybrid.seed)

    def _drawn(self, n: int, chosen: Sequence[int], name: tuple[int, ...]) -> ChainBatch:
        train, rng = self.data.train, np.random.default_rng(name)
        shift = self.shifts[n // self.per_epoch % len(self.shifts)]
        feats = [self.hybrid.augment(shifted(train.feats[i], shift), rng) for i in chosen]
        return self._batch(train, chosen, feats, shift)

    def _batch(self, part: Utterances, chosen: Sequence[int], feats: Sequence[np.ndarray], shift: int) -> ChainBatch:
        feats_NTF, lengths_N = pad(feats)
        outputs = [-(-len(feats_TF) // self.network.stack) for feats_TF in feats]
        targets_NU = torch.full((len(outputs), max(outputs)), IGNORED)
        for row_U, i in zip(targets_NU, chosen, strict=True):
            pdfs_U = part.targets.get(shift, {}).get(part.names[i])
            if pdfs_U is not None:
                row_U[: len(pdfs_U)] = torch.from_numpy(pdfs_U)
        numerators = part.supervision.batch(chosen, outputs)
        return ChainBatch(feats_NTF, lengths_N, targets_NU, numerators, sum(outputs))

    def _totals(self, model: nn.Module, batch: ChainBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Objective, cross-entropy, and number of frames whose best pdf is the target."""
        device = next(model.parameters()).device
        if device not in self._graphs:
            self._graphs[device] = self.data.denominator.graph.to(device)
        lengths_N, targets_NU = batch.lengths.to(device), batch.targets.to(device)
        with products_in(self.hybrid.precision, device.type):
            outputs_NUC = model(batch.feats.to(device), lengths_N)
        outputs_NUC = outputs_NUC.float()
        frames_N = (lengths_N + self.network.stack - 1) // self.network.stack
        objective_N = criteria.mmi(
            outputs_NUC, frames_N, batch.numerators.to(device), self._graphs[device], self.criterion.leak
        )
        entropy = frame_criterion.frame_total(outputs_NUC, targets_NU)
        right = ((outputs_NUC.detach().argmax(-1) == targets_NU) & (targets_NU != IGNORED)).sum()
        return objective_N.sum(), entropy, right

    @cached_property
    def _graphs(self) -> dict[torch.device, StateGraph]:
        """Denominator on each device that has used it."""
        return {}

    @cached_property
    def _acoustic(self) -> AcousticModel:
        half, train, states = self._half, self._hybrid.material.train, self._states
        front, training = half.network_front(train), None
        if isinstance(front, LogMel):
            order = half.normalised_order
            training = partial(training_statistics, train, front, self.hybrid.cache, self.absent, order)
        return AcousticModel(
            front,
            half.delta_order,
            self.hybrid.front.cmvn,
            self.network,
            half.network_dims,
            states.tree.num_pdfs,
            self.network.stack,
            training=training,
            normalised=self.hybrid.front.normalised,
        )

    @cached_property
    def _states(self) -> HmmStates:
        return chain_states(self._half, self.tree, self.network.stack)

    @cached_property
    def _words(self) -> WordSearch:
        """Search with the network's states."""
        task, search = self._hybrid, self.hybrid.decoding.network
        lexicon, language_models = task.sayable
        sources = HmmSources(
            self._states, lexicon, self._silence, search, language_models, self.hybrid.decoding.tune_every
        )
        return WordSearch(
            sources, search.grammar, self.hybrid.cache, self.hybrid.jobs, self._acoustic.frames_per_second
        )

    @property
    def _silence(self) -> float:
        """Probability of a silence between words, in decoding graphs."""
        if self.tree is None and self.hybrid.decoding.silence_probability is None:
            return self._half.lang.silence_probability
        return self._hybrid.silence


def shifted(feats_TF: np.ndarray, shift: int) -> np.ndarray:
    """x_{t + shift} for all t, the edge frames repeated."""
    return feats_TF[(np.arange(len(feats_TF)) + shift).clip(0, len(feats_TF) - 1)]


def _scores(acoustic: AcousticModel, model: nn.Module, feats: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    return acoustic.scores(model, feats[name])
