"""The errors of speech data, on this host or a remote one."""

from __future__ import annotations


class CorpusError(ValueError):
    """Speech data that cannot be used as it is; the message names the file, the utterance and the remedy."""


class TransferError(Exception):
    """Access that is refused, or a transfer that goes on failing: an error of the whole work, not of one utterance."""

    of_user = True
