"""Data of CTC training, the outputs of a network on it, and their error rates.

Shapes: N utterances, U output frames, C columns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from murmur.core.model_mode import evaluating
from murmur.engine.task import Score
from murmur.speech import ctc
from murmur.speech.corpus.corpus import Corpus, CorpusError, Problem, left_out
from murmur.speech.ctc import LabelGraph
from murmur.speech.decoding.decoder import DecodeOptions
from murmur.speech.decoding.wer import ErrorRate, score, score_utterances
from murmur.speech.features.analysis import LogMel, Ready, sample_rate_hz
from murmur.speech.features.batching import UtteranceBatches, pad
from murmur.speech.features.cmvn import Scope, all_with_derivatives
from murmur.speech.features.feature_store import FeatureStore
from murmur.speech.lexicon.lexicon import Entry, pronunciations_of
from murmur.speech.tasks.speech_task import recognised, spread

log = logging.getLogger(__name__)
BINS = 40  # log-mel
DELTAS = 2  # of features that a corpus brings
NAMED = 8  # missing words in a message
EVALUATION_SIZE = 32


@dataclass(frozen=True)
class SplitData:
    """One part of the data: utterance names in byte order, normalised feats_TF, transcripts, label graphs, speakers.

    `targets` lacks the utterances that CTC cannot align; `problems` gives the reasons.
    """

    names: tuple[str, ...]
    feats: Mapping[str, np.ndarray]
    texts: Mapping[str, str]
    targets: Mapping[str, LabelGraph]
    speakers: Mapping[str, str]
    problems: tuple[Problem, ...] = ()

    @staticmethod
    def of(name: str, store: FeatureStore, label: Callable[[str], LabelGraph], stack: int, cmvn: Scope) -> SplitData:
        """The utterances of a store; logs those that CTC cannot align. `stack` frames make one input."""
        texts, speakers = store.corpus.texts, store.corpus.speakers
        order = DELTAS if isinstance(store.front, Ready) else 0
        feats = all_with_derivatives(store, speakers, cmvn, order, "static")
        targets: dict[str, LabelGraph] = {}
        reasons: dict[str, str] = {}
        for utterance, text in texts.items():
            try:
                graph = label(text)
            except CorpusError as error:
                reasons[utterance] = str(error)
                continue
            frames = len(feats[utterance])
            if graph.frames_needed <= -(-frames // stack):
                targets[utterance] = graph
            else:
                reasons[utterance] = (
                    f"its {frames} frames in steps of {stack} are fewer than the {graph.frames_needed} steps that its"
                    " transcript needs: is it cut off, or task.network.stack too large?"
                )
        if reasons:
            log.warning("%s, for the criterion: %s", name, left_out("utterance", list(reasons.items())))
        problems = tuple(Problem(utterance, "text", why) for utterance, why in reasons.items())
        return SplitData(tuple(texts), feats, texts, targets, speakers, problems)

    @property
    def frames(self) -> int:
        """Feature frames of the utterances that CTC can align."""
        return sum(len(self.feats[name]) for name in self.targets)


def front_of(train: Corpus) -> LogMel | Ready:
    """The features that a corpus brings, or log-mel bins of its audio."""
    return Ready() if train.utterances[0].features else LogMel(rate_hz=sample_rate_hz(train), bins=BINS)


def labeller(units: ctc.Units, lexicon: Iterable[Entry]) -> Callable[[str], LabelGraph]:
    """Function from a transcript to its label graph; for phones, with all pronunciations that `lexicon` lists.

    The function raises CorpusError for a text that the units cannot write or that has words missing from the lexicon.
    """
    if units.kind != "phone":
        return lambda text: LabelGraph.linear(units.encode(text))
    prons = {
        word: [units.encode(" ".join(phones)) for phones in found] for word, found in pronunciations_of(lexicon).items()
    }

    def graph(text: str) -> LabelGraph:
        missing = sorted({word for word in text.split() if word not in prons})
        if missing:
            raise CorpusError(f"not in the lexicon: {', '.join(missing[:NAMED])} (task.guess=espeak pronounces words)")
        return LabelGraph.of_words([prons[word] for word in text.split()])

    return graph


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
            total += float(ctc.loss(logits_NUC[known], frames_N[known], graphs))
            posteriors = logits_NUC.log_softmax(-1).float().cpu().numpy()
            scores |= {name: row[:u] for name, row, u in zip(names, posteriors, frames_N.tolist(), strict=True)}
            best |= dict(zip(names, ctc.greedy(logits_NUC, frames_N), strict=True))
    ordered = sorted(best, key=str.encode)
    return Outputs({n: scores[n] for n in ordered}, {n: best[n] for n in ordered}, total / max(split.frames, 1))


@dataclass(frozen=True)
class Data:
    """The output units and the three splits; `train` holds only utterances that CTC can align.

    `log_mel` is True if the columns of the features are mel bins, computed here from audio. `lexicon` holds the
    pronunciations behind phone units, and is empty for other units.
    """

    units: ctc.Units
    train: SplitData
    dev: SplitData
    test: SplitData
    log_mel: bool
    lexicon: tuple[Entry, ...] = ()

    def greedy_rates(self, split: SplitData, found: Outputs) -> dict[str, ErrorRate]:
        """Error rates of best paths: "wer" and "cer"; for phones "per", against the nearest pronunciations."""
        hypotheses = found.texts(self.units)
        if self.units.kind != "phone":
            return {"wer": score(split.texts, hypotheses), "cer": score(split.texts, hypotheses, unit="char")}
        nearest = {name: graph.nearest(found.best[name]) for name, graph in split.targets.items()}
        if not any(nearest.values()):
            return {}
        references = {name: self.units.decode(columns) for name, columns in nearest.items()}
        return {"per": score(references, {name: hypotheses[name] for name in references})}

    def greedy_score(self, found: Outputs) -> Score:
        rates = self.greedy_rates(self.test, found)
        figures = {name: rate.percent for name, rate in rates.items()}
        lines = tuple(_line(name, rate) for name, rate in rates.items())
        if self.units.kind == "phone":
            return Score(figures, lines)
        return self._word_score(found.texts(self.units), figures, lines)

    def graph_score(self, found: Outputs, texts: Mapping[str, str], options: DecodeOptions) -> Score:
        """The error rates of test with the graph, together with the greedy ones."""
        greedy = self.greedy_rates(self.test, found)
        words, characters = score(self.test.texts, texts), score(self.test.texts, texts, unit="char")
        figures = {f"greedy {name}": rate.percent for name, rate in greedy.items()}
        figures |= {"acoustic scale": options.acoustic_scale, "insertion penalty": options.insertion_penalty}
        figures |= {"wer": words.percent, "cer": characters.percent}
        search = f"scale {options.acoustic_scale:g}, insertion penalty {options.insertion_penalty:g}"
        lines = [f"{words} with the graph, {search}", f"{characters} with the graph"]
        lines += [f"{_line(name, rate)} greedy" for name, rate in greedy.items()]
        return self._word_score(texts, figures, tuple(lines))

    def _word_score(self, texts: Mapping[str, str], figures: dict[str, float], lines: tuple[str, ...]) -> Score:
        if any(self.test.texts.values()):
            found = spread(score_utterances(self.test.texts, texts), self.test.speakers)
            figures = {**figures, "low": found.low, "high": found.high}
        return Score(figures, lines, recognised(self.test.texts, texts, self.test.speakers))


def _line(name: str, rate: ErrorRate) -> str:
    return str(rate).replace("%WER", "%PER") if name == "per" else str(rate)
