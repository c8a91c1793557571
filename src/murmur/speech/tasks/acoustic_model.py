"""Acoustic model without its weights: front end, normalisation, network and prior, from audio to scores.

Shapes: feats_TF, T frames of F values; scores_UC, U = ceil(T / stack) output frames and C columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from murmur.core.errors import SettingError
from murmur.core.model_mode import evaluating
from murmur.execution.workers import cores_here
from murmur.speech import models
from murmur.speech.corpus.corpus import Corpus
from murmur.speech.corpus.file_content import naming, read_arrays
from murmur.speech.features.analysis import Front, LogMel, Ready, deltas
from murmur.speech.features.batching import UtteranceBatches, pad
from murmur.speech.features.cmvn import Columns, Pair, Scope, all_with_derivatives, statistics
from murmur.speech.features.feature_store import FeatureStore, is_prepared, prepare
from murmur.speech.hmm import frame_classifier
from murmur.speech.tasks.prepared import Absent, refuse_to_make
from murmur.speech.tasks.speaker_inputs import (
    AdaptedGaussians,
    Estimate,
    SpeakerInputs,
    all_joined,
    front_of_json,
    front_to_json,
)

MOST_LAYERS = 1000
BATCH = 32  # utterances that a network without a prior scores together
ARRAYS = "acoustic.npz"
NETWORKS: dict[str, type] = {kind.__name__: kind for kind in get_args(models.Network)}
FRONTS: Mapping[str, type[LogMel | Ready]] = {"LogMel": LogMel, "Ready": Ready}


class NetworkConfig(Protocol):
    """Description of a network, a frozen dataclass of plain values such as `murmur.speech.models.Tdnn`."""

    def build(self, inputs: int, outputs: int) -> nn.Module:
        """A fresh module for F = inputs and C = outputs."""


@dataclass(frozen=True)
class UnknownNetwork:
    """Description of a network whose class is not part of this package, as a file states it."""

    type: str
    values: Mapping[str, Any]

    def build(self, inputs: int, outputs: int) -> nn.Module:
        """Refuse."""
        raise SettingError(f"a network of {inputs} inputs and {outputs} outputs is a {self.type}: its code is needed")


@dataclass(frozen=True, eq=False)
class AcousticModel:
    """Everything between audio and scores but the weights.

    Attributes:
        front: analysis of audio, with its sample rate; or `Ready` for features that corpora bring.
        delta_order: number of derivatives appended to the features.
        cmvn: scope of the mean and variance that normalise the features.
        normalised: columns that they normalise: "static" before derivatives are appended, "all" after that.
        stack: input frames per output frame.
        log_prior: (C,) ln p(pdf), subtracted from log posteriors; None scores by log posteriors.
        training: function that returns mean and deviation of the columns that `normalised` names, over all training
            frames, before normalisation; None for features that corpora bring.
        speakers: inputs that depend on the speaker; None for a network without.
    """

    front: LogMel | Ready
    delta_order: int
    cmvn: Scope
    network: NetworkConfig
    inputs: int
    outputs: int
    stack: int = 1
    log_prior: Tensor | None = None
    training: Callable[[], Pair] | None = None
    speakers: SpeakerInputs | None = None
    normalised: Columns = "static"

    def build(self) -> nn.Module:
        """A fresh network, feats_NTF (and lengths_N, if `stack` is not 1) to logits_NUC."""
        return self.network.build(self.inputs, self.outputs)

    def features(self, corpus: Corpus, cache: Path, estimate: Estimate | None = None) -> dict[str, np.ndarray]:
        """The network's input for a corpus, {utterance: feats_TF}; analyses are stored in `cache`.

        `estimate` estimates transforms of speakers, see `SpeakerInputs.columns`.

        Raises:
            CorpusError: audio is missing, damaged or at another rate, or there are no features of this size.
        """

        def store(front: Front) -> FeatureStore:
            return prepare(corpus, front, cache, cores_here(), progress=True)

        if self.speakers is None:
            return self.input(store(self.front), None, corpus.speakers)
        spectrum = store(self.front) if self.speakers.spectrum else {}
        return self.input(spectrum, store(self.speakers.front), corpus.speakers, estimate)

    def input(
        self,
        spectrum: Mapping[str, np.ndarray],
        cepstra: Mapping[str, np.ndarray] | None,
        speakers: Mapping[str, str],
        estimate: Estimate | None = None,
    ) -> dict[str, np.ndarray]:
        """The network's input for all speech of some speakers, {utterance: feats_TF}.

        Args:
            spectrum: {utterance: feats_TF} of `front`, not normalised; empty for an input without.
            cepstra: those of `speakers.front`; None for an input that does not depend on the speaker.
            speakers: {utterance: speaker}.
            estimate: function that estimates the transforms of the speakers, see `SpeakerInputs.columns`.
        """
        feats = all_with_derivatives(spectrum, speakers, self.cmvn, self.delta_order, self.normalised)
        if self.speakers is None or cepstra is None:
            return feats
        columns = self.speakers.columns(cepstra, speakers, estimate)
        return dict(all_joined(feats if self.speakers.spectrum else None, columns))

    def scores(self, network: nn.Module, feats_TF: np.ndarray) -> np.ndarray:
        """(U, C) log-likelihoods up to a constant of normalised features; log posteriors without a prior."""
        return scores_of(network, feats_TF, self.log_prior, self.stack)

    def all_scores(self, network: nn.Module, feats: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
        """Pairs of utterance and scores_UC, computed as they are taken."""
        if self.log_prior is None:
            yield from posteriors(network, feats, self.stack)
            return
        for name in feats:
            yield name, self.scores(network, feats[name])

    @cached_property
    def frames_per_second(self) -> float:
        return 1.0 / (self.front.frame_shift_seconds * self.stack)

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the arrays into a folder; return the other values in JSON's terms."""
        arrays: dict[str, Any] = {} if self.log_prior is None else {"log_prior": self.log_prior.numpy()}
        if self.training is not None:
            arrays |= dict(zip(("mean", "deviation"), self.training(), strict=True))
        with naming(folder / ARRAYS), (folder / ARRAYS).open("wb") as file:
            np.savez(file, **arrays)
        more = {} if self.speakers is None else {"speakers": self.speakers.save(folder)}
        return {
            "front": front_to_json(self.front),
            **more,
            "delta_order": self.delta_order,
            "cmvn": self.cmvn,
            "normalised": self.normalised,
            "network": {"type": type_name(self.network), "values": network_values(self.network)},
            "inputs": self.inputs,
            "outputs": self.outputs,
            "stack": self.stack,
        }

    @staticmethod
    def open(
        content: Mapping[str, Any], files: Mapping[str, Path], gaussians: AdaptedGaussians | None = None
    ) -> AcousticModel:
        """Read what `save` wrote; `files` maps names to verified files, `gaussians` is that of the recogniser."""
        arrays = read_arrays(files[ARRAYS], "copy the run again")
        sizes = {name: int(content[name]) for name in ("delta_order", "inputs", "outputs", "stack")}
        prior = torch.from_numpy(arrays["log_prior"]) if "log_prior" in arrays else None
        if prior is not None and (prior.shape != (sizes["outputs"],) or not prior.isfinite().all()):
            raise ValueError(f"a prior of shape {tuple(prior.shape)} for {sizes['outputs']} outputs")
        pair = (arrays["mean"], arrays["deviation"]) if "mean" in arrays else None
        if content["cmvn"] not in ("speaker", "utterance", "none"):
            raise ValueError(f"unknown scope {content['cmvn']!r}")
        columns = content["normalised"]
        if columns not in ("static", "all"):
            raise ValueError(f"unknown columns {columns!r}")
        front, network = front_of_json(content["front"], FRONTS), _network(content["network"])
        training = None if pair is None else lambda: pair
        inputs = content.get("speakers")
        speakers = None if inputs is None else SpeakerInputs.open(inputs, files, gaussians)
        kept: dict[str, Any] = {"cmvn": content["cmvn"], "normalised": columns, **sizes}
        return AcousticModel(front, network=network, log_prior=prior, training=training, speakers=speakers, **kept)


def scores_of(network: nn.Module, feats_TF: np.ndarray, log_prior: Tensor | None, stack: int) -> np.ndarray:
    if log_prior is not None:
        return frame_classifier.log_likelihoods(network, feats_TF, log_prior)
    ((_, scores_UC),) = posteriors(network, {"": feats_TF}, stack)
    return scores_UC


def posteriors(network: nn.Module, feats: Mapping[str, np.ndarray], stack: int) -> Iterator[tuple[str, np.ndarray]]:
    """Pairs of utterance and (U, C) ln P(column | frame), float32, computed in batches of similar length."""
    names = list(feats)
    device = next(network.parameters()).device
    for group in UtteranceBatches(tuple(len(feats[name]) for name in names), BATCH).in_order():
        with evaluating(network), torch.inference_mode():
            feats_NTF, lengths_N = pad([feats[names[i]] for i in group])
            logits_NUC = network(feats_NTF.to(device), lengths_N.to(device))
            rows = logits_NUC.log_softmax(-1).float().cpu().numpy()
        frames = ((lengths_N + stack - 1) // stack).tolist()
        yield from ((names[i], row[:u]) for i, row, u in zip(group, rows, frames, strict=True))


def training_statistics(train: Corpus, front: LogMel, cache: Path, absent: Absent, delta_order: int = 0) -> Pair:
    """Mean and deviation of all frames of train, with derivatives up to an order.

    Raises:
        SettingError: the features are not in `cache`, and `absent` refuses to make them.
    """
    if absent == "refuse" and not is_prepared(train, front, cache):
        refuse_to_make("features of train", cache)
    store = prepare(train, front, cache, cores_here())
    return statistics(deltas(store[name], delta_order) for name in store)


def type_name(network: object) -> str:
    """Name of a network's class: the plain name of one of this package, else with its module."""
    if isinstance(network, UnknownNetwork):
        return network.type
    kind = type(network)
    if NETWORKS.get(kind.__name__) is kind:
        return kind.__name__
    return f"{kind.__module__}.{kind.__qualname__}"


def network_values(network: Any) -> Mapping[str, Any]:
    """Values of a description's fields; those of a field that is a description itself, by their names."""
    if isinstance(network, UnknownNetwork):
        return network.values
    values = {field.name: getattr(network, field.name) for field in fields(network)}
    return {name: asdict(v) if is_dataclass(v) and not isinstance(v, type) else v for name, v in values.items()}


def made_network(kind: type, values: Mapping[str, Any]) -> Any:
    """Description of a network from the values of a file: lists become tuples, mappings the field's own class."""
    types = get_type_hints(kind) if any(isinstance(value, Mapping) for value in values.values()) else {}
    return kind(**{str(name): _value(value, types.get(name)) for name, value in values.items()})


def _value(value: Any, wanted: Any) -> Any:
    if isinstance(value, list):
        return tuple(_value(item, None) for item in value)
    if not isinstance(value, Mapping):
        return value
    kinds = [option for option in (*get_args(wanted), wanted) if isinstance(option, type) and is_dataclass(option)]
    if len(kinds) != 1:
        raise TypeError(f"the values {dict(value)} belong to no field of {wanted}")
    return made_network(kinds[0], value)


def _network(content: Mapping[str, Any]) -> NetworkConfig:
    name, values = str(content["type"]), dict(content["values"])
    layers = values.get("layers", 1)
    if isinstance(layers, int) and layers > MOST_LAYERS:  # each would be made, before sizes are compared
        raise ValueError(f"a network of {layers} layers, more than {MOST_LAYERS}")
    if name not in NETWORKS:
        return UnknownNetwork(name, values)
    made: NetworkConfig = made_network(NETWORKS[name], values)
    return made
