"""Convolutions over time and mel bins: a filter by hand, streams, halved bins, what is refused."""

import pytest
import torch

from murmur.speech.models import Convolutions


def test_a_filter_sees_three_frames_and_three_bins_of_every_stream():
    """Sums by hand: edge frames repeat, zeros stand beyond the lowest and the highest bin."""
    torch.manual_seed(0)
    (layer,) = Convolutions((2,), bins=4).build(8)
    x = torch.randn(1, 5, 8)
    found = layer.filters(
        torch.cat([x[:, :1], x, x[:, -1:]], 1).unflatten(2, (2, 4)).transpose(1, 2)
    )  # (1, 2, 5, 4): the layer's own call, compared with plain loops below
    for t in range(5):
        for b in range(4):
            total = layer.filters.bias.clone()
            for stream in range(2):
                for dt in (-1, 0, 1):
                    for db in (-1, 0, 1):
                        if 0 <= b + db < 4:
                            value = x[0, min(max(t + dt, 0), 4), stream * 4 + b + db]
                            total = total + layer.filters.weight[:, stream, dt + 1, db + 1] * value
            torch.testing.assert_close(found[0, :, t, b], total, atol=1e-5, rtol=1e-4)
    plain = torch.relu(found).transpose(1, 2).flatten(2)
    normal = (plain - plain.mean(2, keepdim=True)) / (plain.var(2, correction=0, keepdim=True) + layer.norm.eps).sqrt()
    torch.testing.assert_close(layer(x), normal, atol=1e-5, rtol=1e-4)


def test_later_layers_halve_the_bins():
    layers = Convolutions((4, 6, 5), bins=7).build(14)
    assert [layer.outputs for layer in layers] == [4 * 7, 6 * 4, 5 * 2]
    x = torch.randn(2, 9, 14)
    for layer in layers:
        x = layer(x)
        assert x.shape == (2, 9, layer.outputs)


@pytest.mark.parametrize(
    ("config", "inputs", "says"),
    [
        (Convolutions(), 41, "41 features are not streams of 40 mel bins"),
        (Convolutions(()), 40, "at least one layer"),
        (Convolutions((4, 0)), 40, "one filter"),
        (Convolutions(bins=0), 40, "one bin"),
    ],
)
def test_fronts_that_cannot_be_are_refused(config, inputs, says):
    with pytest.raises(ValueError, match=says):
        config.build(inputs)
