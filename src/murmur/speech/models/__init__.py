"""Acoustic models: small frozen configurations whose `build(inputs, outputs)` makes the torch module."""

from murmur.speech.models.recurrent import Blstm, Lstm
from murmur.speech.models.tdnn import Tdnn

Network = Lstm | Blstm | Tdnn

__all__ = ["Blstm", "Lstm", "Network", "Tdnn"]
