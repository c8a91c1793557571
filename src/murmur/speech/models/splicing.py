"""Neighbouring frames as inputs of a layer, with the edge frames of an utterance repeated beyond its ends.

Shapes: N utterances, T frames, F values per frame, K spliced offsets.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def splice(x_NTF: Tensor, offsets: tuple[int, ...]) -> Tensor:
    """Frames t + o for all offsets o side by side, (N, T, K F), the edge frames repeated beyond the edges."""
    if offsets == (0,):
        return x_NTF
    frames = x_NTF.shape[1]
    before, after = max(-min(offsets), 0), max(*offsets, 0)
    padded = lengthened(x_NTF, before, after)
    return torch.cat([padded[:, before + o : before + o + frames] for o in offsets], dim=2)


def lengthened(x_NTF: Tensor, before: int, after: int) -> Tensor:
    """(N, before + T + after, F): the first frame `before` times more, the last one `after` times more."""
    return functional.pad(x_NTF.transpose(1, 2), (before, after), mode="replicate").transpose(1, 2)


def edges_repeated(x_NTF: Tensor, lengths_N: Tensor | None) -> Tensor:
    """Each utterance with its last frame in place of the padding."""
    if lengths_N is None:
        return x_NTF
    last_N1 = lengths_N.to(x_NTF.device)[:, None] - 1
    index_NT = torch.minimum(torch.arange(x_NTF.shape[1], device=x_NTF.device)[None], last_N1)
    return x_NTF.gather(1, index_NT[..., None].expand(-1, -1, x_NTF.shape[2]))


def slower(lengths_N: Tensor, step: int) -> Tensor:
    """Frames of utterances of `lengths_N` frames when every `step`-th frame is taken, the first one included."""
    return torch.div(lengths_N + step - 1, step, rounding_mode="floor")


def every(step: int, x_NTF: Tensor, lengths_N: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Frames 0, `step`, 2 `step` ... of each utterance, and their numbers."""
    if step == 1:
        return x_NTF, lengths_N
    return x_NTF[:, ::step], None if lengths_N is None else slower(lengths_N, step)


def layers_at_full_rate(offsets: Sequence[tuple[int, ...]], step: int) -> int:
    """Layers that must see every frame when outputs are wanted at every `step`-th frame.

    The layers above them have offsets that are multiples of `step`, so that they see every `step`-th frame alone.
    """
    needed = len(offsets)
    while needed and all(offset % step == 0 for offset in offsets[needed - 1]):
        needed -= 1
    return needed
