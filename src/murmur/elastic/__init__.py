"""Training that goes on without a lost learner: elastic group, rendezvous, state transfer."""
