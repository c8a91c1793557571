"""`Trainer(strategy=MurmurStrategy(KAVG(8)), devices=2)`: one line for any LightningModule.

In a configuration, for example of ESPnet3 or NeMo:

    strategy:
      _target_: murmur.integrations.lightning.MurmurStrategy
      strategy: {_target_: murmur.KAVG, K: 8}
"""

from __future__ import annotations

from lightning.pytorch.strategies import DDPStrategy

from murmur.integrations.lightning_joined import JoinedTraining


class MurmurStrategy(JoinedTraining, DDPStrategy):  # type: ignore[misc]
    __doc__ = JoinedTraining.__doc__
