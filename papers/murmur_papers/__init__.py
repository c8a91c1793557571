"""The experiments and the theory of five papers on distributed training of acoustic models, run small."""
