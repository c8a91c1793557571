"""Records of runs as a page, and in the terminal."""
