"""Conformers: attention and convolution against loops over frames; padding, reach, compiled models, sizes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from murmur.speech.models import Conformer
from murmur.speech.models.conformer import ConvolutionModule, RelativeAttention, padding, unseen, waves
from tests.support.named import named

SMALL = Conformer(hidden=8, layers=2, heads=2, kernel=3, expansion=2, dropout=0.0)


def wave(distance: int, hidden: int) -> Tensor:
    angles = [distance * 10_000.0 ** (-2 * m / hidden) for m in range(hidden // 2)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)


def attended(module: RelativeAttention, x_UD: Tensor, reach: int) -> Tensor:
    """y_UD of one utterance: a loop over heads, frames that read, and frames that they read."""
    query, key, value = module.inner(x_UD).chunk(3, -1)
    found = torch.zeros_like(x_UD)
    for head in range(module.heads):
        own = slice(head * module.size, (head + 1) * module.size)
        for i in range(len(x_UD)):
            read = [j for j in range(len(x_UD)) if abs(i - j) <= reach]
            scores = []
            for j in read:
                place = module.positions(wave(i - j, x_UD.shape[1]))[own]
                content = (query[i, own] + module.content_bias[head]) @ key[j, own]
                position = (query[i, own] + module.position_bias[head]) @ place
                scores.append((content + position) / math.sqrt(module.size))
            shares = torch.stack(scores).softmax(0)
            found[i, own] = sum(share * value[j, own] for share, j in zip(shares, read, strict=True))
    return module.output(found)


@pytest.mark.parametrize("reach", [None, 0, 2])
def test_attention_is_that_of_loops(reach: int | None) -> None:
    torch.manual_seed(0)
    module = RelativeAttention(8, 2, dropout=0.0).double()
    for bias in (module.content_bias, module.position_bias):
        nn.init.normal_(bias)
    x_NUD, lengths = torch.randn(3, 6, 8, dtype=torch.float64), [6, 4, 1]
    blank = padding(x_NUD, torch.tensor(lengths))
    found = module(x_NUD, waves(x_NUD), unseen(x_NUD, blank, reach))
    totals = torch.zeros(2, dtype=torch.float64)
    for row, frames in enumerate(lengths):
        alone = attended(module, x_NUD[row, :frames], 100 if reach is None else reach)
        torch.testing.assert_close(found[row, :frames], alone, rtol=1e-9, atol=1e-6)  # waves are of float32
        totals = totals + torch.stack([found[row, :frames].square().sum(), alone.square().sum()])
    mine, theirs = (torch.autograd.grad(total, list(module.parameters()), retain_graph=True) for total in totals)
    for gradient, wanted in zip(mine, theirs, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=1e-5)
    if reach is None:
        torch.testing.assert_close(module(x_NUD, waves(x_NUD), None)[0], found[0])


def test_a_convolution_module_is_that_of_a_loop() -> None:
    torch.manual_seed(0)
    module = ConvolutionModule(6, 5).double()
    x_UD = torch.randn(7, 6, dtype=torch.float64)
    wide = module.wide(nn.functional.layer_norm(x_UD, (6,)))
    gated = wide[:, :6] * wide[:, 6:].sigmoid()
    filtered = torch.stack(
        [
            module.depthwise.bias
            + sum(module.depthwise.weight[:, 0, k] * gated[t + k - 2] for k in range(5) if 0 <= t + k - 2 < 7)
            for t in range(7)
        ]
    )
    normal = nn.functional.layer_norm(filtered, (6,))
    torch.testing.assert_close(module(x_UD[None])[0], module.narrow(normal * normal.sigmoid()))


def results(config: Conformer, feats: Tensor, lengths: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Logits of the utterances' own frames, and the gradients of a loss on them."""
    torch.manual_seed(0)
    model = config.build(feats.shape[2], 3)
    logits = model(feats, lengths)
    own = torch.cat([row[:u] for row, u in zip(logits, model.output_lengths(lengths).tolist(), strict=True)])
    own.square().sum().backward()
    return own, [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("config", [SMALL, replace(SMALL, reach=1, stack=3)], ids=named)
def test_values_and_number_of_padding_frames_do_not_count(config: Conformer) -> None:
    feats, lengths = torch.randn(3, 20, 4), torch.tensor([20, 7, 1])
    wanted, gradients = results(config, feats, lengths)
    other, longer = feats.clone(), torch.full((3, 9, 4), -1e4)
    for row, frames in enumerate(lengths.tolist()):
        other[row, frames:] = 1e6
    found, theirs = results(config, torch.cat([other, longer], 1), lengths)
    torch.testing.assert_close(found, wanted)
    assert len(theirs) == len(gradients) == len(list(config.build(4, 3).parameters()))
    for mine, other_gradient in zip(gradients, theirs, strict=True):
        torch.testing.assert_close(mine, other_gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("reach", "stack"), [(0, 1), (2, 1), (1, 3)])
def test_an_output_reads_the_frames_within_its_reach(reach: int, stack: int) -> None:
    torch.manual_seed(0)
    model = replace(SMALL, layers=1, reach=reach, stack=stack, kernel=5).build(3, 2)
    feats = torch.randn(1, 20 * stack, 3, requires_grad=True)
    model(feats)[0, 10].sum().backward()
    assert feats.grad is not None
    read = torch.nonzero(feats.grad[0].abs().sum(1)).flatten()
    assert (int(read.min()), int(read.max())) == ((10 - reach - 2) * stack, (11 + reach + 2) * stack - 1)


def test_a_mean_of_models_is_made_of_parameters_alone() -> None:
    """A strategy that moves trainable tensors alone moves all that a Conformer knows."""
    assert set(SMALL.build(4, 3).state_dict()) == {name for name, _ in SMALL.build(4, 3).named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize("config", [SMALL, replace(SMALL, reach=2, stack=3)], ids=named)
def test_a_compiled_model_is_one_graph_with_the_same_values(config: Conformer) -> None:
    """For minibatches of several shapes, forwards and backwards."""
    torch.manual_seed(0)
    model = config.build(4, 3)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for frames in (20, 31):
        feats, lengths = torch.randn(2, frames, 4), torch.tensor([frames, 9])
        found = []
        for each in (model, compiled):
            model.zero_grad()
            logits = each(feats, lengths)
            logits.square().mean().backward()
            found.append([logits, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
        for mine, theirs in zip(*found, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_dropout_is_of_training_alone() -> None:
    torch.manual_seed(0)
    model, feats = replace(SMALL, dropout=0.5).build(4, 3), torch.randn(2, 9, 4)
    assert not torch.equal(model(feats), model(feats))
    model.eval()
    assert torch.equal(model(feats), model(feats))


def test_a_block_of_the_published_small_model_has_its_parameters() -> None:
    """144 values, 4 heads and filters of 31 frames, counted by hand."""
    with torch.device("meta"):
        block = Conformer(hidden=144, layers=1, heads=4, kernel=31).build(80, 10).blocks[0]
    feed_forward = 2 * 144 + 144 * 576 + 576 + 576 * 144 + 144
    attention = 2 * 144 + 3 * (144 * 144 + 144) + 144 * 144 + 2 * 144 + 144 * 144 + 144
    convolution = 2 * 144 + 144 * 288 + 288 + 144 * 31 + 144 + 2 * 144 + 144 * 144 + 144
    assert sum(p.numel() for p in block.parameters()) == 2 * feed_forward + attention + convolution + 2 * 144


@pytest.mark.parametrize(
    "config",
    [
        Conformer(hidden=10, heads=4),
        Conformer(hidden=9, heads=3),
        Conformer(kernel=4),
        Conformer(layers=0),
        Conformer(stack=0),
        Conformer(reach=-1),
    ],
    ids=named,
)
def test_sizes_that_do_not_fit_are_refused(config: Conformer) -> None:
    with pytest.raises(ValueError, match="an odd kernel"):
        config.build(4, 3)
