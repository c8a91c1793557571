"""Features of speech: analysis, normalisation, augmentation, storage, chunks and minibatches."""
