"""Use of trained models: decoding, transcription, export."""
