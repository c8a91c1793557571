"""Scoring of time-marked hypotheses against STM references, as NIST's sclite does."""
