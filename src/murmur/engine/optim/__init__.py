"""Local optimizers, plain and with natural gradient."""
