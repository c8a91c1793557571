"""Speech data: recordings, transcripts, data directories, published and synthetic corpora."""
