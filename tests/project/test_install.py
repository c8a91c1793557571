"""The speech libraries import together; a wrong mix of their OpenFst generations dead-locks silently."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.interpreter

SET = ("kaldifst", "kaldilm", "kaldi_decoder", "kaldi_hmm_gmm", "kaldi_native_io", "kaldi_native_fbank")
missing = [name for name in SET if find_spec(name) is None]


@pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)} (pip install murmur-asr[speech])")
@pytest.mark.parametrize("order", [SET, SET[::-1], ("torch", *SET), (*SET, "torch")], ids=" ".join)
def test_speech_libraries_import_together(order: tuple[str, ...]) -> None:
    program = "; ".join(f"import {name}" for name in order)
    done = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_core_needs_no_speech_library() -> None:
    program = (
        "import sys, murmur, murmur.cli, murmur.strategies, murmur.testing.worlds;"
        "heavy = {'lhotse', 'kaldifst', 'kaldi_hmm_gmm', 'jiwer', 'soundfile', 'matplotlib'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
