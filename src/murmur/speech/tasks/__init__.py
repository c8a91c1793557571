"""Trainable tasks of speech: hybrid systems, CTC, chain models, prepared frames, pre-training, language models."""
