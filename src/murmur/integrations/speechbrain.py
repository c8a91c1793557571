"""Strategies in SpeechBrain: a mixin for `speechbrain.Brain`.

    class ASR(MurmurBrain, sb.Brain):
        strategy = KAVG(8)

SpeechBrain finds rank and size and divides the training data, as it does for DDP. The strategy takes the place of DDP:
modules are not wrapped, and `optimizers_step` hands the gradients to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import wraps
from operator import length_hint
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from speechbrain.utils.distributed import ddp_barrier, ddp_prevent_block, if_main_process, main_process_only
from torch import Tensor, nn

from murmur.core.learner import Strategy
from murmur.integrations.base import Session, saved_learners, start_group
from murmur.user_loop.optimizer_list import OptimizerList

__all__ = ["MurmurBrain", "start_group"]
Brain: Any = object  # `speechbrain.Brain` follows among the bases
STATES = "murmur"  # states of the learners in a checkpoint


class MurmurBrain(Brain):  # type: ignore[misc]
    """Mixin that trains a Brain by a strategy; it comes before `sb.Brain` among the bases.

    Validation and test see the consensus, and checkpoints hold it, with the state of each learner beside it.

    Attributes:
        strategy: Strategy, such as `KAVG(8)`; without it, `strategy` of the hyperparameters.
        out: Folder for records, as in `murmur.join`.
        plan: Fields of `murmur.Plan` other than `total_steps`.
    """

    strategy: Strategy | None = None
    out: Path | str | None = None
    plan: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._place = start_group()
        super().__init__(*arguments, **named)
        strategy = type(self).strategy or getattr(getattr(self, "hparams", None), "strategy", None)
        if strategy is None:
            raise TypeError(
                f"{type(self).__name__} has no strategy: write `strategy = KAVG(8)` in the class, or"
                " `strategy: !new:murmur.strategies.KAVG {K: 8}` in the hyperparameters"
            )
        self.session = Session(strategy, self.out, **self.plan)
        self._saved: Path | None = None
        self._loss: float | None = None
        self._epochs = 0
        if self.checkpointer is not None:
            hooks = (type(self)._remember_states, type(self)._save_states)
            self.checkpointer.add_recoverable(STATES, self, *hooks, optional_load=True)

    def _wrap_distributed(self) -> None:
        if not self.distributed_launch:
            super()._wrap_distributed()  # not in a launch: there the strategy averages

    def fit(self, epoch_counter: Any, *arguments: Any, **named: Any) -> None:
        """Train as `Brain.fit` does; the modules are then the consensus of all learners."""
        self._saved = None
        self._epochs = getattr(epoch_counter, "limit", None) or length_hint(epoch_counter, 0)
        with ExitStack() as self._stack:
            try:
                super().fit(epoch_counter, *arguments, **named)
            except BaseException as error:
                self.session.fail(error)
                raise
            self.session.end()

    def _fit_train(self, train_set: Any, epoch: int, enable: bool) -> None:
        if self.session.me is None:
            self._join(train_set)
        self._loss = None
        super()._fit_train(train_set, epoch, enable)

    def _join(self, train_set: Any) -> None:
        """Join, after SpeechBrain has made the optimizers and has loaded its checkpoint."""
        self._joint = OptimizerList(list(self._parts.values()))
        for part in self._joint.optimizers:
            self._stack.callback(part.register_step_pre_hook(self._before_step).remove)
        if self.checkpointer is not None:
            self._stack.enter_context(self._saving(self.checkpointer))
        size = self._place.size if self._place else 1
        me = self.session.begin(self.modules, self._joint, self._place, self._steps(train_set) * size or None)
        if self._saved is not None and self.session.load(self._saved):
            self._move(train_set, saved_learners(self._saved) or me.size, me.size)

    @property
    def _parts(self) -> dict[str, torch.optim.Optimizer]:
        """All optimizers by name, as `Brain.optimizers_step` finds them."""
        if self.optimizers_dict is None and not hasattr(self, "optimizer"):
            raise TypeError(f"{type(self).__name__} has no optimizer: give opt_class, or set self.optimizers_dict")
        return dict(self.optimizers_dict or {"optimizer": self.optimizer})

    def _steps(self, train_set: Any) -> int:
        """Steps of one learner in the whole run; 0: not known."""
        steps = self._epochs * (length_hint(train_set, 0) // int(self.grad_accumulation_factor))
        return min(steps, int(self.optimizer_step_limit or steps))

    def _move(self, train_set: Any, former: int, size: int) -> None:
        """Convert the position in the epoch, in minibatches of each learner, to the present number of learners."""
        self.step: int = self.step * former // size
        skipped = getattr(train_set, "_speechbrain_recovery_skip_to", None)
        if skipped is not None:
            train_set._speechbrain_recovery_skip_to = skipped * former // size

    def _before_step(self, part: torch.optim.Optimizer, *_: Any) -> None:
        """Clip the gradient of a step as `Brain.optimizers_step` does: in SyncSGD that is the mean, as with DDP."""
        if self.session.me is not None and not self.session.me.stepping:
            raise RuntimeError("the optimizer was stepped without the strategy: call self.optimizers_step()")
        if self.max_grad_norm > 0:
            nn.utils.clip_grad_norm_(part.param_groups[0]["params"], self.max_grad_norm)

    def check_loss_isfinite(self, loss: Tensor) -> None:
        super().check_loss_isfinite(loss)
        self._loss = (self._loss or 0.0) + float(loss.detach()) / self.scaler.get_scale()

    def optimizers_step(self) -> None:
        """Pass the gradients of the optimizers that are not frozen to the strategy."""
        if self.session.me is None:
            super().optimizers_step()
            return
        with self._without_frozen():
            if self.skip_nonfinite_grads and not self.scaler.is_enabled():
                self.check_gradients()
            self.scaler.step(self._joint, lambda: self._loss)
            self.scaler.update()
        self._loss = None
        self.optimizer_step += 1

    @contextmanager
    def _without_frozen(self) -> Iterator[None]:
        """Take away the gradients that frozen optimizers keep for a later step."""
        parts = self._parts
        active = {id(part) for part in self.freeze_optimizers(parts).values()}
        frozen = [group for part in parts.values() if id(part) not in active for group in part.param_groups]
        kept = [(p, p.grad) for group in frozen for p in group["params"] if p.grad is not None]
        for p, _ in kept:
            p.grad = None
        yield
        for p, grad in kept:
            p.grad = grad

    def _fit_valid(self, valid_set: Any, epoch: int, enable: bool) -> None:
        with self.session.consensus():
            super()._fit_valid(valid_set, epoch, enable)

    def evaluate(self, *arguments: Any, **named: Any) -> Any:
        """Evaluate as `Brain.evaluate` does, during training on the consensus."""
        with self.session.consensus():
            return super().evaluate(*arguments, **named)

    def _should_save_intra_epoch_ckpt(self, last_ckpt_time: float, steps_since_ckpt: int) -> bool:
        if self.checkpointer is not None and self.ckpt_interval_steps > 0:
            return steps_since_ckpt >= int(self.ckpt_interval_steps)  # all know it, without a message in each step
        return bool(super()._should_save_intra_epoch_ckpt(last_ckpt_time, steps_since_ckpt))

    @contextmanager
    def _saving(self, checkpointer: Any) -> Iterator[None]:
        """Let a checkpointer save the consensus, in one process, and each learner its own state beside it."""
        plain = checkpointer.save_checkpoint
        alone = main_process_only(plain)  # some of SpeechBrain's own hooks would write in all processes

        @wraps(plain)
        def save(*arguments: Any, **named: Any) -> Any:
            me = self.session.me
            if ddp_prevent_block():  # inside run_on_main, or there is one learner
                with nullcontext() if me is None or self.session.lent else me.consensus():
                    return plain(*arguments, **named)
            with self.session.consensus():
                checkpoint = alone(*arguments, **named)
                if not if_main_process():
                    self._save_states(checkpoint.paramfiles[STATES])
                ddp_barrier()
            return checkpoint

        checkpointer.save_checkpoint = save
        try:
            yield
        finally:
            del checkpointer.save_checkpoint

    def _save_states(self, path: Path) -> None:
        if self.session.me is not None:
            self.session.save(Path(path))

    def _remember_states(self, path: Path, _: bool) -> None:
        self._saved = Path(path)
