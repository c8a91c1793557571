"""Theory of the strategies, as functions; derivations, with experiments beside them, stand in `docs/theory.md`."""
