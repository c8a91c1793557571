"""The folder of a run: what it holds, which process may write in it, and how the run in it stands."""
