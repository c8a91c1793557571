"""Trainable tasks: hybrid systems, CTC, chain models, prepared frames, pre-training, language models."""
