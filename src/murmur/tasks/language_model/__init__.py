"""Language models as a task of the engine: an LSTM over words, trained on plain text."""
