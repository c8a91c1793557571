"""Any strategy in a user's training loop, with three changed lines.

    with murmur.join(KAVG(K=8), model, optimizer) as me:
        for x, y in loader:                              # each learner has its own part of the data
            loss(model(x), y).backward()
            me.step()                                    # replaces optimizer.step() and zero_grad()

A process started by torchrun, srun or mpirun is one of several learners; one started plainly is the only learner. At
the end of the block the model holds the mean of all learners' weights, and of their BatchNorm statistics. A program may
have several blocks, one after the other; all learners have equally many.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from murmur.core.buffers import Buffers, Rule
from murmur.core.facts import Facts
from murmur.core.flat import Layout, ordinary_tensors
from murmur.core.group import Group
from murmur.core.learner import Learner, Progress, Strategy
from murmur.core.membership import ENDED
from murmur.core.tensor_bytes import take_over_first
from murmur.core.torch_private import HashStore, Store
from murmur.core.weights import Weights
from murmur.core.world import Seat, drive
from murmur.user_loop.agreement import agree, check_joinable, terms
from murmur.user_loop.answers import Answers
from murmur.user_loop.ending import take_over
from murmur.user_loop.group import JoinedGroup, Loops, group_of_next_block
from murmur.user_loop.keeper import Keeper
from murmur.user_loop.loop import Loop, LoopSeat, Offer, advance, telling_who_is_lost
from murmur.user_loop.rounds import RoundSource
from murmur.user_loop.source import Plan, positive
from murmur.worlds.process.launch.environment import Place, place_of
from murmur.worlds.process.store.blocks import store_of_next_block
from murmur.worlds.process.world import START_SECONDS, ProcessWorld

__all__ = ["Joined", "Plan", "join"]
log = logging.getLogger(__name__)
NOBODY_ELSE = Place(0, 1, 0, "127.0.0.1", 0)


def join(
    strategy: Strategy,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    plan: Plan | None = None,
    seat: Seat | Place | None = None,
    buffers: Mapping[str, Rule] | None = None,
) -> Joined:
    """Make a training loop one of several learners.

    Args:
        strategy: Strategy, such as `KAVG(K=8)`.
        model: Model on the device of its training, with frozen parameters already frozen.
        optimizer: Optimizer of all trainable parameters of the model, which the strategy averages. Call `me.step()` in
            place of its `step()`. A second optimizer for some of them is refused: the strategy would replace the
            weights that it has changed. Make parameter groups of one optimizer, and freeze what is not trained.
        plan: Facts that a few strategies need; they ask for them.
        seat: Seat in an existing world, or place in a launch (`murmur.take_place`); None: the place that the launcher
            gave this process.
        buffers: Rules of the model's buffers ("mean", "first", "own"), by name or pattern (`*.mask`), in place of those
            that `murmur.core.buffers` lists.

    Raises:
        TypeError: The strategy is a class, or none at all.
        ValueError: The optimizer holds parameters that the model does not, or not all trainable ones of the model, or
            needs a closure. Or parameters share memory, or a rule fits no buffer.
    """
    return Joined(strategy, model, optimizer, plan or Plan(), seat, buffers or {})


class Joined:
    """One learner of a user loop; it can replace an optimizer (for GradScaler).

    Attributes:
        rank: Number of this learner, for splitting the data.
        size: Number of learners.
    """

    # With it, GradScaler calls step() also when gradients overflow, and sets found_inf: a skipped step takes part.
    _step_supports_amp_scaling = True
    grad_scale: Tensor | None  # set by GradScaler during its step
    found_inf: Tensor

    def __init__(
        self,
        strategy: Strategy,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        plan: Plan,
        seat: Seat | Place | None,
        buffers: Mapping[str, Rule],
    ) -> None:
        check_joinable(strategy, model, optimizer)
        self.strategy, self.model, self.optimizer, self.plan = strategy, model, optimizer, plan
        self._place = seat if isinstance(seat, Place) else place_of() or NOBODY_ELSE
        self._given = seat if isinstance(seat, Seat) else None
        at = self._place if self._given is None else self._given.group
        self.rank, self.size = at.rank, at.size
        self._layout = Layout.trainable(model)
        self._buffers = Buffers(model, buffers)
        self._ended = self._entered = self._left = False
        self._failure: BaseException | None = None
        self._running: Coroutine[Any, Any, None] | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Joined:
        if self._entered:
            raise RuntimeError("this loop has had its block: call murmur.join again for another one")
        with ExitStack() as stack, ordinary_tensors():
            with telling_who_is_lost(self.rank):
                if self._given is None:
                    seat = self._own_seat(stack)
                    self._sit(seat, seat.group)
                else:
                    self._sit(self._given, group_of_next_block(self._given))
                begun = drive(self._begin())
            self._buffers.begin(begun)
            guard = self.optimizer.register_step_pre_hook(self._refuse)
            stack.callback(guard.remove)
            self._stack = stack.pop_all()
        self._entered = True
        return self

    def _check_entered(self, what: str) -> None:
        """Check that the loop is in its block, or was.

        Raises:
            RuntimeError: It is before its block; tells the remedy.
        """
        if not self._entered:
            raise RuntimeError(f"{what} came before the block: write `with murmur.join(...) as me:` around the loop")

    def _check_inside(self, what: str) -> None:
        """Check that the loop is in its block.

        Raises:
            RuntimeError: It is not; tells the remedy.
        """
        self._check_entered(what)
        if self._left:
            raise RuntimeError(
                f"{what} came after the block of murmur.join, whose model is final: move it into the block, or train on"
                " with the optimizer alone"
            )

    def _check_training(self, what: str) -> None:
        """Check that the loop is in its block, with the model of this learner.

        Raises:
            RuntimeError: It is not; tells the remedy.
        """
        self._check_inside(what)
        if self._answers.lends:
            raise RuntimeError(
                f"{what} came inside consensus(), where the model is the mean of all learners: evaluate there, and move"
                " it behind that block"
            )

    def _own_seat(self, stack: ExitStack) -> Seat:
        """Enter the next block of this process's launch; leave it at the end of the stack."""
        device, seconds, start_seconds = str(self._layout.device), self.plan.timeout_seconds, START_SECONDS
        store: Store = HashStore()
        if self._place.size > 1:
            store, number = stack.enter_context(store_of_next_block(self._place, START_SECONDS))
            if number > 0:  # the others may be busy between two blocks, as in one
                start_seconds = seconds
        lease = self.plan.lease_seconds
        world = ProcessWorld(
            self._place, device, seconds, store=store, lease_seconds=lease, start_seconds=start_seconds
        )
        return stack.enter_context(world.seated())

    def _sit(self, seat: Seat, group: Group) -> None:
        self._world = group
        self._all = JoinedGroup(group, Loops(group), range(group.size))
        weights = Weights(self._layout)
        self._loop = Loop(weights, self._all)
        given = (self._layout, self.model, self.optimizer, self.plan, self._loop, self._all, self._buffers)
        source = RoundSource(*given)
        self._source = source
        self._seat = LoopSeat(seat, self._all, self._loop)
        self._me = Learner(self._seat, weights, source, Facts.of(self.strategy).lock_step)
        source.follow(self._me, self.strategy)
        self._keeper = Keeper(self._me, self._loop, source, self._all)
        self._steps_before = 0
        self._answers = Answers(group, self._loop, self._buffers)

    async def _begin(self) -> dict[str, float] | None:
        """Check that all learners agree, and begin with learner 0's model; return the digests of its tensors."""
        group, digests = self._world, None
        if group.size == 1:
            return None
        if not self._seat.late:
            agreed = terms(self.strategy, self.model, self.optimizer, self.plan, self._buffers.rules)
            await agree(group, self._source.layout.device, agreed)
            named = [*self.model.named_parameters(), *self.model.named_buffers()]
            digests = dict(zip((name for name, _ in named), await take_over_first(group, named), strict=True))
        self._answering = self._seat.spawn(self._answers.serve(), "answers about the model")
        return digests

    def _refuse(self, *_: object) -> None:
        if not self._source.stepping:
            raise RuntimeError("the optimizer was stepped without the strategy: call me.step() or scaler.step(me)")

    @contextmanager
    def last_backward(self, samples: float = 1.0) -> Iterator[None]:
        """Overlap averaging with the last backward pass of a step, if the strategy averages gradients.

            for part in parts[:-1]:
                loss(part).backward()
            with me.last_backward(samples=64):
                loss(parts[-1]).backward()
            me.step()

        The result is that of a step without it, sooner. Gradients must not be changed between it and `step()`.

        Args:
            samples: Samples of the step, as for `step()`, which then does not need them.

        Raises:
            PeerLost: A learner is gone.
            RuntimeError: This step has had one already.
        """
        self._check_training("last_backward()")
        self._check_going("last_backward()")
        if self._running is None:
            with self._loop.weights.held():  # the model has been through a forward pass: its weights must not change
                self._advance()
        start = None if self._ended else self._loop.before_backward
        with self._source.behind.last(positive(samples), start):
            yield

    def step(self, samples: float | None = None, loss: float | Tensor | None = None) -> None:
        """Pass the gradients in the model's .grad fields to the strategy; the model then has its next weights.

        With a loss scaler: `scaler.unscale_(me)` before clipping, then `scaler.step(me)`; never with the optimizer, or
        gradients are unscaled twice.

        Gradients that are not finite, or have a loss that is not, are left out and have no weight in any mean.

        Args:
            samples: Samples of which they are the mean (default 1); learners with more samples count for more.
            loss: Mean loss of those samples, for strategies that adapt to it.

        Raises:
            FloatingPointError: `plan.most_skipped` steps in a row had such gradients; training has diverged.
            PeerLost: A learner or the store is gone, or the others have gone on without this learner.
            RuntimeError: The loop is not in its block, or is in `consensus()`, a parameter has been added or become
                trainable since the start, a gradient is sparse, an activity beside the loop has failed, or gradients
                were changed after `last_backward`.
            TypeError: `samples` is a closure.
            ValueError: `samples` is not positive, or not what `last_backward` was given.
        """
        self._check_training("step()")
        self._check_going("step()")
        behind = self._source.behind
        samples = behind.told(None if samples is None else positive(samples))
        self._source.check_gradients()
        scale, overflows = getattr(self, "grad_scale", None), getattr(self, "found_inf", 0.0)
        behind.check(scaled=hasattr(self, "found_inf"))
        self._loop.offer = Offer(
            samples,
            None if loss is None else float(loss.detach() if isinstance(loss, Tensor) else loss),
            scale=1.0 if scale is None else float(scale),
            skipped=float(overflows) > 0,
        )
        self._advance()
        if self._ended and self._loop.take() is not None:
            behind.take()
        self._source.clear()
        self._buffers.keep()
        self._source.surface()

    def _check_going(self, what: str) -> None:
        """Check that no error has ended the strategy.

        Raises:
            RuntimeError: One has; tells it and the remedy.
        """
        if self._failure is not None:
            told = f"{type(self._failure).__name__} ({self._failure})" if str(self._failure) else repr(self._failure)
            raise RuntimeError(
                f"{what} cannot go on, as {type(self.strategy).__name__} was ended in an earlier call by {told}:"
                " leave the block, and join again on all learners"
            ) from self._failure

    def _advance(self) -> None:
        if self._ended:
            return
        if self._running is None:
            self._running = self.strategy(self._me)
        try:
            with ordinary_tensors(), telling_who_is_lost(self.rank):
                self._ended = advance(self._running)
        except BaseException as error:
            self._failure = error
            raise
        if self._ended and not self._loop.over:
            log.warning(
                "learner %d: %s has ended before this loop; further steps of the loop are not used",
                self.rank,
                type(self.strategy).__name__,
            )

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameter groups of the optimizer."""
        return self.optimizer.param_groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Call the optimizer's `zero_grad`; `step` has already done so."""
        self.optimizer.zero_grad(set_to_none)

    @property
    def progress(self) -> Progress:
        """Progress of the run, in steps of all learners together."""
        self._check_entered("progress")
        return self._me.progress

    @contextmanager
    def consensus(self) -> Iterator[nn.Module]:
        """Set the model to the mean of all learners' weights and buffers inside the block, for evaluation.

        Any learner may call it at any time, alone or not; the others do not wait.
        """
        self._check_inside("consensus()")
        with ExitStack() as stack:
            with ordinary_tensors(), telling_who_is_lost(self.rank):  # averaging beside it changes tensors made here
                stack.enter_context(self._answers.in_place(self._source, self._live, self.plan.timeout_seconds))
            try:
                yield self.model
            finally:
                with ordinary_tensors():
                    stack.close()

    def _live(self) -> Sequence[int]:
        return range(self.size) if self._me.lock_step else self._me.view

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this learner that a resumed run needs; each learner saves its own.

        It holds optimizer, weights, buffers, vectors of the strategy, steps, and the place in the strategy's round.
        Parameters that are frozen are in the model's own state.

        Raises:
            RuntimeError: The loop is before its block.
        """
        self._check_entered("state_dict()")
        with ordinary_tensors():
            kept = self._keeper.state(self._answers.own_buffers())
        return {"optimizer": deepcopy(self.optimizer.state_dict()), "steps": self._steps, **kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from the `state_dict` of the learner of this rank, on all learners and before the first step.

        In lock-step the bits are those of an uninterrupted run. With another number of learners the run goes on with
        the state of any of the former ones, from its share of the steps.

        Raises:
            RuntimeError: Steps have been taken already, or the loop is not in its block.
            ValueError: An earlier version of murmur has saved the state.
        """
        self._check_training("load_state_dict")
        if "weights" not in state:
            raise ValueError(f"the state has no weights, but {', '.join(sorted(state))}: an earlier version saved it")
        if self._running is not None:
            raise RuntimeError("load_state_dict comes too late: call it before the first step")
        self.optimizer.load_state_dict(deepcopy(dict(state["optimizer"])))
        if self._keeper.load(state, self._advance):
            self.optimizer.load_state_dict(deepcopy(dict(state["optimizer"])))  # its moments belong to the saved moment
        self._steps_before = int(state["steps"]) - self._source.learner.steps

    @property
    def _steps(self) -> int:
        return self._steps_before + self._source.learner.steps

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left = True
        if error is None:
            with self._stack, ordinary_tensors():
                self._finish()
            self._source.surface()
        else:
            try:
                self._abort()
            finally:
                self._stack.__exit__(kind, error, trace)

    def _abort(self) -> None:
        """Give up all averaging; the others learn that this learner is gone."""
        if self._running is not None:
            self._running.close()
        self._all.loops.give_up()
        if self.size > 1:
            self._answers.stop()
            self._answers.give_up()
        if not self._me.lock_step:
            self._me.group.membership.leave()

    def _finish(self) -> None:
        """Take part until the loops of all learners are over, then take over the consensus."""
        self._loop.over = True
        self._source.clear()  # gradients without a step are dropped
        try:
            self._check_going("the end of the block")
            self._all.loops.announce([self.rank])
            self._advance()
            with telling_who_is_lost(self.rank):
                drive(self._settle())
        except BaseException:
            self._abort()
            raise

    async def _settle(self) -> None:
        me = self._me
        await take_over(me, self._world, self._source)
        if me.follows:
            self._seat.inner.waits = False
        elif not me.lock_step:
            await me.averager.meet(ENDED, me.seat)
        if self.size > 1:
            self._answers.stop()
            await self._answering
