"""Decoding: graphs, beam search, lattices, word times, error rates, exported networks."""
