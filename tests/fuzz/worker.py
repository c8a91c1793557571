"""One process that tries cases: prints "begin SEED" and then the verdict, so that a killing case is known.

    python -m fuzz.worker TARGET SEED [SEED ...]

Files of the last case are left in the folder named by --keep, if given.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

import torch

from tests.fuzz.harness import Target, judge, limit_memory, mutant, valid_files, write

ODD = (
    *("checkpoints", "models", "records", "requests", "traces", "runs", "cuts", "lexicons", "arpa", "grammars"),
    *("shards", "frame stores", "hmm", "graphs", "language models", "recognisers", "scoring"),
)
SPEECH = ("lhotse", "kaldifst", "kaldi_hmm_gmm", "kaldilm", "soundfile")


def targets() -> Mapping[str, Target]:
    """All targets whose libraries are installed."""
    modules = ["tests.fuzz.targets_core"]
    if all(find_spec(name) for name in SPEECH):
        modules.append("tests.fuzz.targets_speech")
    found = {name: target for module in modules for name, target in importlib.import_module(module).TARGETS.items()}
    return found | {f"odd {name}": replace(found[name], odd=True) for name in ODD if name in found}


def seeds_of(words: Sequence[str]) -> list[int]:
    """Seeds from words such as 7 and 100-199."""
    found: list[int] = []
    for word in words:
        first, _, last = word.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def main() -> None:
    """Try the cases on the command line; "--" separates groups of a target and its seeds."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    faulthandler.enable()
    verdicts = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # native libraries print to both
    keep = sys.argv[1] == "--keep" and Path(sys.argv[2])
    words = sys.argv[3 if keep else 1 :]
    known, limited = targets(), False
    groups = [group.split("\t") for group in "\t".join(words).split("\t--\t")]
    made = {name: valid_files(known[name]) for name, *_ in groups}
    for name, *seeds in groups:
        if not limited:
            verdict = judge(known[name], made[name])
            tell(
                verdicts, name, -1, verdict.kind, verdict.what
            )  # the valid files themselves; also loads what loads late
            limit_memory()
            limited = True
        for seed in seeds_of(seeds):
            print(json.dumps({"begin": seed, "target": name}), file=verdicts)
            files = mutant(known[name], made[name], seed)
            if keep:
                write(files, keep)
            verdict = judge(known[name], files)
            tell(verdicts, name, seed, verdict.kind, verdict.what)


def tell(verdicts: TextIO, target: str, seed: int, kind: str, what: str) -> None:
    """One line about a case."""
    print(json.dumps({"seed": seed, "target": target, "kind": kind, "what": what}), file=verdicts)


if __name__ == "__main__":
    main()
