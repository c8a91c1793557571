"""Lattice-free sequence training: phone language models, denominator and numerator graphs, criteria."""
