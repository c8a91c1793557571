"""Training that goes on without a lost learner: regrouping, rendezvous, state transfer."""
