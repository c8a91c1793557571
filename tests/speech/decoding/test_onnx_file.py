"""Exported networks of random weights: onnxruntime equals torch on whole utterances, batches and chunks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("onnx", reason="onnx is not installed (pip install murmur-asr[deploy])")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install murmur-asr[deploy])")

from murmur.speech.decoding.deployable import (
    FixedCmvn,
    JoinedInput,
    NoCmvn,
    ScoreNetwork,
    StreamedChunks,
    UtteranceCmvn,
    WholeUtterances,
)
from murmur.speech.decoding.onnx_file import OPSET, ExportError, in_chunks, session, write_onnx
from murmur.speech.features.analysis import deltas
from murmur.speech.features.cmvn import all_with_derivatives, normalise_all, statistics
from murmur.speech.models import Blstm, Conformer, Convolutions, Dnn, Lstm, Tdnn, TdnnF

VALUES, OUTPUTS = 6, 5
NETWORKS = {
    "tdnn": Tdnn(hidden=8, contexts=((-2, 0, 2), (-1, 0, 1), (0,))),
    "factored tdnn": TdnnF(hidden=8, bottleneck=3, strides=(1, 0, 2)),
    "convolutions and factored tdnn": TdnnF(8, 3, strides=(2,), front=Convolutions((2, 3), bins=3)),
    "convolutions and tdnn": Tdnn(8, ((-1, 0, 1), (0,)), front=Convolutions((2, 3), bins=6)),
    "tdnn at a third of the rate": Tdnn(8, ((-1, 0, 1), (-3, 0, 3), (0,)), stack=3),
    "dnn": Dnn(hidden=8, layers=2, context=3),
    "lstm": Lstm(hidden=7, layers=2),
    "blstm with stacked frames": Blstm(hidden=7, layers=2, stack=3, bottleneck=4),
    "conformer": Conformer(hidden=8, layers=2, heads=2, kernel=5),
    "conformer at a quarter of the rate": Conformer(8, 1, 2, 3, reach=4, stack=4, front=Convolutions((2, 3), bins=3)),
}


def network_of(config):
    torch.manual_seed(3)
    return config.build(VALUES, OUTPUTS).eval()


def exported(tmp_path, module):
    path = tmp_path / "model.onnx"
    return path, write_onnx(module, VALUES, {"sample_rate": "16000"}, path)


@pytest.mark.parametrize("name", NETWORKS)
def test_scores_are_those_of_each_utterance_alone(tmp_path, name):
    config = NETWORKS[name]
    network = network_of(config)
    prior, columns = torch.log(torch.tensor([0.1, 0.2, 0.3, 0.3, 0.1])), np.array([4, 0, 0, 1, 2, 3, 3])
    module = WholeUtterances(UtteranceCmvn(), network, ScoreNetwork(OUTPUTS, prior, columns, 0.3))
    path, worst = exported(tmp_path, module)
    assert worst <= 1e-4
    rng = np.random.default_rng(1)
    lengths = [1, 2, 5, 40, 7]
    feats = {str(i): (rng.normal(size=(n, VALUES)) * 3 - 8).astype(np.float32) for i, n in enumerate(lengths)}
    x = np.full((len(lengths), max(lengths), VALUES), -23.0, np.float32)  # as sherpa-onnx pads
    for i, n in enumerate(lengths):
        x[i, :n] = feats[str(i)]
    got, got_lens = session(path).run(None, {"x": x, "x_lens": np.array(lengths)})
    normal = normalise_all(feats, {name: name for name in feats}, "utterance")
    for i, n in enumerate(lengths):
        with torch.inference_mode():
            alone = network(torch.from_numpy(normal[str(i)])[None]).log_softmax(-1)[0] - prior
        frames = -(-n // config.stack)
        assert got_lens[i] == frames == len(alone)
        np.testing.assert_allclose(got[i, :frames], 0.3 * alone.numpy()[:, columns], atol=1e-4)


@pytest.mark.parametrize("columns", ["static", "all"])
@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("name", ["tdnn", "dnn", "blstm with stacked frames", "conformer"])
def test_derivatives_and_ivectors_are_those_of_each_utterance_alone(tmp_path, name, given, order, columns):
    config, rng = NETWORKS[name], np.random.default_rng(4)
    torch.manual_seed(3)
    network = config.build(VALUES * (order + 1) + 4, OUTPUTS).eval()
    lengths, usual = [1, 2, 7, 40], rng.normal(size=4).astype(np.float32)
    feats = {str(i): rng.normal(size=(n, VALUES)).astype(np.float32) for i, n in enumerate(lengths)}
    ivectors = rng.normal(size=(len(lengths), 4)).astype(np.float32) if given else np.tile(usual, (len(lengths), 1))
    joined = JoinedInput(UtteranceCmvn(), order, usual, columns)
    module = WholeUtterances(joined, network, ScoreNetwork(OUTPUTS), 4 if given else 0)
    path, worst = exported(tmp_path, module)
    assert worst <= 1e-4
    x = np.full((len(lengths), max(lengths), VALUES), 5.0, np.float32)
    for i, n in enumerate(lengths):
        x[i, :n] = feats[str(i)]
    more = {"ivector": ivectors} if given else {}
    got, _ = session(path).run(None, {"x": x, "x_lens": np.array(lengths), **more})
    normal = all_with_derivatives(feats, {name: name for name in feats}, "utterance", order, columns)
    for i, n in enumerate(lengths):
        whole = np.concatenate([normal[str(i)], np.tile(ivectors[i], (n, 1))], axis=1)
        with torch.inference_mode():
            alone = network(torch.from_numpy(whole)[None]).log_softmax(-1)[0].numpy()
        np.testing.assert_allclose(got[i, : len(alone)], alone, atol=1e-4)


def test_fixed_statistics_of_derivatives(tmp_path):
    torch.manual_seed(3)
    network, rng = NETWORKS["tdnn"].build(VALUES * 3, OUTPUTS).eval(), np.random.default_rng(5)
    feats_TF = (rng.normal(size=(30, VALUES)) * 3 - 8).astype(np.float32)
    mean_C, deviation_C = statistics([deltas(feats_TF)])
    joined = JoinedInput(FixedCmvn(mean_C, deviation_C), 2, np.zeros(0), "all")
    path, _ = exported(tmp_path, WholeUtterances(joined, network, ScoreNetwork(OUTPUTS)))
    got, _ = session(path).run(None, {"x": feats_TF[None], "x_lens": np.array([30])})
    with torch.inference_mode():
        wanted = network(torch.from_numpy((deltas(feats_TF) - mean_C) / deviation_C)[None]).log_softmax(-1)
    np.testing.assert_allclose(got, wanted.numpy(), atol=1e-4)


def test_a_stream_has_an_ivector_in_place_of_the_speakers(tmp_path):
    torch.manual_seed(3)
    network, feats_TF = Lstm(hidden=7, layers=2).build(VALUES + 2, OUTPUTS).eval(), np.ones((40, VALUES), np.float32)
    usual = np.array([0.5, -1.0], np.float32)
    module = StreamedChunks(JoinedInput(NoCmvn(), 0, usual), network, ScoreNetwork(OUTPUTS))
    path, _ = exported(tmp_path, module)
    got = in_chunks(session(path), feats_TF[None], 8, module)[0]
    whole = np.concatenate([feats_TF, np.tile(usual, (40, 1))], axis=1)
    with torch.inference_mode():
        alone = network(torch.from_numpy(whole)[None]).log_softmax(-1)[0].numpy()
    np.testing.assert_allclose(got, alone, atol=1e-4)
    with pytest.raises(ValueError, match="derivatives need future frames"):
        StreamedChunks(JoinedInput(NoCmvn(), 1, usual), network, ScoreNetwork(OUTPUTS))
    with pytest.raises(ValueError, match="known only at its end"):
        StreamedChunks(JoinedInput(UtteranceCmvn(), 0, usual), network, ScoreNetwork(OUTPUTS))


@pytest.mark.parametrize("name", ["lstm", "blstm with stacked frames"])
def test_fixed_statistics_and_none(tmp_path, name):
    network = network_of(NETWORKS[name])
    feats_TF = (np.random.default_rng(2).normal(size=(50, VALUES)) * 3 - 8).astype(np.float32)
    mean_F, deviation_F = statistics([feats_TF])
    for cmvn, seen in ((FixedCmvn(mean_F, deviation_F), (feats_TF - mean_F) / deviation_F), (NoCmvn(), feats_TF)):
        path, _ = exported(tmp_path, WholeUtterances(cmvn, network, ScoreNetwork(OUTPUTS)))
        got, _ = session(path).run(None, {"x": feats_TF[None], "x_lens": np.array([50])})
        with torch.inference_mode():
            wanted = network(torch.from_numpy(seen.astype(np.float32))[None]).log_softmax(-1)
        np.testing.assert_allclose(got, wanted.numpy(), atol=1e-4)


@pytest.mark.parametrize(("stack", "chunk"), [(1, 1), (1, 13), (3, 3), (3, 12)])
def test_a_stream_in_chunks_equals_the_whole(tmp_path, stack, chunk):
    network = network_of(Lstm(hidden=7, layers=3, stack=stack, bottleneck=4))
    cmvn = FixedCmvn(np.full(VALUES, -8.0), np.full(VALUES, 3.0))
    scores = ScoreNetwork(OUTPUTS)
    module = StreamedChunks(cmvn, network, scores)
    path, worst = exported(tmp_path, module)
    assert worst <= 1e-4
    x = (np.random.default_rng(stack).normal(size=(2, 50, VALUES)) * 3 - 8).astype(np.float32)
    got = in_chunks(session(path), x, chunk, module)
    with torch.inference_mode():
        whole, _ = WholeUtterances(cmvn, network, scores)(torch.from_numpy(x), torch.tensor([50, 50]))
    np.testing.assert_allclose(got, whole.numpy(), atol=1e-4)


@pytest.mark.parametrize("columns", [None, np.array([0, 3, 3, 4, 1, 2, 0])])
def test_axes_opset_and_metadata(tmp_path, columns):
    import onnx

    scores = ScoreNetwork(OUTPUTS, columns=columns)
    path, _ = exported(tmp_path, WholeUtterances(NoCmvn(), network_of(NETWORKS["tdnn"]), scores))
    model = onnx.load(str(path))
    assert [o.version for o in model.opset_import if o.domain == ""] == [OPSET]
    assert {p.key: p.value for p in model.metadata_props} == {"sample_rate": "16000"}
    x, written = model.graph.input[0].type.tensor_type.shape.dim, model.graph.output[0].type.tensor_type.shape.dim
    assert [d.dim_param for d in x][:2] == ["N", "T"]
    assert [d.dim_param for d in written][:2] == ["N", "U"]
    assert (x[2].dim_value, written[2].dim_value) == (VALUES, scores.width)  # sherpa-onnx reads the width here


def test_what_cannot_be_exported_is_refused_with_the_reason(tmp_path):
    projected = network_of(Lstm(hidden=7, layers=1, projection=3))
    with pytest.raises(ExportError, match="projection have no ONNX operator"):
        exported(tmp_path, WholeUtterances(NoCmvn(), projected, ScoreNetwork(OUTPUTS)))
    refused = (
        ("blstm with stacked frames", NoCmvn(), "one-directional"),
        ("conformer", NoCmvn(), "one-directional"),
        ("lstm", UtteranceCmvn(), "--cmvn global"),
    )
    for name, cmvn, reason in refused:
        with pytest.raises(ValueError, match=reason):
            StreamedChunks(cmvn, network_of(NETWORKS[name]), ScoreNetwork(OUTPUTS))
    with pytest.raises(ValueError, match="do not belong together"):
        ScoreNetwork(OUTPUTS, columns=np.array([OUTPUTS]))
    with pytest.raises(ValueError, match="do not belong together"):
        ScoreNetwork(OUTPUTS, log_prior=torch.zeros(3))
    assert not list(tmp_path.iterdir())


def test_an_export_that_computes_something_else_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("murmur.speech.decoding.onnx_file.TOLERANCE", -1.0)
    with pytest.raises(ExportError, match="from the network's, more than"):
        exported(tmp_path, WholeUtterances(NoCmvn(), network_of(NETWORKS["lstm"]), ScoreNetwork(OUTPUTS)))


def test_scores_that_are_no_numbers_are_refused(tmp_path):
    network = network_of(NETWORKS["tdnn"])
    with torch.no_grad():
        next(network.parameters()).fill_(float("nan"))
    module = WholeUtterances(NoCmvn(), network, ScoreNetwork(OUTPUTS))
    with pytest.raises(ExportError, match="up to inf from the network's"):
        write_onnx(module, VALUES, {}, tmp_path / "model.onnx")
