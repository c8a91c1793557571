"""Acoustic models: small frozen configurations whose `build(inputs, outputs)` makes the torch module."""

from murmur.speech.models.conformer import Conformer
from murmur.speech.models.dnn import Dnn
from murmur.speech.models.layers import Convolutions
from murmur.speech.models.recurrent import Blstm, Lstm
from murmur.speech.models.tdnn import Tdnn, TdnnF

Network = Dnn | Lstm | Blstm | Tdnn | TdnnF | Conformer

__all__ = ["Blstm", "Conformer", "Convolutions", "Dnn", "Lstm", "Network", "Tdnn", "TdnnF"]
