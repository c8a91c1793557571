"""Acoustic models: small frozen configurations whose `build(inputs, outputs)` makes the torch module."""

from murmur.speech.models.dnn import Dnn
from murmur.speech.models.recurrent import Blstm, Lstm
from murmur.speech.models.tdnn import Tdnn

Network = Dnn | Lstm | Blstm | Tdnn

__all__ = ["Blstm", "Dnn", "Lstm", "Network", "Tdnn"]
