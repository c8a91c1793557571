"""Memory of building HCLG of a 20,000-word trigram, and the speed of decoding on it with one core.

    python benchmarks/graph_memory.py CORPUS [CACHE]

CORPUS is the folder that `murmur train librispeech` takes; it is required. CACHE keeps the Gaussian systems between
calls (some minutes to train); the graph is always built anew, in a separate process, whose peak resident memory counts.
Every third development utterance is decoded with the triphones' scores, at the best acoustic scale there;
the real-time factor counts processor seconds of the search.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch

from measure import bar, close
from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.decoding.decoder import DecodeOptions
from murmur.speech.decoding.graph_store import StoredGraph
from murmur.speech.decoding.tuning import DevelopmentSet, Trial, tune_acoustic_scale, tune_beam
from murmur.speech.tasks import corpora
from murmur.speech.tasks.graph_sources import HmmSources, Search
from murmur.speech.tasks.hybrid.config import FrontEnd, HmmStages
from murmur.speech.tasks.hybrid.hmm import HmmHalf
from murmur.speech.tasks.word_search import WordSearch

KIND = "study"
SCALES = (0.06, 0.07, 0.08, 0.09)
SCALE_SEARCH = DecodeOptions(beam=11.0, max_active=2500)
BEAMS = ((14.0, 7000), (13.0, 7000), (12.0, 4000), (11.0, 2500), (10.0, 2000))
TOLERANCE_PERCENT = 0.2
EVERY = 3
BUILD = "--build"


def systems(corpus: Path, cache: Path) -> HmmHalf:
    """The Gaussian systems, kept in `cache`."""
    return HmmHalf(corpora.LOADERS["librispeech"](corpus), corpus / "lexicon.txt", FrontEnd(), HmmStages(), cache)


def build(corpus: Path, cache: Path, graphs: Path) -> None:
    """Build the graph and print the memory and time; runs in the measured process."""
    half = systems(corpus, cache)
    states, material = half.trained[-1].model.states, half.material
    sources = HmmSources(states, material.lexicon, 0.5, Search("tg"), material.language_models)
    before = time.process_time()
    folder = WordSearch(sources, "tg", graphs).folder
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    facts = asdict(StoredGraph.of(folder).facts)
    print(json.dumps({"folder": str(folder), "cpu_seconds": time.process_time() - before, "gib": peak_gib, **facts}))


def decode(corpus: Path, cache: Path, folder: Path) -> tuple[Trial, list[Trial]]:
    """The fastest beam that is as good as the widest, and all trials, widest first."""
    half = systems(corpus, cache)
    model, dev = half.trained[-1].model, half.material.dev
    feats = half.features(dev)
    names = list(dev.texts)[::EVERY]
    references = {name: dev.texts[name] for name in names}
    development = DevelopmentSet(folder, {name: model.loglikes(feats[name]) for name in names}, references)
    scale, trials = tune_acoustic_scale(development, SCALES, SCALE_SEARCH)
    print(*trials, sep="\n", flush=True)
    return tune_beam(development, BEAMS, scale.options, TOLERANCE_PERCENT)


def run(corpus: Path, cache: Path, graphs: Path) -> None:
    """Measure both."""
    systems(corpus, cache).trained  # noqa: B018  (trained here, so that the measured process only reads)
    command = [sys.executable, __file__, BUILD, str(corpus), str(cache), str(graphs)]
    built = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])
    folder = Path(built.pop("folder"))
    print(built, flush=True)
    best, trials = decode(corpus, cache, folder)
    print(*trials, sep="\n", flush=True)
    figures = {
        "build": built,
        "trials": [
            {"beam": t.options.beam, "max_active": t.options.max_active, "scale": t.options.acoustic_scale}
            | {"wer": t.rate.percent, "real_time_factor": t.real_time_factor}
            for t in trials
        ],
    }
    bars = [
        bar("peak memory of building HCLG of the 20,000-word trigram, GiB", built["gib"], 4.0),
        bar("real-time factor on one core, within 0.2 % of the widest beam", best.real_time_factor, 0.2),
    ]
    close("graph_memory", figures, bars)


def main(arguments: list[str]) -> None:
    torch.set_num_threads(1)
    if arguments[:1] == [BUILD]:
        build(*map(Path, arguments[1:]))
        return
    try:
        corpora.LOADERS["librispeech"](Path(arguments[0] if arguments else "corpora/librispeech"))
    except CorpusError as error:
        print(f"cannot run here: {error}\nusage: python benchmarks/graph_memory.py CORPUS [CACHE]")
        print(json.dumps({"benchmark": "graph_memory", "figures": {}, "bars": []}))
        return
    with tempfile.TemporaryDirectory() as scratch:
        corpus = Path(arguments[0] if arguments else "corpora/librispeech")
        cache = Path(arguments[1]) if len(arguments) > 1 else Path(scratch)
        run(corpus, cache, Path(scratch, "graphs"))


if __name__ == "__main__":
    main(sys.argv[1:])
