"""Chain models: lattice-free MMI from the first step, at a lower frame rate, with or without alignments."""
