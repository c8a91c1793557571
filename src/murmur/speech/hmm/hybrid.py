"""The network half of a hybrid DNN-HMM system (Bourlard & Morgan 1994): targets, priors, criterion, scores.

Shapes: N chunks or utterances, T frames, C pdfs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from murmur.core.model_mode import evaluating
from murmur.speech.features.chunks import IGNORED, ChunkBatch
from murmur.speech.features.frame_shards import AlignedFrames


def fit_targets(pdfs_T: np.ndarray, frames: int, tolerance_frames: int = 4) -> np.ndarray:
    """Targets for `frames` frames from an alignment with a few frames more or fewer.

    Analyses with and without snip_edges differ by two frames at 25/10 ms; the first and last labels are repeated, or
    the ends cut, equally on both sides.

    Raises:
        ValueError: the lengths differ by more than `tolerance_frames`: another utterance, or another frame rate.
    """
    missing = frames - len(pdfs_T)
    if abs(missing) > tolerance_frames or not len(pdfs_T):
        raise ValueError(
            f"an alignment of {len(pdfs_T)} frames cannot serve {frames} frames of features: align the same audio at "
            "the same frame shift"
        )
    if missing >= 0:
        return np.pad(pdfs_T, (missing // 2, missing - missing // 2), mode="edge")
    return pdfs_T[-missing // 2 : -missing // 2 + frames]


def at_speed(pdfs_T: np.ndarray, frames: int, first: int = 0, last: int | None = None) -> np.ndarray:
    """An alignment stretched to the `frames` frames of the same audio played at another speed (nearest label).

    Frame t takes the label of frame floor((t + 1/2) T / frames); of these the frames [first, last) are returned.

    Raises:
        ValueError: an empty alignment, or fewer than one frame.
    """
    if not len(pdfs_T) or frames < 1:
        raise ValueError(f"cannot stretch an alignment of {len(pdfs_T)} frames to {frames}: both need at least one")
    at_T = np.arange(first, frames if last is None else last)
    return pdfs_T[((at_T + 0.5) * len(pdfs_T) / frames).astype(int)]


def speed_copy(name: str, speed: float, feats_TF: np.ndarray, targets_T: np.ndarray) -> AlignedFrames:
    """An utterance analysed at some speed (`LogMel(speed=...)`) with its alignment at speed 1 (Ko et al. 2015).

    The copy is named `sp1.1-UTTERANCE`; at speed 1 the name is unchanged.
    """
    return AlignedFrames(copy_name(name, speed), feats_TF, at_speed(targets_T, len(feats_TF)))


def copy_name(name: str, speed: float) -> str:
    """The name of an utterance's copy at some speed."""
    return name if speed == 1.0 else f"sp{speed:g}-{name}"


def log_prior(alignments: Iterable[np.ndarray], pdfs: int) -> Tensor:
    """ln p(pdf), (C,), from frame counts plus one, so that unseen pdfs stay finite.

    Raises:
        ValueError: an alignment names a pdf outside 0 .. pdfs - 1.
    """
    counts = np.ones(pdfs)
    for aligned_T in alignments:
        if len(aligned_T) and (aligned_T.min() < 0 or aligned_T.max() >= pdfs):
            raise ValueError(
                f"an alignment names pdf {aligned_T.min()} .. {aligned_T.max()}, the model has {pdfs} pdfs"
            )
        counts += np.bincount(aligned_T, minlength=pdfs)
    return torch.from_numpy(np.log(counts / counts.sum())).float()


def frame_total(logits_NTC: Tensor, targets_NT: Tensor) -> Tensor:
    """Cross-entropy -sum ln p(target | frame) over the frames with a target."""
    return functional.cross_entropy(
        logits_NTC.flatten(0, 1), targets_NT.flatten(), ignore_index=IGNORED, reduction="sum"
    )


def frame_loss(logits_NTC: Tensor, targets_NT: Tensor) -> tuple[Tensor, int]:
    """`frame_total`, and the number of frames with a target."""
    return frame_total(logits_NTC, targets_NT), int((targets_NT != IGNORED).sum())


def batch_loss(model: nn.Module, batch: ChunkBatch) -> tuple[Tensor, int]:
    """`frame_loss` of a chunk minibatch on the model's device."""
    device = next(model.parameters()).device
    return frame_loss(model(batch.feats.to(device)), batch.targets.to(device))


def log_likelihoods(model: nn.Module, feats_TF: np.ndarray, log_prior_C: Tensor) -> np.ndarray:
    """ln p(pdf | frame) - ln p(pdf) of one whole utterance, float32 (T, C): frame log-likelihoods up to a constant.

    The model is put into evaluation mode for the call. Raises ValueError if prior and model differ in C.
    """
    device = next(model.parameters()).device
    with evaluating(model), torch.inference_mode():
        logits_TC = model(torch.from_numpy(np.ascontiguousarray(feats_TF))[None].to(device))[0].float().cpu()
    if logits_TC.shape[1] != len(log_prior_C):
        raise ValueError(
            f"the model has {logits_TC.shape[1]} outputs, the prior {len(log_prior_C)} pdfs: use its own prior"
        )
    return (logits_TC.log_softmax(-1) - log_prior_C).numpy()


def frame_figures(
    model: nn.Module, feats: Mapping[str, np.ndarray], targets: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Held-out "loss" (mean cross-entropy per frame) and "accuracy" (share of frames whose best pdf is the target).

    Raises:
        ValueError: no utterance has targets.
    """
    device = next(model.parameters()).device
    total, right, count = 0.0, 0, 0
    with evaluating(model), torch.inference_mode():
        for name, targets_T in targets.items():
            logits_TC = model(torch.from_numpy(np.ascontiguousarray(feats[name]))[None].to(device))[0].float().cpu()
            labels_T = torch.from_numpy(np.asarray(targets_T, np.int64))
            total += float(functional.cross_entropy(logits_TC, labels_T, reduction="sum"))
            right += int((logits_TC.argmax(-1) == labels_T).sum())
            count += len(labels_T)
    if not count:
        raise ValueError(
            "no aligned utterance to evaluate on: every held-out utterance is too short, or has words that the lexicon"
            " lacks (murmur lexicon makes pronunciations, or task.guess): add speech or words"
        )
    return {"loss": total / count, "accuracy": right / count}
