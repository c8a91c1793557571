"""Pronunciation lexicons: reading, guessing, transducers."""
