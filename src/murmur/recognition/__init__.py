"""Trained models at work: decoding, transcription, export."""
