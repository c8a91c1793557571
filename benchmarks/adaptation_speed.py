"""Speaker adaptation: its time against an alignment pass, and against decoding in one pass. CPU seconds, in turn.

    python benchmarks/adaptation_speed.py an4 --set task.corpus=FOLDER --set task.cache=FOLDER

The Gaussian systems of the recipe are made first if the cache lacks them. "Statistics" are those of one estimation of
the transforms of all training speakers; an alignment pass is the one of the same system on the same utterances. "Two
passes" are the decoding of dev on unadapted features, the estimation, and the decoding of adapted features; "one pass"
is a decoding of unadapted features with the settings of the second pass.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from measure import bar, close, interleave, median_ratio
from murmur.run.configuration import configure, resolved
from murmur.speech.decoding.decode_set import Decoded
from murmur.speech.decoding.decoder import DecodeOptions
from murmur.speech.hmm import passes
from murmur.speech.hmm.blocks import Workers, cut_into_blocks
from murmur.speech.hmm.fmllr import Transforms, speaker_stats, transforms_from_paths
from murmur.speech.hmm.sat import SatConfig
from murmur.speech.tasks.graph_sources import first_options
from murmur.speech.tasks.hybrid.decode import TwoPass
from murmur.speech.tasks.hybrid.task import HybridTask

KIND = "study"


def seconds_of(call: Callable[[], object]) -> float:
    """CPU seconds of a call."""
    began = time.process_time()
    call()
    return time.process_time() - began


def training_seconds(task: HybridTask, config: SatConfig, repeats: int) -> dict[str, list[float]]:
    """Seconds of the statistics of the transforms, and of an alignment, of all training utterances."""
    stage, train = task.hmms.trained[-1], task.material.train
    assert stage.adaptation is not None
    feats = task.hmms.train_feats.part(list(stage.tids))
    with Workers(cut_into_blocks(feats, train.texts, train.speakers, stage.tids)) as workers:
        workers.transforms = stage.adaptation.transforms
        align = partial(workers.map, passes.realign, stage.model, config.em.align)
        align()  # makes the training graphs
        statistics = partial(workers.map, speaker_stats, stage.model, stage.model, config.fmllr)
        sides = {"statistics": partial(seconds_of, statistics), "alignment": partial(seconds_of, align)}
        return interleave(sides, repeats)


class Decoding:
    """Decoding of dev in one pass, and in two."""

    def __init__(self, half: TwoPass) -> None:
        self._half, self._dev = half, half.decoder.material.dev
        self._first, widest = half.first_pass.options, first_options(half.search)
        self._wide = replace(self._first, beam=widest.beam, max_active=widest.max_active)
        self._feats = half.feats("dev")
        _ = half.words.folder  # the graph

    def one(self) -> Decoded:
        """One pass."""
        return self._decoded({}, self._wide)

    def two(self) -> Decoded:
        """Both passes, with the estimation between them."""
        stage = self._half.stage
        assert stage.adaptation is not None
        paths = {u: found.labels for u, found in self._decoded({}, self._first).hypotheses.items()}
        config = stage.adaptation.decoding
        transforms = transforms_from_paths(stage.pair, self._feats, paths, self._dev.speakers, config)
        return self._decoded(transforms, self._wide)

    def _decoded(self, transforms: Transforms, options: DecodeOptions) -> Decoded:
        pair, speakers = self._half.stage.pair, self._dev.speakers
        scores = ((name, pair.loglikes(self._feats[name], transforms.get(speakers[name]))) for name in self._dev.texts)
        return self._half.words.decode(scores, options)


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    task = configure(resolved(given.recipe), given.settings).task
    if not isinstance(task, HybridTask) or task.hmm.sat is None:
        raise SystemExit(f"{given.recipe} has no speaker-adapted Gaussian system")
    training = training_seconds(task, task.hmm.sat, given.repeats)
    decoding = Decoding(task.two_pass)
    sides = {"one pass": lambda: seconds_of(decoding.one), "two passes": lambda: seconds_of(decoding.two)}
    decoded = interleave(sides, given.repeats)
    bars = [
        bar("statistics of fMLLR over an alignment pass", median_ratio(training, "statistics", "alignment"), 0.25),
        bar("two-pass decoding over one pass", median_ratio(decoded, "two passes", "one pass"), 2.5),
    ]
    figures = {f"{name}, CPU s": min(values) for name, values in {**training, **decoded}.items()}
    close(f"adaptation_speed_{Path(given.recipe).stem}", figures, bars)


if __name__ == "__main__":
    main()
