"""Folder of a run: its contents, the lock for its writers, and the state of the run."""
