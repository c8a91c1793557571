"""Data of the CTC recipe: three splits of features and transcripts, read, normalised and held in memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from murmur.execution.cores import cores_here
from murmur.speech.corpus.corpus import Corpus, CorpusError, Problem
from murmur.speech.corpus.left_out import left_out
from murmur.speech.ctc import criterion as ctc
from murmur.speech.ctc.labels import LabelGraph
from murmur.speech.features.analysis import LogMel, Ready, deltas, sample_rate_hz
from murmur.speech.features.cmvn import Scope, normalise_all
from murmur.speech.features.shards import FeatureStore, is_prepared, prepare
from murmur.speech.lexicon.lexicon import Entry, pronunciations_of, read_lexicon
from murmur.tasks.corpora import splits
from murmur.tasks.prepared import Absent, refuse_to_make
from murmur.tasks.pronouncing import Guess, completed_lexicon

log = logging.getLogger(__name__)
BINS = 40  # log-mel
PARTS = ("train", "dev", "test")
NAMED = 8  # missing words in a message


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

    @property
    def frames(self) -> int:
        """Feature frames of the utterances that CTC can align."""
        return sum(len(self.feats[name]) for name in self.targets)


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


@dataclass(frozen=True)
class Reading:
    """Options for reading data.

    Attributes:
        kind: units of the network.
        stack: number of frames joined into one network input.
        cmvn: scope of the statistics that normalise the features: "speaker", "utterance" or "none".
        lexicon: pronunciations for phone units.
        guess: source of pronunciations for words of the transcripts that the lexicon lacks.
        cache: folder of features and completed lexicons.
        absent: "make" to make missing data, otherwise missing data is an error.
    """

    kind: ctc.Kind
    stack: int
    cmvn: Scope
    lexicon: Path
    guess: Guess
    cache: Path
    absent: Absent = "make"


def load(root: Path, how: Reading) -> Data:
    """Read `root`/data/{train,dev,test}, computing the features or finding them in `how.cache`.

    Corpora that bring features (feats.scp) get two orders of deltas; audio gives 40 log-mel bins.

    Raises:
        CorpusError: a split is missing or malformed, or over 1 % of train is unusable; the message names some.
    """
    parts = splits(root)
    train = parts[0]
    front = front_of(train)
    units, lexicon = _units(parts, how)
    label = labeller(units, lexicon)
    lacking = [name for name, part in zip(PARTS, parts, strict=True) if not is_prepared(part, front, how.cache)]
    if lacking and how.absent == "refuse":
        refuse_to_make(f"features of {', '.join(lacking)}", how.cache)
    held = [_split(prepare(part, front, how.cache, cores_here(), progress=True), label, how) for part in parts]
    for name, part in zip(PARTS, held, strict=True):
        _log_problems(name, part.problems)
    train.without(held[0].problems)  # raises an error if too many are lost
    aligned = replace(held[0], names=tuple(name for name in held[0].names if name in held[0].targets))
    return Data(units, aligned, held[1], held[2], isinstance(front, LogMel), lexicon)


def front_of(train: Corpus) -> LogMel | Ready:
    """The features that a corpus brings, or log-mel bins of its audio."""
    return Ready() if train.utterances[0].features else LogMel(rate_hz=sample_rate_hz(train), bins=BINS)


def labeller(units: ctc.Units, lexicon: Iterable[Entry] = ()) -> Callable[[str], LabelGraph]:
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


def _units(parts: tuple[Corpus, ...], how: Reading) -> tuple[ctc.Units, tuple[Entry, ...]]:
    if how.kind != "phone":
        return ctc.Units.of(parts[0].texts.values(), how.kind), ()
    # Words of dev and test that training lacks stay unknown: a vocabulary made from them would flatter the results.
    entries = tuple(
        read_lexicon(completed_lexicon(how.lexicon, parts[0].texts.values(), how.guess, how.cache, how.absent))
    )
    return ctc.Units.of((" ".join(phones) for _, phones in entries), how.kind), entries


def _split(store: FeatureStore, label: Callable[[str], LabelGraph], how: Reading) -> SplitData:
    feats = normalise_all(store, store.corpus.speakers, how.cmvn)
    if isinstance(store.front, Ready):
        feats = {name: deltas(feats_TF) for name, feats_TF in feats.items()}
    texts = store.corpus.texts
    targets: dict[str, LabelGraph] = {}
    problems = []
    for name, text in texts.items():
        try:
            graph = label(text)
        except CorpusError as error:
            problems.append(Problem(name, "text", str(error)))
            continue
        frames = len(feats[name])
        if graph.frames_needed <= -(-frames // how.stack):
            targets[name] = graph
        else:
            what = f"its {frames} frames in steps of {how.stack} are fewer than the {graph.frames_needed} steps that"
            problems.append(
                Problem(name, "text", f"{what} its transcript needs: is it cut off, or task.stack too large?")
            )
    return SplitData(tuple(texts), feats, texts, targets, store.corpus.speakers, tuple(problems))


def _log_problems(part: str, problems: tuple[Problem, ...]) -> None:
    if problems:
        reasons = [(problem.utterance, problem.what) for problem in problems]
        log.warning("%s, for the criterion: %s", part, left_out("utterance", reasons))
