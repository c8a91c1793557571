"""`MurmurStrategy` for programs that import `pytorch_lightning`, whose Trainer takes no strategy of `lightning`."""

from __future__ import annotations

from pytorch_lightning.strategies import DDPStrategy

from murmur.integrations.lightning_joined import JoinedTraining

MurmurStrategy = type("MurmurStrategy", (JoinedTraining, DDPStrategy), {"__doc__": JoinedTraining.__doc__})
