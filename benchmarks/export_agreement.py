"""Exported models in sherpa-onnx, another runtime, against murmur's own decoder, word for word.

    python benchmarks/export_agreement.py runs/demo/one-learner runs/ctc runs/ctc:loop

Each argument is a run's folder, optionally with another grammar after a colon. The run is exported, sherpa-onnx decodes
the test utterances from their audio, and murmur decodes them from its own features with the graph before its words
were moved, at sherpa-onnx's beam of 16. Each difference is explained by the change that removes it, or counted as
unexplained. The features of both are compared value by value.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import kaldi_native_fbank
import numpy as np
import sherpa_onnx

from murmur.speech.decoding.decoder import Decoder
from murmur.speech.decoding.graph_store import load_graph
from murmur.speech.decoding.recogniser import CtcBestPath
from murmur.speech.features.analysis import LogMel, analyse, read_audio
from murmur.speech.features.cmvn import normalise, statistics
from murmur.speech.recognition.export import Wish, export_run
from murmur.speech.recognition.trained_run import TrainedRun, Wanted, open_run

KIND = "study"
BEAM, MAX_ACTIVE = 16.0, 7000  # sherpa-onnx's beam is its library's and cannot be set


def main() -> None:
    """Export, decode with both, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN[:GRAMMAR]")
    parser.add_argument("--most", type=int, default=10**9, help="utterances of each test set")
    wanted = parser.parse_args()
    figures: dict[str, float] = {}
    bars = []
    for argument in wanted.runs:
        folder, _, grammar = argument.partition(":")
        found = compare(open_run(Wanted(Path(folder))), grammar or None, wanted.most)
        name = f"{Path(folder).name}{f' {grammar}' if grammar else ''}"
        figures |= {f"{name}: {key}": value for key, value in found.items()}
        explained = found["alike"] + found["explained"] == found["utterances"]
        bars.append({"what": f"{name}: same words, or explained", "value": found["alike"], "bar": found["utterances"]})
        bars[-1]["holds"] = explained
    print(json.dumps({"benchmark": "export_agreement", "figures": figures, "bars": bars}))


def compare(run: TrainedRun, grammar: str | None, most: int) -> dict[str, float]:
    """Figures of one run."""
    options = replace(run.options({}), beam=BEAM, max_active=MAX_ACTIVE)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "export")
        for line in export_run(run, Wish(), out, run.search(grammar), options):
            print(line.replace(str(out), run.folder.name))
        facts = json.loads((out / "metadata.json").read_text(encoding="utf-8"))
        stranger = recognizer(out, facts)
        words_of = {int(label): word for word, label in _pairs(out / "words.txt")}
        ours = Ours(run, grammar, options)
        outcome: Counter[str] = Counter()
        apart: list[float] = []
        worst = 0.0
        for utterance in run.corpus("test").utterances[:most]:
            assert utterance.audio is not None
            samples_S = read_audio(utterance.audio, run.front.rate_hz)
            theirs = their_words(stranger, samples_S, run.front.rate_hz, words_of)
            mine = analyse(samples_S, run.front)
            other = native_features(samples_S, run.front)
            difference = np.abs(mine - other)
            apart.append(float(difference.mean()))
            worst = max(worst, float(difference.max()))
            verdict = ours.verdict(theirs, mine, other)
            outcome[verdict] += 1
            if verdict != "alike":
                print(f"{utterance.id}: {verdict}\n  sherpa-onnx: {' '.join(theirs)}\n  murmur:      {ours.text(mine)}")
    total = sum(outcome.values())
    print(f"{run.folder.name}: {total} utterances, {dict(outcome)}")
    print(f"features: {np.mean(apart):.2g} apart on average, {worst:.2g} at most")
    return {
        "utterances": total,
        "alike": outcome["alike"],
        "explained": total - outcome["alike"] - outcome["unexplained"],
        "words moved": facts["words_moved"],
        "mean difference of features": float(np.mean(apart)),
        "greatest difference of features": worst,
    }


class Ours:
    """murmur's decoder, and its explanations of differences from sherpa-onnx."""

    def __init__(self, run: TrainedRun, grammar: str | None, options: Any) -> None:
        self.run = run
        search = run.search(grammar)
        self.decoder = None if search is None else Decoder(load_graph(search.folder), options)

    def decode(self, feats_TF: np.ndarray) -> tuple[list[str], bool]:
        """The words, and True if they end where the grammar may."""
        # sherpa-onnx sees one utterance alone, so a speaker's statistics become the utterance's.
        normal = feats_TF if self.run.acoustic.cmvn == "none" else normalise(feats_TF, *statistics([feats_TF]))
        scores_UC = self.run.scores(normal)
        if self.decoder is None:
            units = self.run.graphs.units
            assert units is not None
            return [heard.word for heard in CtcBestPath(units)(scores_UC)[0]], True
        found = self.decoder.decode(scores_UC)
        return list(found.words), found.complete

    def text(self, feats_TF: np.ndarray) -> str:
        """The words of an utterance."""
        return " ".join(self.decode(feats_TF)[0])

    def verdict(self, theirs: list[str], mine: np.ndarray, other: np.ndarray) -> str:
        """Comparison of the words: equal, or the reason for a difference."""
        words, complete = self.decode(mine)
        if words == theirs:
            return "alike"
        if not complete and not theirs:
            return "explained: the search ended outside a final state, where sherpa-onnx says nothing"
        if self.decode(other)[0] == theirs:
            return (
                "explained: the features differ in their last digits; with sherpa-onnx's features murmur says the same"
            )
        return "unexplained"


def recognizer(folder: Path, facts: Mapping[str, Any]) -> Any:
    """sherpa-onnx with the exported files."""
    graph = folder / "graph.fst"
    return sherpa_onnx.OfflineRecognizer.from_zipformer_ctc(
        model=str(folder / "model.onnx"),
        tokens=str(folder / "tokens.txt"),
        sample_rate=int(facts["sample_rate"]),
        feature_dim=int(facts["feature_dim"]),
        ctc_graph=str(graph) if graph.is_file() else "",
        ctc_max_active=MAX_ACTIVE,
    )


def their_words(stranger: Any, samples_S: np.ndarray, rate_hz: int, words_of: Mapping[int, str]) -> list[str]:
    """The output of sherpa-onnx: labels of words with a graph, text without."""
    stream = stranger.create_stream()
    stream.accept_waveform(rate_hz, samples_S)
    stranger.decode_stream(stream)
    return [words_of[label] for label in stream.result.words] if words_of else stream.result.text.split()


def native_features(samples_S: np.ndarray, front: LogMel) -> np.ndarray:
    """The features of sherpa-onnx, computed by the library that it uses."""
    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.samp_freq = front.rate_hz
    options.frame_opts.dither = 0.0
    options.frame_opts.snip_edges = False
    options.mel_opts.num_bins = front.bins
    options.mel_opts.low_freq, options.mel_opts.high_freq = front.low_hz, front.high_hz
    fbank = kaldi_native_fbank.OnlineFbank(options)
    fbank.accept_waveform(front.rate_hz, samples_S.tolist())
    fbank.input_finished()
    return np.stack([fbank.get_frame(t) for t in range(fbank.num_frames_ready)])


def _pairs(table: Path) -> list[list[str]]:
    return [line.split() for line in table.read_text(encoding="utf-8").splitlines()] if table.is_file() else []


if __name__ == "__main__":
    main()
