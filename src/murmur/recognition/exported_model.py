"""Transcribes with an exported folder; the run, its corpus and its cache are not needed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from murmur.core.errors import SettingError
from murmur.recognition.export import METADATA, SPEAKERS, TIMES, digest_of, is_export, vouched
from murmur.recognition.transcriber import Transcriber
from murmur.speech.ctc.criterion import Units
from murmur.speech.decoding.decoder import DecodeOptions, Decoder
from murmur.speech.decoding.graph_store import StoredGraph
from murmur.speech.decoding.onnx_file import IVECTOR, run, session
from murmur.speech.decoding.recogniser import CtcBestPath, GraphSearch, Recogniser, spans_of
from murmur.speech.features.analysis import LogMel, Mfcc, analyse
from murmur.speech.features.shards import sha256_of
from murmur.tasks.speaker_columns import joined
from murmur.tasks.speaker_inputs import EXTRACTOR, SpeakerInputs


@dataclass(frozen=True, eq=False)
class ExportedModel:
    """Network in onnxruntime, which includes normalisation, prior and acoustic scale.

    Attributes:
        runner: Session of onnxruntime.
        front: Front end that computes the network's features.
        stack: Input frames per output frame.
        speakers: Estimation of i-vectors, which are an input; None for a network without such an input.
    """

    runner: Any
    front: LogMel
    stack: int
    speakers: SpeakerInputs | None = None

    def inputs(self, pieces: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Features of each piece as they are, since the network normalises its input, and the i-vector beside them."""
        spectrum = [analyse(samples_S, self.front) for samples_S in pieces]
        if self.speakers is None or not pieces:
            return spectrum
        assert isinstance(self.speakers.front, Mfcc)  # exports are of networks on audio
        names = [f"{i:06}" for i in range(len(pieces))]
        cepstra = {n: analyse(samples_S, self.speakers.front) for n, samples_S in zip(names, pieces, strict=True)}
        columns = self.speakers.columns(cepstra, dict.fromkeys(names, ""), None)
        return [joined(name, feats_TF, columns) for name, feats_TF in zip(names, spectrum, strict=True)]

    def scores(self, feats_TF: np.ndarray) -> np.ndarray:
        """(U, L) scaled scores of the graph's labels, or log posteriors of CTC's units."""
        spectrum_TF = feats_TF[:, : self.front.bins]
        given = {"x": spectrum_TF[None], "x_lens": np.array([len(feats_TF)])}
        if self.speakers is not None:
            given[IVECTOR] = feats_TF[:1, self.front.bins :]
        states = {i.name: i.shape for i in self.runner.get_inputs() if i.name in ("h", "c")}
        if states:  # a stream: all of it as one chunk
            given["x"] = np.pad(spectrum_TF, ((0, -len(feats_TF) % self.stack), (0, 0)))[None]
            given |= {name: np.zeros((shape[0], 1, shape[2]), np.float32) for name, shape in states.items()}
        scores_NUL, lengths_N, *_ = run(self.runner, given)
        found: np.ndarray = scores_NUL[0, : lengths_N[0]]
        return found


def exported_transcriber(
    folder: Path, given: Mapping[str, float | None], longest_seconds: float, threads: int = 0
) -> Transcriber:
    """Make the transcriber of an exported folder; a None in `given` keeps the export's beam setting.

    `threads` compute; 0 for one per core.

    Raises:
        SettingError: the folder is damaged, or of another version, or has no beam to set.
        ExportError: onnxruntime is not installed, or cannot load the network.
    """
    try:
        facts = _facts(folder)
        search = {**facts["search"], **{name: value for name, value in given.items() if value is not None}}
        # Scale and penalty are inside the export.
        options = replace(DecodeOptions(**search), acoustic_scale=1.0, insertion_penalty=0.0, retries=facts["retries"])
        times = json.loads((folder / TIMES).read_text(encoding="utf-8"))
        recogniser = _recogniser(folder, times, options)
        front, stack = _front(facts), int(facts["subsampling_factor"])
        speakers = _speakers(folder) if facts.get("ivector") == "input" else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise SettingError(f"the export in {folder} is incomplete or damaged ({reason}): export it again") from error
    if isinstance(recogniser, CtcBestPath) and any(value is not None for value in given.values()):
        raise SettingError(
            "a best path has no scale, penalty, beam or states to set: export the run with a --grammar, such as loop"
        )
    return Transcriber(
        ExportedModel(session(folder / "model.onnx", threads=threads), front, stack, speakers),
        recogniser,
        longest_seconds,
    )


def looks_exported(folder: Path) -> bool:
    """True if a folder is an export, possibly without its metadata."""
    return is_export(folder) or all((folder / name).is_file() for name in vouched(graph=False))


def _facts(folder: Path) -> dict[str, Any]:
    """Read metadata.json and verify the digests of all files.

    Raises:
        ValueError: a file was changed after the export.
    """
    facts: dict[str, Any] = json.loads((folder / METADATA).read_text(encoding="utf-8"))
    if facts["digest"] != digest_of(facts):
        raise ValueError(f"{METADATA} is not what was written there")
    for name, digest in facts["sha256"].items():
        if sha256_of(folder / name) != digest:
            raise ValueError(f"{name} is not what was written there")
    return facts


def _recogniser(folder: Path, times: Mapping[str, Any], options: DecodeOptions) -> Recogniser:
    if "units" in times:
        return CtcBestPath(Units(times["units"], tuple(times["symbols"])))
    return GraphSearch(Decoder(StoredGraph.of(folder).read(), options), spans_of(times))


def _speakers(folder: Path) -> SpeakerInputs:
    values = json.loads((folder / SPEAKERS).read_text(encoding="utf-8"))
    return SpeakerInputs.open(values, {EXTRACTOR: folder / EXTRACTOR}, None)


def _front(facts: Mapping[str, Any]) -> LogMel:
    return LogMel(
        rate_hz=int(facts["sample_rate"]),
        bins=int(facts["feature_dim"]),
        low_hz=float(facts["low_freq"]),
        high_hz=float(facts["high_freq"]),
        frame_length_seconds=float(facts["frame_length_ms"]) / 1000,
        frame_shift_seconds=float(facts["frame_shift_ms"]) / 1000,
    )
