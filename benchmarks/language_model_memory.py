"""Memory and speed of `murmur lm train` out of core (`--memory`) and in memory.

    python benchmarks/language_model_memory.py TEXT [--words 3] [--large 100] [--memory 1G] [--order 3] [--rounds 3]

TEXT is a file of sentences (plain or .gz). Longer texts are made of it: the beginning of one sentence, drawn at random,
is followed by the end of another one. Words are in millions. Both ways read the same `--words`, in turn, and their
files must be equal byte for byte; `--large` words are read out of core alone. Each measurement is a process of its own:
peak resident memory and the most bytes of its temporary files, looked at five times a second, and words per processor
second, without the seconds for a text of one sentence.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from measure import bar, close, interleave, median_ratio
from murmur.speech.tasks.texts import sentences_of

KIND = "study"
NAME = "language_model_memory"
MILLION = 1_000_000


class Measured(NamedTuple):
    """Processor seconds and peaks of one process."""

    seconds: float
    memory_gib: float
    temporary_gib: float


def recombined(sentences: list[list[str]], path: Path, words: int, seed: int = 0) -> int:
    """Write a text of at least so many words, and return their number."""
    random, done = np.random.default_rng(seed), 0
    with path.open("w", encoding="utf-8") as file:
        while done < words:
            for a, b, cut_a, cut_b in random.random((10_000, 4)).tolist():
                first, second = sentences[int(a * len(sentences))], sentences[int(b * len(sentences))]
                line = first[: 1 + int(cut_a * len(first))] + second[int(cut_b * len(second)) :]
                file.write(" ".join(line) + "\n")
                done += len(line)
    return done


def temporary_bytes(process: int) -> int:
    """Bytes of the files without names that a process holds."""
    size = 0
    for link in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            found = link.stat()
            size += found.st_size if found.st_nlink == 0 else 0
    return size


def peak_bytes(process: int) -> int:
    """Peak resident memory of a process since it runs its program; `wait4` gives that of its parent, if it is more."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{process}/status").read_text(encoding="utf-8"))
    return int(found[1]) * 1024 if found else 0


def trained(text: Path, out: Path, options: list[str]) -> Measured:
    """Measure one command."""
    command = [sys.executable, "-m", "murmur", "lm", "train", str(text), "--out", str(out), *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    memory = most = 0
    while True:
        ended, status, used = os.wait4(process.pid, os.WNOHANG)
        if ended:
            break
        with suppress(OSError):  # it has ended
            memory = max(memory, peak_bytes(process.pid))
            most = max(most, temporary_bytes(process.pid))
        time.sleep(0.2)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return Measured(used.ru_utime + used.ru_stime, memory / 2**30, most / 2**30)


def both(scratch: Path, words: int, order: list[str], memory: list[str], rounds: int) -> dict[str, object]:
    """Measure both ways on the same text."""
    text, peaks = scratch / "text", dict[str, Measured]()
    (scratch / "one").write_text("ONE SENTENCE\n")
    start = trained(scratch / "one", scratch / "one.arpa", order).seconds

    def speed(name: str, options: list[str]) -> float:
        peaks[name] = trained(text, scratch / name, [*order, *options])
        return words / (peaks[name].seconds - start)

    values = interleave(
        {"in_memory": lambda: speed("in_memory", []), "out_of_core": lambda: speed("out_of_core", memory)}, rounds
    )
    if not filecmp.cmp(scratch / "in_memory", scratch / "out_of_core", shallow=False):
        raise SystemExit("the files differ")
    return {
        "words": words,
        "start_seconds": start,
        "words_per_second": values,
        "memory_gib": {name: peak.memory_gib for name, peak in peaks.items()},
        "temporary_gib": peaks["out_of_core"].temporary_gib,
        "median_ratio": median_ratio(values, "out_of_core", "in_memory"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--words", type=float, default=3)
    parser.add_argument("--large", type=float, default=100)
    parser.add_argument("--memory", default="1G")
    parser.add_argument("--order", default="3")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    sentences = [line.split() for line in sentences_of([given.text])]
    order, memory = ["--order", given.order], ["--memory", given.memory]
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        words = recombined(sentences, scratch / "text", int(given.words * MILLION))
        small = both(scratch, words, order, memory, given.rounds)
        words = recombined(sentences, scratch / "text", int(given.large * MILLION))
        large = trained(scratch / "text", scratch / "large.arpa", [*order, *memory])
        bytes_of_model = (scratch / "large.arpa").stat().st_size
    speed = words / large.seconds
    print(f"{words} words out of core: {speed:.0f} words/s, {large.memory_gib:.2f} GiB", flush=True)
    figures = {
        "both": small,
        "large": {"words": words, "words_per_second": speed, "bytes_of_model": bytes_of_model, **large._asdict()},
    }
    bars = [
        bar("words a second, out of core / in memory", float(str(small["median_ratio"])), 0.3, at_most=False),
        bar(f"peak memory of {words / MILLION:.0f} million words out of core, GiB", large.memory_gib, 2.0),
    ]
    close(NAME, figures, bars)


if __name__ == "__main__":
    main()
