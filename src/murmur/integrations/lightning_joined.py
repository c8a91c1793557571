"""Strategy of Lightning's Trainer whose optimizer steps are those of a strategy of murmur.

`murmur.integrations.lightning` and `murmur.integrations.pytorch_lightning` add it to `DDPStrategy` of the package that
they are named after. The Trainer then finds rank, size, sampler, logger and the one writer as under DDP. The module is
not wrapped: gradients and weights go through the world of `murmur.join`.
"""

from __future__ import annotations

import logging
import math
import shutil
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from typing import Any

from murmur.core.group import PeerLost
from murmur.core.learner import Strategy
from murmur.integrations.base import Session, start_default_group, take_from_first
from murmur.integrations.lightning_precision import precision_of_means
from murmur.user_loop.joined import Joined
from murmur.worlds.process.environment import Place, place_of

log = logging.getLogger(__name__)
KEY = "murmur"  # of a checkpoint that has the states of the learners beside it
_Base: Any = object  # DDPStrategy of one of the two packages


class JoinedTraining(_Base):  # type: ignore[misc]
    """Joins the optimizer of a LightningModule, from the first step of `fit` to the last.

    Args:
        strategy: Strategy, such as `KAVG(8)`.
        out: Folder for the records, as in `murmur.join`.
        plan: Fields of `murmur.Plan` other than `total_steps`, such as `scaling`.

    Raises:
        ValueError: By `fit`: the module has several optimizers, or the launcher has started other learners than
            `Trainer(devices=..., num_nodes=...)` says.
    """

    def __init__(self, strategy: Strategy, out: Path | str | None = None, **plan: Any) -> None:
        super().__init__()
        self._session = Session(strategy, out, **plan)
        self._place: Place | None = None
        self._states: Path | None = None  # folder of the learners' states of the checkpoint that was loaded
        self._during_fit, self._lent, self._lends = ExitStack(), ExitStack(), False

    @property
    def me(self) -> Joined | None:
        """The joined loop while `fit` trains; None before and after."""
        return self._session.me

    def setup_distributed(self) -> None:
        place = place_of() or Place(
            rank=self.global_rank,
            size=self.world_size,
            local_rank=self.local_rank,
            host=self.cluster_environment.main_address,
            port=self.cluster_environment.main_port,
            local_size=self.num_processes,
            store="learner 0",
        )
        if (place.rank, place.size) != (self.global_rank, self.world_size):
            raise ValueError(
                f"the launcher has started learner {place.rank} of {place.size}, but Lightning counts this process as"
                f" {self.global_rank} of {self.world_size}: set Trainer(devices=..., num_nodes=...) to the launch's"
            )
        self._place = place
        start_default_group(place)
        super().setup_distributed()  # keeps this group

    def configure_ddp(self) -> None:
        """Start from the weights of learner 0, as DDP does, without its wrapper."""
        take_from_first([*self.lightning_module.parameters(), *self.lightning_module.buffers()])

    def setup_optimizers(self, trainer: Any) -> None:
        super().setup_optimizers(trainer)
        if len(self.optimizers) != 1:
            raise ValueError(
                f"configure_optimizers returned {len(self.optimizers)} optimizers, and a strategy joins one: return one"
                " with several parameter groups"
            )

    def on_train_start(self) -> None:
        super().on_train_start()
        module, optimizer = self.lightning_module, self.optimizers[0]
        self._session.begin(module, optimizer, self._place, self._total_steps(module))
        if self._states is not None and not self._session.load(self._states):
            log.warning(
                "%s has not the states of all learners: they go on from the consensus, and from the optimizer of"
                " learner 0",
                self._states,
            )
        self._during_fit.enter_context(precision_of_means(self.precision_plugin, optimizer))

    def _total_steps(self, module: Any) -> int | None:
        steps = module.trainer.estimated_stepping_batches  # -1 or infinite if it is not known
        known = module.automatic_optimization and 0 < steps < math.inf
        return int(steps) * self.world_size if known else None

    def on_validation_start(self) -> None:
        super().on_validation_start()
        if self.me is not None:
            self.barrier()  # all have taken the same steps
            model = self._lent.enter_context(self.me.consensus())
            # Without lock-step, weights move beside the loop, and each learner has met another mean.
            take_from_first(p for p in model.parameters() if p.requires_grad)
            self._lends = True

    def on_validation_end(self) -> None:
        super().on_validation_end()
        self._give_back()

    def _give_back(self) -> None:
        self._lends = False
        self._lent.close()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the state of the consensus on learner 0, which writes it. A collective while `fit` trains."""
        if self.me is None or self._lends:
            return deepcopy(super().lightning_module_state_dict())
        self.barrier()  # all have taken the same steps
        if not self.is_global_zero:
            return super().lightning_module_state_dict()  # type: ignore[no-any-return]
        try:
            with self.me.consensus():
                return deepcopy(super().lightning_module_state_dict())
        except PeerLost as error:
            if not self._fails_alone:
                raise
            log.warning("the checkpoint of this failure has the weights of learner 0, not the consensus: %s", error)
            return super().lightning_module_state_dict()  # type: ignore[no-any-return]

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Path | str, storage_options: Any = None) -> None:
        """Write the checkpoint on learner 0, and the state of each learner in a folder beside it."""
        folder = None
        local, whole = "://" not in str(filepath), "optimizer_states" in checkpoint
        if self.me is not None and whole and local and not self._fails_alone:
            checkpoint[KEY] = {"steps": int(checkpoint["global_step"]), "learners": self.world_size}
            folder = _states_of(filepath, checkpoint[KEY])
            self._session.save(folder)
            self.barrier()  # a checkpoint that names the states comes after them
        super().save_checkpoint(checkpoint, filepath, storage_options)
        if folder is not None and self.is_global_zero:
            for former in set(folder.parent.iterdir()) - {folder}:
                shutil.rmtree(former)

    def load_checkpoint(self, checkpoint_path: Path | str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        checkpoint: dict[str, Any] = super().load_checkpoint(checkpoint_path, *args, **kwargs)
        named = checkpoint.get(KEY)
        self._states = None if named is None else _states_of(Path(checkpoint_path).resolve(), named)
        return checkpoint

    def remove_checkpoint(self, filepath: Path | str) -> None:
        super().remove_checkpoint(filepath)
        if self.is_global_zero and _beside(filepath).is_dir():
            shutil.rmtree(_beside(filepath))

    @property
    def _fails_alone(self) -> bool:
        """True while callbacks handle an error of this learner; SIGTERM ends all learners at the same step."""
        trainer = None if self.lightning_module is None else self.lightning_module._trainer
        return trainer is not None and trainer.interrupted and not trainer.received_sigterm

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        if not self._fails_alone:  # the others do not come
            super().barrier(*args, **kwargs)

    def on_train_end(self) -> None:
        super().on_train_end()
        self._end()

    def _end(self) -> None:
        self._give_back()
        self._session.end()
        self._during_fit.close()

    def on_exception(self, exception: BaseException) -> None:
        if self.me is not None:
            self._give_back()
            self._session.fail(exception)
            self._during_fit.close()
        super().on_exception(exception)

    def teardown(self) -> None:
        if self.me is not None:  # a search for a rate or a batch size has left the loop
            self._end()
        self._states = None
        super().teardown()


def _beside(filepath: Path | str) -> Path:
    return Path(f"{filepath}.learners")


def _states_of(filepath: Path | str, named: dict[str, int]) -> Path:
    return _beside(filepath) / f"{int(named['steps'])}-steps-{int(named['learners'])}-learners"
