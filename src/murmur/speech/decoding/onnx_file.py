"""ONNX files of acoustic models: free batch and time axes, metadata, scores compared with the network's."""

from __future__ import annotations

import importlib
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from murmur.core.model_mode import evaluating
from murmur.speech.decoding.deployable import StreamedChunks, WholeUtterances, random_batches, why_not_onnx

OPSET = 17
TOLERANCE = 1e-4
EXTRA = "pip install 'murmur-asr[deploy]'"
WHOLE_INPUTS, WHOLE_OUTPUTS = ("x", "x_lens"), ("log_probs", "log_probs_lens")
CHUNK_INPUTS, CHUNK_OUTPUTS = (*WHOLE_INPUTS, "h", "c"), (*WHOLE_OUTPUTS, "next_h", "next_c")
IVECTOR = "ivector"
AXES = {
    "x": {0: "N", 1: "T"},
    "x_lens": {0: "N"},
    IVECTOR: {0: "N"},
    "log_probs": {0: "N", 1: "U"},
    "log_probs_lens": {0: "N"},
    **{name: {1: "N"} for name in ("h", "c", "next_h", "next_c")},
}


class ExportError(ValueError):
    """A model cannot be exported, or the export computes other scores than the network."""


def write_onnx(module: WholeUtterances | StreamedChunks, values: int, metadata: Mapping[str, str], path: Path) -> float:
    """Write `module` for F = `values` features, and return its greatest difference from onnxruntime's scores.

    Raises:
        ExportError: no ONNX operator for a part of the network, libraries are missing, or the scores differ by more
            than 1e-4 on random inputs.
    """
    onnx = _library("onnx")
    why_not = why_not_onnx(module.network)
    if why_not:
        raise ExportError(why_not)
    with evaluating(module):
        return _write(onnx, module, values, metadata, path)


def _write(
    onnx: Any, module: WholeUtterances | StreamedChunks, values: int, metadata: Mapping[str, str], path: Path
) -> float:
    stack = int(getattr(module.network, "stack", 1))
    example = _example(module, values, stack)
    inputs, outputs = _names(module)
    with warnings.catch_warnings(), torch.no_grad(), tempfile.TemporaryDirectory(prefix="murmur-export-") as folder:
        # The exporter that records shapes would fix the number of frames of bidirectional networks.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            example,
            str(Path(folder, "model.onnx")),
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_axes={name: AXES[name] for name in (*inputs, *outputs)},
            opset_version=OPSET,
            dynamo=False,
        )
        model = onnx.load(str(Path(folder, "model.onnx")))
    onnx.helper.set_model_props(model, dict(metadata))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(path))
    if isinstance(module, StreamedChunks):
        worst = chunk_difference(path, module, values)
    else:
        worst = difference(path, module, values)
    if not worst <= TOLERANCE:
        raise ExportError(f"onnxruntime's scores are up to {worst:.2g} from the network's, more than {TOLERANCE:g}")
    return worst


def session(path: Path, threads: int = 1) -> Any:
    """An onnxruntime session on the CPU.

    Raises:
        ExportError: onnxruntime is not installed, or cannot open the file.
    """
    onnxruntime = _library("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    options.log_severity_level = 3
    with _said(onnxruntime, f"cannot open {path}"):
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(runner: Any, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """All outputs of a session.

    Raises:
        ExportError: onnxruntime cannot compute them.
    """
    with _said(_library("onnxruntime"), "cannot compute scores"):
        found: list[np.ndarray] = runner.run(None, dict(given))
        return found


@contextmanager
def _said(onnxruntime: Any, what: str) -> Iterator[None]:
    """Context that turns errors of onnxruntime, which are of class Exception only, into ExportError."""
    try:
        yield
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ExportError(f"onnxruntime {onnxruntime.__version__} {what}: {reason}") from error


def difference(path: Path, module: WholeUtterances, values: int) -> float:
    """Greatest absolute difference of scores between a file and the network on `random_batches`."""
    runner, worst, ivector = session(path), 0.0, module.ivector_values
    for x, x_lens in random_batches(values, int(getattr(module.network, "stack", 1))).values():
        own = (torch.sin(torch.arange(len(x) * ivector)).reshape(len(x), ivector),) if ivector else ()
        given = {"x": x.numpy(), "x_lens": x_lens.numpy()}
        given |= {IVECTOR: own[0].numpy()} if own else {}
        theirs, their_lens = runner.run(None, given)
        with torch.inference_mode():
            ours, our_lens = module(x, x_lens, *own)
        worst = max(worst, _apart(ours, theirs, our_lens, their_lens))
    return worst


def chunk_difference(path: Path, module: StreamedChunks, values: int) -> float:
    """Greatest difference between a file fed chunk by chunk and the network fed the whole utterance."""
    runner, worst, stack = session(path), 0.0, module.stack
    whole = WholeUtterances(module.cmvn, module.network, module.scores)
    for chunk in (stack, 7 * stack, 64 * stack):
        x, x_lens = random_batches(values, stack)["half a minute"]
        x, x_lens = x[:, :301], x_lens.clamp(max=301)
        theirs = in_chunks(runner, x.numpy(), chunk, module)
        with torch.inference_mode():
            ours, our_lens = whole(x, x_lens)
        worst = max(worst, _apart(ours, theirs, our_lens, np.array([theirs.shape[1]])))
    return worst


def in_chunks(runner: Any, x_NTF: np.ndarray, chunk: int, module: StreamedChunks) -> np.ndarray:
    """Scores of a stream given `chunk` frames at a time; the last chunk is padded to a multiple of the stack."""
    head, cell = (states.numpy() for states in module.first_states(len(x_NTF)))
    pieces = []
    for begin in range(0, x_NTF.shape[1], chunk):
        piece = x_NTF[:, begin : begin + chunk]
        lens = np.full(len(piece), piece.shape[1], np.int64)
        piece = np.pad(piece, ((0, 0), (0, -piece.shape[1] % module.stack), (0, 0)))
        scores, _, head, cell = runner.run(None, {"x": piece, "x_lens": lens, "h": head, "c": cell})
        pieces.append(scores)
    return np.concatenate(pieces, axis=1)


def _apart(ours: Tensor, theirs: np.ndarray, our_lens: Tensor, their_lens: np.ndarray) -> float:
    """Greatest difference over the utterances' frames; infinite if lengths or shapes differ, or a score is nan.

    Infinity stands for nan, which Python's max() would skip.
    """
    if ours.shape != theirs.shape or our_lens.tolist() != their_lens.tolist():
        return float("inf")
    pairs = zip(ours.numpy(), theirs, our_lens.tolist(), strict=True)
    apart = float(np.max([np.abs(mine[:n] - other[:n]).max(initial=0.0) for mine, other, n in pairs]))
    return float("inf") if np.isnan(apart) else apart


def _example(module: WholeUtterances | StreamedChunks, values: int, stack: int) -> tuple[Tensor, ...]:
    # Two utterances and an uneven number of frames: sizes of 1 may be taken for constants.
    frames = 4 * stack if isinstance(module, StreamedChunks) else 4 * stack + 1
    x, x_lens = torch.randn(2, frames, values), torch.tensor([frames, frames - stack])
    if isinstance(module, StreamedChunks):
        return (x, x_lens, *module.first_states(2))
    ivector = module.ivector_values
    return (x, x_lens, torch.randn(2, ivector)) if ivector else (x, x_lens)


def _names(module: WholeUtterances | StreamedChunks) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the inputs and outputs."""
    if isinstance(module, StreamedChunks):
        return CHUNK_INPUTS, CHUNK_OUTPUTS
    return ((*WHOLE_INPUTS, IVECTOR) if module.ivector_values else WHOLE_INPUTS), WHOLE_OUTPUTS


def _library(name: str) -> Any:
    """Import onnx or onnxruntime, which no other module needs."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ExportError(f"exported models need {error.name}, which is not installed: {EXTRA}") from None


def libraries() -> Sequence[str]:
    """Versions of the libraries that wrote and checked a file."""
    return [f"{name} {_library(name).__version__}" for name in ("torch", "onnx", "onnxruntime")]
