"""Outputs of a CTC network on a split: log posteriors, best paths, the criterion; and their error rates.

Shapes: N utterances, U output frames, C columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from murmur.core.model_mode import evaluating
from murmur.engine.task import Score
from murmur.speech.ctc import criterion as ctc
from murmur.speech.ctc import labels as ctc_labels
from murmur.speech.decoding.bootstrap import interval
from murmur.speech.decoding.decoder import DecodeOptions
from murmur.speech.decoding.wer import ErrorRate, score, score_utterances
from murmur.speech.features.batching import UtteranceBatches, pad
from murmur.tasks.ctc.data import Data, SplitData
from murmur.tasks.recognised import recognised

EVALUATION_SIZE = 32
FEW_SPEAKERS = 8  # with fewer, the interval resamples utterances instead of speakers


@dataclass(frozen=True, eq=False)
class Outputs:
    """Outputs for every utterance of a split.

    Attributes:
        scores: (U, C) float32, ln P(column | frame).
        best: columns of the best path, repeats merged, without blanks.
        loss: -ln P(transcript | frames) / frames over all utterances with targets, nats per feature frame.
    """

    scores: Mapping[str, np.ndarray]
    best: Mapping[str, list[int]]
    loss: float

    def texts(self, units: ctc.Units) -> dict[str, str]:
        """Best paths as text; pronunciations where the units are phones."""
        return {name: units.decode(columns) for name, columns in self.best.items()}


def outputs(model: nn.Module, split: SplitData, stack: int) -> Outputs:
    """Run the network over a split, without gradients or dropout."""
    order = UtteranceBatches(tuple(len(split.feats[name]) for name in split.names), EVALUATION_SIZE).in_order()
    device = next(model.parameters()).device
    scores: dict[str, np.ndarray] = {}
    best: dict[str, list[int]] = {}
    total = 0.0
    with evaluating(model), torch.inference_mode():
        for group in order:
            names = [split.names[i] for i in group]
            feats_NTF, lengths_N = pad([split.feats[name] for name in names])
            logits_NUC = model(feats_NTF.to(device), lengths_N.to(device))
            frames_N = (lengths_N + stack - 1) // stack
            known = [i for i, name in enumerate(names) if name in split.targets]
            graphs = [split.targets[names[i]] for i in known]
            total += float(ctc_labels.loss(logits_NUC[known], frames_N[known], graphs))
            posteriors = logits_NUC.log_softmax(-1).float().cpu().numpy()
            scores |= {name: row[:u] for name, row, u in zip(names, posteriors, frames_N.tolist(), strict=True)}
            best |= dict(zip(names, ctc.greedy(logits_NUC, frames_N), strict=True))
    ordered = sorted(best, key=str.encode)
    return Outputs({n: scores[n] for n in ordered}, {n: best[n] for n in ordered}, total / max(split.frames, 1))


def greedy_rates(data: Data, split: SplitData, found: Outputs) -> dict[str, ErrorRate]:
    """Error rates of best paths: "wer" and "cer"; for phones "per", against the nearest pronunciations."""
    hypotheses = found.texts(data.units)
    if data.units.kind != "phone":
        return {"wer": score(split.texts, hypotheses), "cer": score(split.texts, hypotheses, unit="char")}
    nearest = {name: graph.nearest(found.best[name]) for name, graph in split.targets.items()}
    if not any(nearest.values()):
        return {}
    references = {name: data.units.decode(columns) for name, columns in nearest.items()}
    return {"per": score(references, {name: hypotheses[name] for name in references})}


def greedy_score(data: Data, found: Outputs) -> Score:
    """The error rates of test by best paths."""
    rates = greedy_rates(data, data.test, found)
    figures = {name: rate.percent for name, rate in rates.items()}
    lines = tuple(_line(name, rate) for name, rate in rates.items())
    if data.units.kind == "phone":
        return Score(figures, lines)
    texts = found.texts(data.units)
    return Score(
        {**figures, **_interval(data.test, texts)}, lines, recognised(data.test.texts, texts, data.test.speakers)
    )


def graph_score(data: Data, found: Outputs, texts: Mapping[str, str], options: DecodeOptions) -> Score:
    """The error rates of test with the graph, together with the greedy ones."""
    test = data.test
    greedy = greedy_rates(data, test, found)
    words, characters = score(test.texts, texts), score(test.texts, texts, unit="char")
    figures = {f"greedy {name}": rate.percent for name, rate in greedy.items()}
    figures |= {"acoustic scale": options.acoustic_scale, "insertion penalty": options.insertion_penalty}
    figures |= {"wer": words.percent, "cer": characters.percent, **_interval(test, texts)}
    search = f"scale {options.acoustic_scale:g}, insertion penalty {options.insertion_penalty:g}"
    lines = [f"{words} with the graph, {search}", f"{characters} with the graph"]
    lines += [f"{_line(name, rate)} greedy" for name, rate in greedy.items()]
    return Score(figures, tuple(lines), recognised(test.texts, texts, test.speakers))


def _line(name: str, rate: ErrorRate) -> str:
    return str(rate).replace("%WER", "%PER") if name == "per" else str(rate)


def _interval(split: SplitData, texts: Mapping[str, str]) -> dict[str, float]:
    """Ends of the 95 % bootstrap interval of the word error rate; empty if no word was said."""
    if not any(split.texts.values()):
        return {}
    speakers = split.speakers if len(set(split.speakers.values())) >= FEW_SPEAKERS else None
    found = interval(score_utterances(split.texts, texts), speakers)
    return {"low": found.low, "high": found.high}
