"""What theory says of the strategies, as functions; derivations, and practice beside, stand in `docs/theory.md`."""
