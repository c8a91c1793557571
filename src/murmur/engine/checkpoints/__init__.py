"""Checkpoints: their files, the position of a run in them, the best of them, resumption."""
