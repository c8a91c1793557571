"""Comparisons: grids of runs, their rows on disk, tables of them."""
