"""i-vectors: a point of low dimension for each speaker or utterance, from the frames alone."""
