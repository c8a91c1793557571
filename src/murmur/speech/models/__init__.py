"""Acoustic models: small frozen configurations whose `build(inputs, outputs)` makes the torch module."""

from murmur.speech.models.recurrent import Blstm, Lstm

Network = Lstm | Blstm

__all__ = ["Blstm", "Lstm", "Network"]
