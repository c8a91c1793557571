"""Sequence training of hybrid systems: lattice-free criteria for a network that cross-entropy has trained."""
