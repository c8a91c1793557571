"""Trainable tasks: hybrid systems, CTC, prepared frames, pre-training, language models."""
