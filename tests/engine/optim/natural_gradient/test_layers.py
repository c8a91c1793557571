"""Functions that take the place of linear, convolution and LSTM calls: same values, preconditioned weight gradients."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from murmur.engine.optim.natural_gradient import FisherConfig, Preconditioning
from murmur.engine.optim.natural_gradient.fisher import OnlineFisher, SampleRows
from murmur.engine.optim.natural_gradient.mode import LstmStack
from tests.support.named import named

CONFIG = FisherConfig(rank_in=3, rank_out=4, history_samples=60.0, update_period=2)


def natural(model: nn.Module, config: FisherConfig = CONFIG) -> tuple[Preconditioning, Any]:
    states: Any = defaultdict(dict)
    return Preconditioning(model.parameters(), lambda p: states[p], config), states


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def by_frames(states: dict[str, Any], X: Tensor, dY: Tensor, samples: float) -> Tensor:
    """The natural gradient as the paper has it: every frame preconditioned, then summed."""
    Wi, gi, _ = OnlineFisher(states, "in", CONFIG.rank_in, CONFIG).observe(SampleRows((X,)))
    Wo, go, _ = OnlineFisher(states, "out", CONFIG.rank_out, CONFIG).observe(SampleRows((dY * samples,)))
    return gi * go * (dY - dY @ Wo.T @ Wo).T @ (X - X @ Wi.T @ Wi)


def with_ones(x: Tensor) -> Tensor:
    return torch.cat((x, torch.ones(len(x), 1, dtype=x.dtype)), 1)


@pytest.mark.parametrize("frames", [2, 3, 4], ids=["both sides by frames", "outputs by the sum", "both by the sum"])
def test_a_linear_layer_gets_the_sum_of_preconditioned_frames(frames: int) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 9).double()
    mode, _ = natural(layer)
    oracle: dict[str, Any] = {}
    mode.samples = 20.0
    for _ in range(5):
        x = torch.randn(frames, 5, 6).double().requires_grad_()
        target = torch.randn(frames, 5, 9).double()
        with mode:
            y = layer(x)
            ((y - target) ** 2).mean().backward()
        dY = (2 * (y - target) / target.numel()).detach().flatten(0, 1)
        expected = by_frames(oracle, with_ones(x.detach().flatten(0, 1)), dY, 20.0)
        torch.testing.assert_close(y, functional.linear(x, layer.weight, layer.bias))
        assert layer.weight.grad is not None
        assert layer.bias.grad is not None
        torch.testing.assert_close(torch.cat((layer.weight.grad, layer.bias.grad[:, None]), 1), expected)
        torch.testing.assert_close(x.grad, (dY @ layer.weight).view_as(x).detach())
        layer.zero_grad()


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(4, 6, 3),
        nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, bias=False),
        nn.Conv2d(4, 6, (3, 2), padding=(1, 0)),
    ],
    ids=named,
)
def test_a_convolution_is_an_affine_map_on_spliced_frames(layer: nn.Conv1d | nn.Conv2d) -> None:
    torch.manual_seed(0)
    layer = layer.double()
    x = torch.randn(3, 4, *([9, 8][: layer.weight.dim() - 2])).double().requires_grad_()
    mode, states = natural(layer)
    with mode:
        y = layer(x)
        y.square().mean().backward()
    own, dx, natural_dW = y.detach(), x.grad, layer.weight.grad
    assert list(states[layer.weight]) == ["out.W", "out.d", "out.rho", "out.t", "in.W", "in.d", "in.rho", "in.t"]
    x.grad, layer.weight.grad = None, None
    plain = layer(x)
    plain.square().mean().backward()
    torch.testing.assert_close(own, plain)
    torch.testing.assert_close(dx, x.grad)
    assert natural_dW is not None
    assert layer.weight.grad is not None
    assert not torch.allclose(natural_dW, layer.weight.grad)
    # The same by hand: im2col, then the sum of preconditioned frames.
    size, stride, padding, dilation = ((1,) * (4 - x.dim()) + v for v in _geometry(layer))
    padding = (0,) * (4 - x.dim()) + _geometry(layer)[2]
    images = x.detach() if x.dim() == 4 else x.detach()[:, :, None]
    X = functional.unfold(images, size, dilation, padding, stride).transpose(1, 2).flatten(0, 1)
    dY = (2 * plain / plain.numel()).detach().flatten(2).transpose(1, 2).flatten(0, 1)
    expected = by_frames({}, X if layer.bias is None else with_ones(X), dY, 1.0)
    torch.testing.assert_close(natural_dW.flatten(1), expected[:, : X.shape[1]])


def _geometry(layer: nn.Conv1d | nn.Conv2d) -> tuple[tuple[int, ...], ...]:
    assert not isinstance(layer.padding, str)
    return layer.kernel_size, layer.stride, layer.padding, layer.dilation


LSTMS = {
    "plain": nn.LSTM(5, 6),
    "two layers, batch first": nn.LSTM(5, 6, 2, batch_first=True),
    "both directions": nn.LSTM(5, 6, 2, bidirectional=True),
    "projection, no bias": nn.LSTM(5, 6, 2, bias=False, proj_size=3, bidirectional=True),
    "projection": nn.LSTM(5, 6, proj_size=4),
}


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("name", LSTMS)
def test_lstm_layers_equal_torch(name: str, packed: bool) -> None:
    """Values, final states and all gradients, with the natural gradient switched off and from given states."""
    torch.manual_seed(0)
    lstm = LSTMS[name].double()
    x = torch.randn((3, 7, 5) if lstm.batch_first else (7, 3, 5)).double().requires_grad_()
    outer = (lstm.num_layers * (1 + lstm.bidirectional), 3)
    begin = [torch.randn(*outer, n).double().requires_grad_() for n in (lstm.proj_size or 6, 6)]
    lengths = torch.tensor([7, 4, 2])

    def loss(y: Tensor, h: Tensor, c: Tensor) -> Tensor:
        weights = torch.linspace(-1, 1, y.shape[2]).double()
        return (y * weights).sin().sum() + (h * 2).cos().sum() + c.tanh().sum()

    def torchs() -> tuple[Tensor, Tensor, Tensor]:
        given = pack_padded_sequence(x, lengths, lstm.batch_first) if packed else x
        y, (h, c) = lstm(given, (begin[0], begin[1]))
        return pad_packed_sequence(y, lstm.batch_first)[0] if packed else y, h, c

    def ours() -> tuple[Tensor, Tensor, Tensor]:
        run = LstmStack(lstm._flat_weights, lstm.bias, lstm.num_layers, 1 + lstm.bidirectional, 0.0)
        turned = x.transpose(0, 1) if lstm.batch_first else x
        y, h, c = run(turned, begin, lambda _: None, lengths if packed else None)
        if packed:
            y = y * (torch.arange(7)[:, None] < lengths)[..., None]
        return y.transpose(0, 1) if lstm.batch_first else y, h, c

    found = []
    for run in (torchs, ours):
        results = run()
        loss(*results).backward()
        found.append([*results, x.grad, *(b.grad for b in begin), *gradients(lstm)])
        lstm.zero_grad()
        x.grad = begin[0].grad = begin[1].grad = None
    for theirs, own in zip(*found, strict=True):
        torch.testing.assert_close(own, theirs)


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_the_module_gives_the_same_values_within_the_mode(packed: bool) -> None:
    torch.manual_seed(0)
    lstm = nn.LSTM(5, 6, 2, batch_first=True, bidirectional=True)
    mode, states = natural(lstm)
    x: Any = torch.randn(3, 7, 5)
    if packed:
        x = pack_padded_sequence(x, torch.tensor([2, 7, 4]), batch_first=True, enforce_sorted=False)
    with mode:
        y, (h, c) = lstm(x)
        (y.data if packed else y).square().mean().backward()
    assert len(states) == 4  # one a layer and direction
    expected, (h2, c2) = lstm(x)
    for a, b in [(y, expected), (h, h2), (c, c2)]:
        torch.testing.assert_close(a.data if packed else a, b.data if packed else b)
    with torch.no_grad():  # the kernels without gradients may differ from those with them in the last bits
        fused = lstm(x)[0]
        with mode:
            assert torch.equal(lstm(x)[0].data, fused.data)  # evaluation is left to the fused kernels


def test_an_lstm_is_one_affine_layer_on_inputs_outputs_and_one() -> None:
    """Gate derivatives from a cell written out, each frame preconditioned."""
    torch.manual_seed(0)
    lstm = nn.LSTM(5, 6, proj_size=3).double()
    mode, _ = natural(lstm)
    mode.samples = 14.0
    cells: dict[str, Any] = {}
    projections: dict[str, Any] = {}
    for _ in range(4):
        x = torch.randn(7, 2, 5).double()
        with mode:
            lstm(x)[0].pow(3).mean().backward()
        found = gradients(lstm)
        lstm.zero_grad()
        r, c = x.new_zeros(2, 3), x.new_zeros(2, 6)
        before, inner, gates, outputs = [], [], [], []
        for frame in x:
            before.append(r.detach())
            gate = frame @ lstm.weight_ih_l0.T + r @ lstm.weight_hh_l0.T + lstm.bias_ih_l0 + lstm.bias_hh_l0
            gate.retain_grad()
            i, f, g, o = gate.chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            r = h @ lstm.weight_hr_l0.T
            r.retain_grad()
            inner.append(h.detach())
            gates.append(gate)
            outputs.append(r)
        torch.stack(outputs).pow(3).mean().backward()
        lstm.zero_grad()
        X = with_ones(torch.cat((x.flatten(0, 1), torch.cat(before)), 1))
        dG = torch.cat([gate.grad for gate in gates if gate.grad is not None])
        expected = by_frames(cells, X, dG, 14.0)
        dR = torch.cat([out.grad for out in outputs if out.grad is not None])
        torch.testing.assert_close(torch.cat(found[:2], 1), expected[:, :8])
        torch.testing.assert_close(found[2], expected[:, 8])
        torch.testing.assert_close(found[3], expected[:, 8])
        torch.testing.assert_close(found[4], by_frames(projections, torch.cat(inner), dR, 14.0))


class Mixed(nn.Module):
    """Everything that is covered, and some that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.norm, self.out = nn.LSTM(5, 8, batch_first=True), nn.LayerNorm(8), nn.Linear(8, 4)
        self.gru, self.frozen = nn.GRU(5, 3, batch_first=True), nn.Linear(5, 5)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.frozen(x)
        return self.out(self.norm(self.lstm(x)[0])) + self.gru(x)[0].sum()


def test_what_is_not_covered_keeps_its_plain_gradient() -> None:
    torch.manual_seed(0)
    model, x = Mixed(), torch.randn(3, 6, 5)
    mode, states = natural(model)
    model(x).square().mean().backward()
    plain = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    with mode:
        model(x).square().mean().backward()
    assert len(states) == 2
    for name, p in model.named_parameters():
        if name.startswith(("norm", "gru")):
            torch.testing.assert_close(p.grad, plain[name])
        elif not name.startswith("frozen"):
            assert p.grad is not None
            assert not torch.allclose(p.grad, plain[name])
    assert model.frozen.weight.grad is None


def test_recomputed_activations_give_the_same_bits() -> None:
    def run(keep: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 4))
        mode, _ = natural(model)
        for _ in range(3):
            model.zero_grad()
            x = torch.randn(6, 5)
            with mode:
                y = model(x) if keep else checkpoint(model, x, use_reentrant=False)
                y.square().mean().backward()
        return gradients(model)

    for kept, recomputed in zip(run(True), run(False), strict=True):
        assert torch.equal(kept, recomputed)


def test_bfloat16_is_near_float32() -> None:
    def run(enabled: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 24), nn.Tanh(), nn.LSTM(24, 16))
        mode, _ = natural(model)
        for _ in range(15):
            x, target = torch.randn(10, 6, 20), torch.randn(10, 6, 16)
            model.zero_grad()
            with mode:
                with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                    y = model(x)[0]
                ((y.float() - target) ** 2).mean().backward()
        return gradients(model)

    for low, full in zip(run(True), run(False), strict=True):
        assert low.dtype == torch.float32
        assert float((low - full).norm() / full.norm()) < 0.05
