"""Dask with two workers on this host beside two processes: the speed of passes over blocks, and their bits.

    python benchmarks/engines.py [--utterances 6000] [--repeats 9]

A drawn corpus of about 200,000 frames is cut into eight blocks. A pass is an alignment and an E step of monophones with
1,000 Gaussians; the processes run before the first one that counts, and have made their training graphs. Sides
alternate in one run. The sums of all passes must have the same bits. Needs `murmur-asr[cluster]` and two idle cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np

from measure import bar, close, interleave, median_ratio
from murmur.execution.executors import Engine
from murmur.speech.hmm import passes
from murmur.speech.hmm.blocks import Workers, cut_into_blocks
from murmur.speech.hmm.em_loop import EmConfig
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.monophone import train_monophone
from murmur.speech.hmm.passes import AlignOptions, PassStats

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.dask_workers import dask_engine
from tests.support.drawn_corpus import Corpus, draw_corpus

KIND = "long"
LEAST_SPEED = 0.93
SMALL = EmConfig(gaussians=1000, passes=2, grow_passes=2, align_passes=(2,), min_gaussian_frames=2)


def wider(corpus: Corpus, columns: int = 39) -> Corpus:
    """The corpus with as many columns as cepstra with derivatives have, the further ones without meaning."""
    random = np.random.default_rng(1)
    more = {
        u: np.concatenate([x, random.standard_normal((len(x), columns - x.shape[1])).astype(np.float32)], 1)
        for u, x in corpus.feats.items()
    }
    return corpus._replace(feats=more)


class Side:
    """Workers with the blocks of the corpus, and the sums of the last pass."""

    def __init__(self, workers: Workers, model: HmmGmm) -> None:
        self.workers, self.model = workers, model
        self.sums = self.one_pass()  # with the start of processes, and training graphs

    def one_pass(self) -> PassStats:
        """An alignment and an E step."""
        self.workers.gather(passes.realign, self.model, AlignOptions())
        return reduce(add, self.workers.map(passes.accumulate, self.model))

    def seconds(self) -> float:
        """Seconds of a pass on the clock."""
        began = time.perf_counter()
        self.sums = self.one_pass()
        return time.perf_counter() - began


def same_bits(one: PassStats, two: PassStats) -> bool:
    """True if two sums are equal to the last bit."""
    pairs = [(getattr(one.mixtures, n), getattr(two.mixtures, n)) for n in ("occupancy", "first", "second")]
    pairs.append((one.transition_counts, two.transition_counts))
    return one.mixtures.log_likelihood == two.mixtures.log_likelihood and all(np.array_equal(a, b) for a, b in pairs)


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--utterances", type=int, default=6000)
    parser.add_argument("--repeats", type=int, default=9)
    given = parser.parse_args()
    corpus = wider(draw_corpus(given.utterances))
    few = {u: corpus.texts[u] for u in sorted(corpus.texts)[:500]}
    model = train_monophone(corpus.lang, {u: corpus.feats[u] for u in few}, few, SMALL).model
    with ExitStack() as stack:
        dask = stack.enter_context(dask_engine(folder=Path("runs/engines")))
        blocks = {name: list(cut_into_blocks(corpus.feats, corpus.texts)) for name in ("dask", "processes")}
        engines: dict[str, Engine] = {"dask": dask, "processes": Engine(jobs=2)}
        sides = {n: Side(stack.enter_context(Workers(blocks[n], engines[n])), model) for n in engines}
        same = [same_bits(sides["dask"].sums, sides["processes"].sums)]

        def timed(name: str) -> Callable[[], float]:
            def run() -> float:
                seconds = sides[name].seconds()
                same.append(same_bits(sides["dask"].sums, sides["processes"].sums))
                return seconds

            return run

        values = interleave({name: timed(name) for name in sides}, given.repeats)
    bars = [
        bar(
            "speed of two workers of Dask over that of two processes",
            median_ratio(values, "processes", "dask"),
            LEAST_SPEED,
            at_most=False,
        ),
        bar("passes with other bits", sum(not each for each in same), 0),
    ]
    frames = sum(map(len, corpus.feats.values()))
    figures = {"frames": frames, "blocks": len(blocks["dask"]), "Gaussians": int(model.mixtures.sizes.sum())}
    close("engines", {**figures, **{f"{name}, seconds a pass": min(each) for name, each in values.items()}}, bars)


if __name__ == "__main__":
    main()
