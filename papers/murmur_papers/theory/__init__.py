"""Theory of the strategies as functions; `docs/theory.md` has derivations and experiments."""
