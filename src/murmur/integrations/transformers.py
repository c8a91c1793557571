"""Any strategy in the Trainer of transformers.

    from murmur.integrations.transformers import attach
    ...
    trainer = Trainer(model, arguments, train_dataset=data)
    attach(trainer, KAVG(8))
    trainer.train()

The Trainer finds rank and size in the process group of the launch: its samplers, metrics, logs and checkpoints are
those of distributed training. The model is not wrapped in DDP.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer
from transformers.trainer_utils import EvalLoopOutput, TrainOutput

from murmur.core.errors import SettingError
from murmur.core.learner import Strategy
from murmur.integrations.accelerate import bind_scaler, check_accelerator, plain
from murmur.integrations.base import Session, saved_learners


def attach(trainer: Trainer, strategy: Strategy, out: Path | str | None = None, **plan: Any) -> None:
    """Let a strategy take the steps of a Trainer.

    Evaluation in the middle, checkpoints and `save_model` are those of the consensus, as is the model after `train`.
    A checkpoint also holds the state of each learner, with which `train(resume_from_checkpoint=...)` goes on.

    The arguments' `average_tokens_across_devices` is switched off: it would make all learners wait for each other in
    every step. The strategy weighs the steps by their tokens instead, so that the mean is the same.

    Args:
        trainer: Trainer, or an object of a class of your own that is derived from it.
        strategy: Strategy, such as `KAVG(8)`.
        out: Folder for the records, as in `murmur.join`.
        plan: Fields of `murmur.Plan` other than `total_steps`, which the Trainer knows.

    Raises:
        SettingError: The Trainer shards the model or searches for its batch size, or it has not found the learners of
            the launch.
    """
    check_accelerator(trainer.accelerator, "TrainingArguments(use_cpu=True)")
    if trainer.args.auto_find_batch_size:
        raise SettingError("auto_find_batch_size would begin again on one learner alone: give the batch size")
    if isinstance(trainer, AttachedTrainer):
        raise SettingError("the Trainer has a strategy already: attach one")
    kind = type(trainer)
    trainer.__class__ = type(kind.__name__, (AttachedTrainer, kind), {})
    trainer.session = Session(strategy, out, **plan)
    trainer.args.average_tokens_across_devices = False
    leave_unwrapped(trainer)


def leave_unwrapped(trainer: Trainer) -> None:
    """Let the Trainer's accelerator prepare models without DDP: for evaluation, it only places, casts and compiles."""
    trainer.accelerator.prepare_model = partial(trainer.accelerator.prepare_model, evaluation_mode=True)


class AttachedTrainer(Trainer):  # type: ignore[misc]
    """A Trainer whose optimizer a strategy steps.

    Attributes:
        session: Joined loop of the present call of `train`.
    """

    session: Session
    _tokens = 1.0  # of this learner's present step, if the loss is their mean
    _loss: Tensor | float = 0.0  # of the present step

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        leave_unwrapped(self)

    def train(self, *given: Any, **named: Any) -> TrainOutput:
        try:
            return super().train(*given, **named)
        except BaseException as error:
            self.session.fail(error)
            raise

    def _init_training_state(
        self, max_steps: int, steps_per_epoch: int, epochs: int, resumed: str | None, trial: Any
    ) -> tuple[int, int]:
        done: tuple[int, int] = super()._init_training_state(max_steps, steps_per_epoch, epochs, resumed, trial)
        before = None if resumed is None else saved_learners(Path(resumed))
        if before in (None, self.args.world_size) or self.args.max_steps > 0:
            return done
        # Another number of learners takes another number of steps through the same data.
        self.state.global_step = self.state.global_step * before // self.args.world_size
        within = self.state.global_step % steps_per_epoch * self.args.gradient_accumulation_steps
        return self.state.global_step // steps_per_epoch, 0 if self.args.ignore_data_skip else within

    def _prepare_for_training(self, max_steps: int, loader: Any, resumed: str | None) -> Any:
        prepared = super()._prepare_for_training(max_steps, loader, resumed)
        total, optimizer = max_steps * self.args.world_size, plain(self.optimizer)
        most_norm = self.args.max_grad_norm if self.args.max_grad_norm and self.args.max_grad_norm > 0 else None
        of_step: dict[str, Any] = {"samples": lambda: self._tokens, "loss": lambda: self._loss, "clip": most_norm}
        self.session.begin(self.model, optimizer, None, total, **of_step)
        bind_scaler(self.optimizer)
        if resumed is not None and self.session.load(Path(resumed)):
            self._set_rate()
        return prepared

    def _set_rate(self) -> None:
        """Set the rate of the present step, which another number of learners has changed."""
        schedule = self.lr_scheduler
        if isinstance(schedule, LambdaLR) and schedule.last_epoch != self.state.global_step:
            schedule.last_epoch = self.state.global_step - 1
            schedule.step()

    def get_batch_samples(self, *given: Any, **named: Any) -> Any:
        batches, tokens = super().get_batch_samples(*given, **named)
        self._loss = 0.0
        self._tokens = 1.0 if tokens is None else max(1.0, float(torch.as_tensor(tokens).sum()))
        return batches, tokens

    def _clip_grad_norm(self, model: Any) -> Tensor:
        """Return the norm of this learner's gradient; the strategy clips the gradient of its step, as DDP the mean."""
        norm: Tensor = self.accelerator.clip_grad_norm_(model.parameters(), float("inf"))
        return norm

    def training_step(self, *given: Any, **named: Any) -> Tensor:
        loss: Tensor = super().training_step(*given, **named)
        self._loss = self._loss + loss
        return loss

    def evaluation_loop(self, *given: Any, **named: Any) -> EvalLoopOutput:
        with self.session.consensus():
            found = super().evaluation_loop(*given, **named)
        if self.session.me is not None and self.is_world_process_zero():
            figures = {name.removeprefix("eval_"): x for name, x in found.metrics.items() if isinstance(x, float)}
            self.session.me.record(figures)
        return found

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        with self.session.consensus():
            super().save_model(output_dir, _internal_call)
        if _internal_call and self.session.me is not None and not self.args.save_only_model:
            # With all states the checkpoint is complete: the Trainer's own state comes last.
            self.session.save(Path(output_dir or self.args.output_dir))
            self.session.meet()

    def _finalize_training(self, *given: Any) -> TrainOutput:
        self.session.end()  # before the best model is loaded
        bind_scaler(self.optimizer)
        return super()._finalize_training(*given)
