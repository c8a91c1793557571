"""Start of learner processes on a host, with their places, arrival and signals."""
