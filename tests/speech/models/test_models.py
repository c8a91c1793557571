"""Acoustic models: shapes, padding, context, and the network half of a hybrid system."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from murmur.speech.features.chunks import IGNORED, ChunkTable, FramesInMemory, at_speed, fit_targets, speed_copy
from murmur.speech.hmm.frame_classifier import batch_loss, frame_figures, frame_total, log_likelihoods, log_prior
from murmur.speech.models import Blstm, Conformer, Convolutions, Dnn, Lstm, Tdnn, TdnnF
from murmur.speech.models.layers import splice
from tests.support.named import named

SMALL = [
    Lstm(hidden=8, layers=2),
    Lstm(hidden=8, layers=1, stack=3),
    Blstm(hidden=8, layers=2),
    Blstm(hidden=8, layers=2, stack=3),
    Lstm(hidden=8, layers=2, projection=5, bottleneck=3),
    Blstm(hidden=8, layers=2, projection=5),
    Tdnn(hidden=8, contexts=((-1, 0, 1), (-2, 0, 1), (0,))),
    Dnn(hidden=8, layers=2, context=2),
    TdnnF(hidden=8, bottleneck=3, strides=(1, 0, 2)),
    TdnnF(hidden=8, bottleneck=3, strides=(2,), front=Convolutions((3, 2), bins=5)),
    Tdnn(hidden=8, contexts=((-1, 0, 1), (0,)), front=Convolutions((2, 3, 2), bins=5)),
    Tdnn(hidden=8, contexts=((-1, 0, 1), (-3, 0), (0, 6)), stack=3),
    TdnnF(hidden=8, bottleneck=3, strides=(1, 3, 0), stack=3),
    Conformer(hidden=8, layers=2, heads=2, kernel=3),
    Conformer(hidden=8, layers=1, heads=4, kernel=5, stack=4, reach=2, front=Convolutions((2, 3), bins=5)),
]


@pytest.mark.parametrize("config", SMALL, ids=named)
def test_padding_changes_nothing_before_the_end(config):
    torch.manual_seed(0)
    model = config.build(5, 4).eval()
    feats, lengths = torch.randn(3, 20, 5), torch.tensor([20, 13, 7])
    for row, frames in enumerate(lengths.tolist()):
        feats[row, frames:] = 0.0
    together = model(feats, lengths)
    assert together.shape == (3, int(model.output_lengths(torch.tensor(20))), 4)
    for row, frames in enumerate(lengths.tolist()):
        alone = model(feats[row : row + 1, :frames])
        assert alone.shape[1] == int(model.output_lengths(torch.tensor(frames)))
        torch.testing.assert_close(together[row, : alone.shape[1]], alone[0], atol=1e-5, rtol=1e-5)


def dependence(model, frames, at, inputs=3):
    feats = torch.randn(1, frames, inputs, requires_grad=True)
    model(feats)[0, at].sum().backward()
    return torch.nonzero(feats.grad[0].abs().sum(1) > 0).flatten().tolist()


def test_directions_of_context():
    torch.manual_seed(0)
    assert dependence(Lstm(hidden=4, layers=2).build(3, 2), 9, 4) == [0, 1, 2, 3, 4]
    assert dependence(Blstm(hidden=4, layers=1).build(3, 2), 9, 4) == list(range(9))
    config = Tdnn(hidden=16, contexts=((-2, -1, 0, 1), (-3, 0, 1), (0,)), dropout=0.0)
    assert (config.left_frames, config.right_frames) == (5, 2)
    reached = dependence(config.build(3, 2), 40, 20)
    assert (min(reached), max(reached)) == (15, 22)
    factored = TdnnF(8, 3, offsets=(-2, 0, 1), strides=(1, 0, 3), dropout=0.0)
    assert (factored.left_frames, factored.right_frames) == (6, 5)
    dnn = Dnn(hidden=4, layers=2, context=3)
    assert dependence(dnn.build(3, 2), 20, 9) == list(range(9 - dnn.left_frames, 10 + dnn.right_frames))


@pytest.mark.parametrize(
    "config",
    [
        TdnnF(16, 5, offsets=(-2, 0, 1), strides=(1, 0, 3), dropout=0.0),
        TdnnF(16, 5, offsets=(0,), strides=(2,), dropout=0.0, front=Convolutions((4, 4), bins=3)),
        Tdnn(16, ((-1, 0), (0, 1)), dropout=0.0, front=Convolutions((8, 8, 8), bins=3)),
        Tdnn(16, ((0,),), dropout=0.0, front=Convolutions((4,), bins=1)),
    ],
    ids=named,
)
def test_outputs_depend_on_the_declared_frames_and_no_others(config):
    torch.manual_seed(0)
    reached = dependence(config.build(3, 2), 40, 20)
    assert (min(reached), max(reached)) == (20 - config.left_frames, 20 + config.right_frames)


@pytest.mark.parametrize(
    "config",
    [
        Tdnn(16, ((-1, 0, 1), (-3, 0, 3), (0,), (-6, 3)), dropout=0.0, stack=3),
        Tdnn(16, ((0,), (-3, 0), (-1, 0, 1)), dropout=0.0, stack=3),
        Tdnn(16, ((-2, 0, 2),), dropout=0.0, stack=2),
        TdnnF(16, 5, strides=(1, 0, 3, 6), dropout=0.0, stack=3),
        TdnnF(16, 5, strides=(3, 1), dropout=0.0, stack=3, front=Convolutions((4,), bins=3)),
    ],
    ids=named,
)
def test_outputs_at_a_lower_rate_are_every_nth_output(config):
    """The same weights at every frame, away from the edges, which repeat another frame."""
    torch.manual_seed(0)
    slow, fast = config.build(3, 2).eval(), replace(config, stack=1).build(3, 2).eval()
    fast.load_state_dict(slow.state_dict())
    feats = torch.randn(2, 61, 3)
    inner = range(-(-config.left_frames // config.stack), (60 - config.right_frames) // config.stack + 1)
    assert slow(feats).shape[1] == -(-61 // config.stack) == int(slow.output_lengths(torch.tensor(61)))
    assert len(inner) > 5
    torch.testing.assert_close(slow(feats)[:, list(inner)], fast(feats)[:, :: config.stack][:, list(inner)])
    at = inner[2]
    reached = dependence(slow, 61, at)
    own = at * config.stack
    assert (min(reached), max(reached)) == (own - config.left_frames, own + config.right_frames)


def test_layers_below_the_first_step_of_the_rate_see_every_frame():
    config = Tdnn(8, ((-3, 0), (-1, 1), (0, 3), (-6, 0)), stack=3)
    assert config.build(3, 2).full_rate == 2
    assert replace(config, contexts=((0,), (3,))).build(3, 2).full_rate == 0
    assert replace(config, contexts=((0,), (2,))).build(3, 2).full_rate == 2


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def test_published_models_have_their_numbers_of_parameters():
    """Sizes: IBM's BLSTM as in its papers, Kaldi's LSTM of 4 x 800 with projections counted by hand, a sigmoid DNN."""
    with torch.device("meta"):
        assert parameters(Blstm(hidden=512, layers=6, bottleneck=256).build(260, 32_000)) == 43_154_944
        lstm = Lstm(hidden=800, layers=4, projection=256).build(40, 5000)
        first, others = 3200 * (40 + 256) + 6400 + 256 * 800, 3200 * (256 + 256) + 6400 + 256 * 800
        assert parameters(lstm) == first + 3 * others + 256 * 5000 + 5000
        dnn = Dnn(hidden=2048, layers=6, context=5).build(40, 9000)
        assert parameters(dnn) == 440 * 2048 + 5 * 2048 * 2048 + 6 * 2048 + 2048 * 9000 + 9000


@pytest.mark.parametrize(
    "config", [*SMALL, Tdnn(8, dropout=0.3), TdnnF(8, 3, dropout=0.3), Dnn(8, 2, dropout=0.3)], ids=named
)
def test_recomputing_activations_changes_no_bit(config):
    feats, lengths = torch.randn(2, 20, 5), torch.tensor([20, 13])
    found = []
    for kept in ("activations", "inputs"):
        torch.manual_seed(1)
        model = replace(config, kept=kept).build(5, 4)
        logits = model(feats, lengths)
        logits.square().mean().backward()
        found.append([logits, *(p.grad for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    with pytest.raises(ValueError, match="'activations' or their 'inputs'"):
        replace(config, kept="nothing").build(5, 4)(feats)


@pytest.mark.parametrize("config", [c for c in SMALL if not getattr(c, "projection", None)], ids=named)
def test_bfloat16_is_near_float32(config):
    """Check a model under autocast on a CPU; gradients arrive in float32."""
    torch.manual_seed(0)
    model, feats = replace(config, dropout=0.0).build(5, 4), torch.randn(3, 20, 5)
    exact = model(feats)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = model(feats)
        loss = low.float().square().mean()
    loss.backward()
    assert low.dtype == torch.bfloat16
    assert float((low.float() - exact).detach().norm() / exact.detach().norm()) < 0.03
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


def test_a_network_that_cannot_be_is_refused():
    for config in (Dnn(layers=0), Dnn(context=-1), Dnn(nonlinearity="cubic")):
        with pytest.raises(ValueError, match="at least one layer"):
            config.build(3, 2)


@given(st.integers(1, 9), st.lists(st.integers(-4, 4), min_size=1, max_size=4, unique=True))
@settings(deadline=None)
def test_splice_puts_shifted_frames_side_by_side(frames, offsets):
    x = torch.arange(frames, dtype=torch.float32)[None, :, None]
    expected = [[min(max(t + o, 0), frames - 1) for o in offsets] for t in range(frames)]
    assert splice(x, tuple(offsets))[0].tolist() == expected


def test_a_tdnn_without_offsets_is_refused():
    with pytest.raises(ValueError, match="at least one layer"):
        Tdnn(contexts=((0,), ())).build(3, 2)
    for config in (Tdnn(stack=0), TdnnF(stack=0)):
        with pytest.raises(ValueError, match="a stack of at least 1"):
            config.build(3, 2)


@given(st.integers(1, 30), st.integers(-4, 4))
@settings(deadline=None)
def test_targets_are_fitted_at_both_ends(aligned, difference):
    pdfs, frames = np.arange(aligned), aligned + difference
    if frames < 1:
        return
    fitted = fit_targets(pdfs, frames)
    assert len(fitted) == frames
    assert set(fitted) <= set(pdfs)
    begin = difference // 2 if difference >= 0 else -(-difference // 2)
    np.testing.assert_array_equal(fitted, np.clip(np.arange(frames) - begin, 0, aligned - 1))


def test_targets_of_another_utterance_are_refused():
    with pytest.raises(ValueError, match="alignment of 10 frames cannot serve 20"):
        fit_targets(np.zeros(10, int), 20)


@given(st.integers(1, 50), st.integers(1, 80))
@settings(deadline=None)
def test_stretched_targets_keep_order_and_proportion(aligned, frames):
    stretched = at_speed(np.arange(aligned), frames)
    assert len(stretched) == frames
    assert (np.diff(stretched) >= 0).all()
    middle = (np.arange(frames) + 0.5) * aligned / frames
    assert np.abs(stretched + 0.5 - middle).max() <= 0.5
    np.testing.assert_array_equal(at_speed(np.arange(aligned), aligned), np.arange(aligned))


def test_a_copy_at_another_speed_has_a_name_and_targets_of_its_own():
    slow = speed_copy("a", 0.5, np.ones((20, 2)), np.arange(10))
    assert slow.name == "sp0.5-a"
    assert slow.targets.tolist() == np.repeat(np.arange(10), 2).tolist()
    assert slow.feats.sum() == 40
    plain = speed_copy("a", 1.0, np.ones((10, 2)), np.arange(10))
    assert (plain.name, plain.targets.tolist()) == ("a", list(range(10)))


def test_log_prior_counts_frames():
    prior = log_prior([np.array([0, 0, 2]), np.array([2])], 4)
    np.testing.assert_allclose(prior.exp(), np.array([3, 1, 3, 1]) / 8, rtol=1e-6)
    with pytest.raises(ValueError, match=r"pdf 0 \.\. 4"):
        log_prior([np.array([0, 4])], 4)


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, feats):
        return self.dropout(self.linear(feats))


def test_log_likelihoods_are_posteriors_less_priors():
    model, feats = Linear().train(), np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
    prior = torch.log(torch.tensor([0.1, 0.2, 0.3, 0.4]))
    scores = log_likelihoods(model, feats, prior)
    assert model.training
    np.testing.assert_allclose((np.exp(scores) * prior.exp().numpy()).sum(1), 1, rtol=1e-5)
    expected = model.linear(torch.from_numpy(feats)).log_softmax(-1) - prior
    np.testing.assert_allclose(scores, expected.detach().numpy(), atol=1e-5)
    with pytest.raises(ValueError, match="4 outputs, the prior 3"):
        log_likelihoods(model, feats, prior[:3])


def test_frame_loss_passes_over_context():
    logits, targets = torch.randn(2, 5, 4), torch.full((2, 5), IGNORED)
    targets[0, 1:3], targets[1, 2] = torch.tensor([3, 1]), 0
    total = frame_total(logits, targets)
    log_probs = logits.log_softmax(-1)
    assert float(total) == pytest.approx(-float(log_probs[0, 1, 3] + log_probs[0, 2, 1] + log_probs[1, 2, 0]), rel=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        Tdnn(16, ((-1, 0, 1), (0,)), 0.0),
        Tdnn(16, ((0,),), 0.0, front=Convolutions((4,), bins=3)),
        TdnnF(16, 5, (0,), (1,), dropout=0.0),
        Blstm(12, 1),
        Lstm(12, 1),
        Dnn(24, 2, 1),
        Conformer(16, 1, 2, 3, dropout=0.0),
    ],
    ids=named,
)
def test_chunk_training_learns_what_the_context_shows(config):
    """Targets of frame t are the class of frame t - 1, so that only a model with context can learn them."""
    rng = np.random.default_rng(0)
    classes = {f"u{i}": rng.integers(3, size=60) for i in range(12)}
    feats = {name: np.eye(3, dtype=np.float32)[c] for name, c in classes.items()}
    targets = {name: np.concatenate([c[:1], c[:-1]]) for name, c in classes.items()}
    torch.manual_seed(0)
    model = config.build(3, 3)
    corpus = FramesInMemory(feats, targets)
    table = ChunkTable(corpus.lengths, frames=20, left_frames=3, right_frames=3, size=8)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for n in range(12 * table.per_epoch):
        total, frames = batch_loss(model, table.batch(n, corpus))
        optimizer.zero_grad()
        (total / frames).backward()
        optimizer.step()
    figures = frame_figures(model, feats, targets)
    assert figures["accuracy"] > 0.97
    assert figures["loss"] < 0.2
    with pytest.raises(ValueError, match="no aligned utterance"):
        frame_figures(model, feats, {})
