"""Networks that classify frames by pdf, of a hybrid DNN-HMM system (Bourlard & Morgan 1994): prior, criterion, scores.

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


def batch_loss(model: nn.Module, batch: ChunkBatch) -> tuple[Tensor, int]:
    """`frame_total` of a chunk minibatch on the model's device, and the number of frames with a target."""
    device = next(model.parameters()).device
    total = frame_total(model(batch.feats.to(device)), batch.targets.to(device))
    return total, int((batch.targets != IGNORED).sum())


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
