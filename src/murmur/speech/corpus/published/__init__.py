"""Corpora that anyone may have: what they are, how they are fetched and read, and the set that is written of them."""
