"""Hidden Markov models with Gaussian mixtures: training, alignment, decision trees, feature transforms."""
