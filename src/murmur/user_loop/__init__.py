"""What stands behind `murmur.join`: a training loop of somebody else's as a learner's source of gradients."""
