"""Networks that do not fit are found before Gaussian systems are trained."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.speech.features.chunks import Chunks
from murmur.speech.models import Blstm, Conformer, Dnn, Network, Tdnn, TdnnF
from murmur.speech.models.layers import Convolutions
from murmur.speech.tasks.hybrid.config import HmmStages
from murmur.speech.tasks.hybrid.learning import check_network
from murmur.speech.tasks.hybrid.task import HybridTask
from tests.support.plateaus import make_set

CHUNKS = Chunks()


@pytest.mark.parametrize(
    "network", [Dnn(), Tdnn(), TdnnF(), Blstm(), Conformer(), Tdnn(front=Convolutions((8, 8), 20))]
)
def test_networks_that_fit_pass(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    check_network(
        network, 40, 20 if isinstance(network, Tdnn) and network.front else 40, Chunks(left_frames=20, right_frames=20)
    )
    assert not caplog.text


@pytest.mark.parametrize(("network", "message"), [
    (TdnnF(front=Convolutions((8,), 30)), r"task\.network\.front\.bins = 30 with 40 mel bins"),
    (TdnnF(front=Convolutions((8, 8), 20)), r"task\.network\.front\.bins = 20 with 40 mel bins"),
    (TdnnF(hidden=32, bottleneck=512), "bottleneck"),
])  # fmt: skip
def test_networks_that_do_not_fit_are_refused(network: Network, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_network(network, 40, 40, CHUNKS)


def test_chunks_with_too_little_context_are_told(caplog: pytest.LogCaptureFixture) -> None:
    check_network(TdnnF(front=Convolutions((8, 8))), 40, 40, CHUNKS)
    assert "12 frames of context on one side and the network takes 14" in caplog.text
    assert "chunks with left_frames=14 have enough" in caplog.text
    assert "chunks with right_frames=14 have enough" in caplog.text


def test_a_task_checks_its_network_before_it_trains(tmp_path: Path) -> None:
    root = make_set(tmp_path / "set", {"train": 24, "dev": 4, "test": 4})
    task = HybridTask(
        corpus=root,
        hmm=HmmStages(triphone=None),
        network=TdnnF(front=Convolutions((8, 8))),
        cache=tmp_path / "cache",
    )
    with pytest.raises(ValueError, match="39 features are not streams of 40 mel bins"):  # the set brings features
        task.prepare()
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").glob("*.npz"))
