"""The implementation of `murmur.join`: a user's training loop as a learner's source of gradients."""
