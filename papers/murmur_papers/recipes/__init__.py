"""Experiments of five papers at their own size, one file a paper.

Each runs whole on its corpus (`--set task.data=FOLDER --set task.dev=FOLDER`), is planned and timed without it, and
trains as a small version (`--set scale=0.02`) whose sizes follow `DeclaredTask.at`. A small version keeps the clock of
the paper's size (seconds of a gradient, bytes of a message), so that learners meet as they did in the paper. Comments
mark numbers that the paper does not give, or that could not be read, as assumed.
"""
