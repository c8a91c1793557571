"""The kernel: what a strategy sees, and the values that worlds exchange."""
