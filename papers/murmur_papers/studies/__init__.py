"""Experiments of five papers at small size: real gradients on speech, a virtual clock. `murmur papers --help`."""
