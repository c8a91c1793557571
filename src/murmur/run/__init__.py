"""One run: configuration, launch, learner, saved models, folder."""
