"""Start of learner processes on a host, their places, their arrival and their signals."""
