"""Decode recordings with a model that `murmur export` wrote, without murmur: onnxruntime, Kaldi's features and search.

    murmur export runs/demo/one-learner --to onnx --out exported
    python examples/decode_export.py exported talk.wav

Needs numpy, onnxruntime, soundfile, kaldi-native-fbank, kaldifst and kaldi-decoder.
Whole utterances go in at once; a model that was exported with `--kind stream` gets 0.3 s at a time, as it would from a
microphone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kaldi_decoder
import kaldi_native_fbank
import kaldifst
import numpy as np
import onnxruntime
import soundfile

CHUNK_FRAMES = 30


def main() -> None:
    """Print one line of words per recording."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path)
    parser.add_argument("recordings", nargs="+", type=Path)
    wanted = parser.parse_args()
    facts = json.loads((wanted.export / "metadata.json").read_text(encoding="utf-8"))
    network = onnxruntime.InferenceSession(str(wanted.export / "model.onnx"), providers=["CPUExecutionProvider"])
    for path in wanted.recordings:
        samples, rate = soundfile.read(path, dtype="float32")
        if samples.ndim != 1 or rate != int(facts["sample_rate"]):
            raise SystemExit(f"{path}: one channel at {facts['sample_rate']} Hz is needed, this has {rate} Hz")
        feats = features(samples, facts)
        scores = chunks(network, feats, facts) if facts["kind"] == "stream" else whole(network, feats)
        print(" ".join(words(scores, wanted.export, facts)))


def features(samples: np.ndarray, facts: Mapping[str, Any]) -> np.ndarray:
    """Log mel energies (T, F) as the metadata describe them."""
    options = kaldi_native_fbank.FbankOptions()
    frame, mel = options.frame_opts, options.mel_opts
    frame.samp_freq, frame.dither, frame.snip_edges = float(facts["sample_rate"]), 0.0, facts["snip_edges"] == "1"
    frame.frame_length_ms, frame.frame_shift_ms = float(facts["frame_length_ms"]), float(facts["frame_shift_ms"])
    mel.num_bins, mel.low_freq, mel.high_freq = (
        int(facts["feature_dim"]),
        float(facts["low_freq"]),
        float(facts["high_freq"]),
    )
    fbank = kaldi_native_fbank.OnlineFbank(options)
    fbank.accept_waveform(float(facts["sample_rate"]), samples.tolist())
    fbank.input_finished()
    return np.stack([fbank.get_frame(t) for t in range(fbank.num_frames_ready)]).astype(np.float32)


def whole(network: Any, feats: np.ndarray) -> np.ndarray:
    """Scores (U, L) of an utterance."""
    given = {"x": feats[None], "x_lens": np.array([len(feats)])}
    sizes = {i.name: i.shape[1] for i in network.get_inputs() if i.name == "ivector"}
    given |= {name: np.zeros((1, size), np.float32) for name, size in sizes.items()}  # of an unknown speaker
    scores, lengths = network.run(None, given)
    return scores[0, : lengths[0]]


def chunks(network: Any, feats: np.ndarray, facts: Mapping[str, Any]) -> np.ndarray:
    """Scores (U, L) of a stream; each chunk passes the network's states to the next."""
    stack = int(facts["subsampling_factor"])
    state = {i.name: i.shape for i in network.get_inputs() if i.name in ("h", "c")}
    h, c = (np.zeros((state[name][0], 1, state[name][2]), np.float32) for name in ("h", "c"))
    found = []
    size = CHUNK_FRAMES // stack * stack or stack
    for begin in range(0, len(feats), size):
        piece = feats[begin : begin + size]
        padded = np.pad(piece, ((0, -len(piece) % stack), (0, 0)))[None]
        scores, lengths, h, c = network.run(None, {"x": padded, "x_lens": np.array([len(piece)]), "h": h, "c": c})
        found.append(scores[0, : lengths[0]])
    return np.concatenate(found)


def words(scores: np.ndarray, export: Path, facts: Mapping[str, Any]) -> list[str]:
    """Decode with the graph if there is one, else take the best token of each frame without repeats and blanks."""
    if not (export / "graph.fst").is_file():
        tokens = table(export / "tokens.txt")
        best = scores.argmax(1)
        runs = best[np.flatnonzero(np.diff(best, prepend=-1))]
        return "".join(tokens[t] for t in runs.tolist() if t != 0).replace("\u2581", " ").split()
    graph = kaldifst.StdVectorFst.read(str(export / "graph.fst"))
    options = kaldi_decoder.FasterDecoderOptions(**facts["search"])
    search = kaldi_decoder.FasterDecoder(graph, options)
    search.decode(kaldi_decoder.DecodableCtc(np.ascontiguousarray(scores)))
    found, path = search.get_best_path(use_final_probs=search.reached_final())
    names = table(export / "words.txt")
    return [names[label] for label in kaldifst.get_linear_symbol_sequence(path)[2]] if found else []


def table(path: Path) -> dict[int, str]:
    """Names by label."""
    lines = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
    return {int(label): name for name, label in lines}


if __name__ == "__main__":
    main()
