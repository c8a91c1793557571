"""Natural-gradient SGD: gradients preconditioned by online Fisher estimates, made inside the backward pass."""

from murmur.engine.optim.natural_gradient.fisher import FisherConfig
from murmur.engine.optim.natural_gradient.mode import Preconditioning

__all__ = ["FisherConfig", "Preconditioning"]
