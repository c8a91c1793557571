"""Comparisons of runs, and the experiments of five papers."""
