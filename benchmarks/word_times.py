"""Times and confidences of transcribed words on real speech, against a reference alignment and the transcripts.

    python benchmarks/word_times.py RUN --corpus corpora/librispeech_mini_s

Transcribes the test utterances with the run and aligns the words with the transcripts. Correct words are
compared with the reference's times (`align/words.ctm.gz`, a forced alignment by another recogniser): the median of the
absolute difference of starts and ends must be 40 ms at most. The share of right words must rise with the confidence.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median

import kaldialign
import numpy as np
from rich.progress import track

from murmur.speech.corpus.kaldi_dir import read_data_dir
from murmur.speech.corpus.recordings import read_channels
from murmur.speech.decoding.transcript import Word
from murmur.speech.recognition.trained_run import Wanted, open_run
from murmur.speech.recognition.transcriber import graph_search, transcriber

KIND = "study"
GAP = "*"
BAR_SECONDS = 0.04
BINS = (0.0, 0.5, 0.7, 0.9, 0.99, 1.0 + 1e-9)


def main() -> None:
    """Transcribe, align, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--grammar", default=None)
    parser.add_argument("--beam", type=float, default=None)
    parser.add_argument("--most", type=int, default=10**9, help="utterances")
    wanted = parser.parse_args()
    run = open_run(Wanted(wanted.run))
    search, options = run.search(wanted.grammar), run.options({} if wanted.beam is None else {"beam": wanted.beam})
    work = transcriber(run, None if search is None else graph_search(search, options), 60.0)
    reference = read_ctm(wanted.corpus / "align" / "words.ctm.gz")
    pairs: list[tuple[Word, Word]] = []
    judged: list[tuple[float, bool]] = []
    utterances = [u for u in read_data_dir(wanted.corpus / "data" / "test").utterances if u.id in reference]
    for utterance in track(utterances[: wanted.most], "transcribing", transient=True):
        assert utterance.audio is not None
        (transcript,) = work([(read_channels(utterance.audio.path, work.rate_hz, "average")[0], utterance.id)])
        found = transcript.words
        right = alike(reference[utterance.id], found)
        pairs += right
        spoken_right = {id(word) for _, word in right}
        judged += [(word.confidence, id(word) in spoken_right) for word in found]
    report(pairs, judged)


def read_ctm(path: Path) -> Mapping[str, list[Word]]:
    """{utterance: words with times}; silences are left out."""
    found: dict[str, list[Word]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            name, _, start, length, word = line.split()[:5]
            if not word.startswith(("<", "[")) and word != "SIL":
                found.setdefault(name, []).append(Word(word.upper(), float(start), float(start) + float(length), 1.0))
    return found


def alike(reference: list[Word], found: tuple[Word, ...]) -> list[tuple[Word, Word]]:
    """Pairs of equal words in the alignment with the fewest errors."""
    pairs, here, there = [], 0, 0
    for expected, heard in kaldialign.align([w.word for w in reference], [w.word for w in found], GAP):
        if expected == heard:
            pairs.append((reference[here], found[there]))
        here += expected != GAP
        there += heard != GAP
    return pairs


def report(pairs: list[tuple[Word, Word]], judged: list[tuple[float, bool]]) -> None:
    """Print figures and bars."""
    starts = [found.start_seconds - wanted.start_seconds for wanted, found in pairs]
    ends = [found.end_seconds - wanted.end_seconds for wanted, found in pairs]
    apart = median(map(abs, [*starts, *ends]))
    figures = {
        "words right": len(pairs),
        "words said": len(judged),
        "median absolute difference of starts, s": median(map(abs, starts)),
        "median absolute difference of ends, s": median(map(abs, ends)),
        "median difference of starts, s": median(starts),
        "median difference of ends, s": median(ends),
        "90th percentile of absolute differences, s": float(np.percentile(np.abs([*starts, *ends]), 90)),
        "a right word is surer than a wrong one": surer(judged),
    }
    shares = []
    for low, high in pairwise(BINS):
        inside = [right for confidence, right in judged if low <= confidence < high]
        share = sum(inside) / len(inside) if inside else float("nan")
        shares.append(share)
        figures |= {f"confidence {low:g} to {min(high, 1):g}: words": len(inside), f"... from {low:g}: right": share}
        print(f"confidence {low:.2f} to {min(high, 1):.2f}: {len(inside):5d} words, {100 * share:5.1f} % right")
    for name, value in figures.items():
        print(f"{name}: {value:.4g}")
    known = [share for share in shares if np.isfinite(share)]
    bars = [
        {"what": "median absolute difference of times, s", "value": apart, "bar": BAR_SECONDS},
        {"what": "share of right words rises with confidence", "value": min(np.diff(known), default=0.0), "bar": 0.0},
    ]
    bars[0]["holds"] = bool(apart <= BAR_SECONDS)
    bars[1]["holds"] = bool(all(a <= b for a, b in pairwise(known)))
    print(json.dumps({"benchmark": "word_times", "figures": figures, "bars": bars}))


def surer(judged: list[tuple[float, bool]]) -> float:
    """Probability that a right word has more confidence than a wrong one (area under the ROC curve)."""
    right = np.array([confidence for confidence, is_right in judged if is_right])
    wrong = np.array([confidence for confidence, is_right in judged if not is_right])
    if not len(right) or not len(wrong):
        return float("nan")
    return float((right[:, None] > wrong).mean() + 0.5 * (right[:, None] == wrong).mean())


if __name__ == "__main__":
    main()
