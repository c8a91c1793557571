"""Worker processes in which preparation and decoding run."""
