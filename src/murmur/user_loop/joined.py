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
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from murmur.core.buffers import Buffers, Rule, take_over_first
from murmur.core.facts import Facts
from murmur.core.flat import ordinary_tensors
from murmur.core.group import Group
from murmur.core.learner import Learner, Progress, Strategy
from murmur.core.membership import ENDED, View
from murmur.core.shards import own_part
from murmur.core.torch_private import HashStore, Store
from murmur.core.weights import Weights
from murmur.core.world import SCRIPT, ScriptBlock, Seat, drive
from murmur.elastic.regrouping import end_run, regroups
from murmur.engine.counters import Counters
from murmur.engine.recorder import Recorder
from murmur.user_loop.agreement import Joinable, agree, check_joinable, check_late, note_terms, terms
from murmur.user_loop.consensus import Answers, take_over
from murmur.user_loop.data import LearnerData
from murmur.user_loop.first_batches import TOLD, FirstBatches
from murmur.user_loop.handover import begun, outlives, present
from murmur.user_loop.last_words import tell_losses_in_one_line
from murmur.user_loop.loop import (
    JoinedGroup,
    Loop,
    Loops,
    LoopSeat,
    Offer,
    advance,
    group_of_next_block,
    telling_who_is_lost,
)
from murmur.user_loop.optimizer_list import each_of
from murmur.user_loop.origin import check_origin
from murmur.user_loop.recorded import Recorded
from murmur.user_loop.rounds import RoundSource
from murmur.user_loop.saved import check_state, resume, state_of
from murmur.user_loop.sharded import Shards
from murmur.user_loop.source import Plan, positive
from murmur.user_loop.wrapped import SHARDED, inner_model, plain_optimizer
from murmur.worlds.process.environment import Place, place_of
from murmur.worlds.process.torch_store import store_of_next_block
from murmur.worlds.process.world import ProcessWorld

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Joined", "Plan", "join"]
log = logging.getLogger(__name__)
SINGLE_LEARNER = Place(0, 1, 0, "127.0.0.1", 0)


def join(
    strategy: Strategy,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    plan: Plan | None = None,
    seat: Seat | Place | None = None,
    buffers: Mapping[str, Rule] | None = None,
    out: Path | str | None = None,
    data: str = TOLD,
    mesh: DeviceMesh | None = None,
) -> Joined:
    """Make a training loop one of several learners.

    Args:
        strategy: Strategy, such as `KAVG(K=8)`.
        model: Model on the device of its training, with frozen parameters already frozen; a compiled one too.
        optimizer: Optimizer of all trainable parameters of the model, which the strategy averages; or a list of several
            ones that take their steps together. Call `me.step()` in place of its `step()`.
        plan: Facts that a few strategies need; they ask for them.
        seat: Seat in an existing world, or place in a launch (`murmur.take_place`); None: the place that the launcher
            gave this process.
        buffers: Rules of the model's buffers ("mean", "first", "own"), by name or pattern (`*.mask`), in place of those
            that `murmur.core.buffers` lists.
        out: Folder for `run.json`, `records.jsonl` and `trace.json`, which `murmur watch` and `murmur report` read, the
            same for all learners; None: that of `murmur launch --out`, if given.
        data: Rule for learners that read the same data in their first steps: "told", "disjoint" (an error in
            `me.step()`), "same" (intended, and not looked at).
        mesh: Mesh of the learners with this process's shard, if each learner is a group of processes with a model
            sharded by `fully_shard(model, mesh=mesh["shard"])`: `mesh["learner"]`. All of them call `join` together.

    Raises:
        TypeError: The strategy is a class, or none at all; so for model and optimizer.
        ValueError: The optimizer holds parameters that the model does not, or not all trainable ones of the model, or
            needs a closure. One is in a wrapper that averages itself. Parameters share memory. No buffer fits a rule.
            The strategy cannot run sharded learners, or the meshes do not fit.
    """
    return Joined(strategy, model, plain_optimizer(optimizer), plan or Plan(), seat, buffers or {}, out, data, mesh)


class Joined(LearnerData, Recorded):
    """One learner of a user loop; it can replace an optimizer (for GradScaler)."""

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
        out: Path | str | None = None,
        data: str = TOLD,
        mesh: DeviceMesh | None = None,
    ) -> None:
        bare = inner_model(model, () if mesh is None else SHARDED)
        self._shards = shards = Shards.of(bare, mesh)
        check_joinable(strategy, bare, optimizer)
        shards.check(strategy, bare, plan)
        self.strategy, self.model, self.optimizer, self.plan = strategy, model, optimizer, plan
        self._layout, self._buffers = shards.layout(bare), Buffers(bare, buffers)
        self._parameters = Joinable(bare, optimizer)
        seat = shards.place(seat)
        place = seat if isinstance(seat, Place) else place_of()
        self._place = place or SINGLE_LEARNER
        script = None if isinstance(seat, Seat) else SCRIPT.get()
        ours = None if place is None else (place.rank, place.size)
        self._block = ScriptBlock() if script is None else script.block(ours, bare)
        self._given = seat if isinstance(seat, Seat) else self._block.seat
        at = self._place if self._given is None else self._given.group
        super().__init__(strategy, at.rank, at.size, shards.index, shards.count)
        self._first = FirstBatches(data)
        recorded = self._block.out or out or (self._place.out if self._given is None else "")
        self._out = "" if shards.index > 0 else recorded
        self._loaded: int | None = None  # minibatches of a state that was resumed
        self._ended = False
        self._view: View | None = None  # once all learners had come
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
                digests = drive(self._begin())
                drive(self._record(stack))
            if self._block.seat is not None and not self._seat.late:
                self._recorder.clock.begin()  # the model of a network has no start of a program
            self._buffers.begin(digests)
            for optimizer in each_of(self.optimizer):
                stack.callback(optimizer.register_step_pre_hook(self._refuse).remove)
            stack.callback(self._source.stop.close)
            if self.size > 1 and not self._seat.late and self.trains:
                stack.callback(self._first.watch(self.model))
            if self._seat.late and regroups(self.strategy):
                self._advance()  # a counted loop begins where the others are
            self._stack = stack.pop_all()
        self._entered = True
        self._seat.resume()
        return self

    def _own_seat(self, stack: ExitStack) -> Seat:
        """Enter the next block of this process's launch; leave it at the end of the stack."""
        device, seconds, start_seconds = str(self._layout.device), self.plan.timeout_seconds, self.plan.start_seconds
        store: Store = HashStore()
        if self._place.size > 1:
            tell_losses_in_one_line()
        if self._place.size > 1 or self._place.out:
            shared, number = stack.enter_context(store_of_next_block(self._place, start_seconds))
            store = shared if self._place.size > 1 else store
            if number > 0:  # the others may be busy between two blocks, as in one
                start_seconds = seconds
                if self._out == self._place.out and self._out:
                    self._out = Path(self._out) / f"block-{number + 1}"
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
        self._recorder = Recorder(seat, Counters(self.plan.most_skipped), self._block.observers)
        given = (self._layout, self.optimizer, self.plan, self._loop, self._all, self._buffers, self._recorder)
        self._source = source = RoundSource(*given)
        self._seat = LoopSeat(seat, self._all, self._loop)
        self._me = Learner(self._seat, weights, source, Facts.of(self.strategy).lock_step)
        source.follow(self._me, self.strategy)
        self._shards.enter(source, self._all)
        self._answers = Answers(group, self._loop, self._buffers, outlives(self.strategy, self._all))

    async def _begin(self) -> dict[str, float] | None:
        group, digests, model = self._world, None, self._buffers.model
        self._shards.begin(model, self._buffers)
        if group.size == 1:
            return None
        mine = terms(self.strategy, model, self.optimizer, self.plan, self._buffers.rules, bool(self._out))
        if self._seat.late:
            check_late(group, self.strategy, mine)
            self._source.counters.steps = self._all.count("claims") // self.size  # in lock-step the others tell them
        else:
            await agree(group, self._source.layout.device, mine)
            note_terms(group, mine)
            named = [*model.named_parameters(), *model.named_buffers()]
            found = await take_over_first(group, [(name, own_part(x)) for name, x in named])
            digests = dict(zip((name for name, _ in named), found, strict=True))
        self._view = group.membership.view()  # all have come; one may be lost and started again before the first step
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
        self._shards.check_last_backward()
        if self._running is None:
            with self._loop.weights.held():  # the model has been through a forward pass: its weights must not change
                self._advance()
        start = None if self._ended else self._loop.before_backward
        with self._source.behind.last(positive(samples), start):
            yield

    def step(
        self, samples: float | None = None, loss: float | Tensor | None = None, clip: float | None = None
    ) -> Tensor | None:
        """Pass the gradients in the model's .grad fields to the strategy; the model then has its next weights.

        Gradients that are not finite, or have a loss that is not, are left out and have no weight in any mean. With a
        loss scaler: `scaler.step(me, clip=...)`; never with the optimizer, or gradients are unscaled twice.

        Args:
            samples: Samples of which they are the mean (default 1); learners with more samples count for more.
            loss: Mean loss of those samples, for strategies that adapt to it.
            clip: Largest norm of the gradient of the step, to which a larger one is scaled down, the same on all
                learners. With strategies that average gradients (`SyncSGD`) it is the norm of the mean gradient.

        Returns:
            The norm before that of the latest gradient with which this call has stepped; None without `clip`.

        Raises:
            FloatingPointError: `plan.most_skipped` steps in a row had such gradients; training has diverged.
            PeerLost: A learner or the store is gone, or the others have gone on without this learner.
            RuntimeError: The loop is not in its block, or is in `consensus()`, other parameters are trainable than at
                the start, a gradient is sparse or has changed since `last_backward`, or an activity beside has failed.
            SettingError: Another learner has read the same data, with `data="disjoint"`, or clips otherwise.
            TypeError: `samples` is a closure.
            ValueError: `samples` or `clip` is not positive, or `samples` not what `last_backward` was given.
        """
        self._check_training("step()")
        self._check_going("step()")
        self._source.clip(clip)
        self._loop.offer = self._shards.offered(self._offered(samples, loss), self._layout, self._ended)
        self._first.step(self._world, self._shards.digests)
        self._advance()
        self.mark()
        if self._ended and self._loop.take() is not None:
            self._source.behind.take()
        self._source.release()
        self._layout.clear_gradients()
        self._buffers.keep()
        self._source.surface()
        return self._source.local_optimizer.norm

    def _offered(self, samples: float | None, loss: float | Tensor | None) -> Offer:
        behind = self._source.behind
        samples = behind.told(None if samples is None else positive(samples))
        self._parameters.check()
        scale, overflows = getattr(self, "grad_scale", None), getattr(self, "found_inf", 0.0)
        behind.check(scaled=hasattr(self, "found_inf"))
        return Offer(
            samples,
            None if loss is None else float(loss.detach() if isinstance(loss, Tensor) else loss),
            scale=1.0 if scale is None else float(scale),
            skipped=float(overflows) > 0,
        )

    def _advance(self) -> None:
        if self._ended:
            return
        try:
            with ordinary_tensors(), telling_who_is_lost(self.rank):
                if self._running is None and self._folder is not None:
                    self._seat.pause()
                    drive(self._folder.check(self._world, self._me.lock_step, self._loaded))
                self._running = self._running or begun(self.strategy, self._me, self._source, self._answers, self._view)
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
        return self.optimizer.param_groups

    def zero_grad(self, set_to_none: bool = True) -> None:  # of the optimizer; `step` has already done so
        self.optimizer.zero_grad(set_to_none)

    @property
    def stepping(self) -> bool:
        """True while the strategy steps the optimizer."""
        return self._source.stepping

    @property
    def steps(self) -> int:
        """Steps so far, those before a resume too; after a late start those of the others."""
        self._check_entered("steps")
        return self._source.steps

    @property
    def should_stop(self) -> bool:
        """True once a signal (SIGTERM, SIGINT, SIGUSR1) has asked this learner, or another one, to stop.

        In lock-step all see it after the same step. From the first use on the signals do not end the process.
        """
        self._check_entered("should_stop")
        with telling_who_is_lost(self.rank):
            return self._source.stop.asked(Facts.of(self.strategy).lock_step)

    @property
    def progress(self) -> Progress:
        self._check_entered("progress")
        return self._me.progress

    @contextmanager
    def consensus(self) -> Iterator[nn.Module]:
        """Set the model to the mean of all learners' weights and buffers inside the block, for evaluation.

        Any learner may call it at any time, alone or not; the others do not wait.
        """
        self._check_inside("consensus()")
        live = partial(present, self._me, self._all)
        with ExitStack() as stack, nullcontext() if self._answers.lends else self._evaluating():
            with ordinary_tensors(), telling_who_is_lost(self.rank):  # averaging beside it changes tensors made here
                stack.enter_context(self._answers.in_place(self._source, live, self.plan.timeout_seconds))
            try:
                stack.enter_context(self._shards.one_model(self._buffers.model, self._buffers))
                yield self.model
            finally:
                with ordinary_tensors():
                    stack.close()

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        self._seat.pause()
        began = self._recorder.clock.moment()
        try:
            yield
        finally:
            self._recorder.clock.leave_out(began)
            self._seat.resume()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this learner that a resumed run needs; each learner saves its own.

        It holds optimizer, weights, buffers, vectors of the strategy, steps, and the place in the strategy's round.
        Parameters that are frozen are in the model's own state.

        Raises:
            RuntimeError: The loop is before its block.
        """
        self._check_entered("state_dict()")
        self._source.recorder.flush()
        with ordinary_tensors():
            state = {**state_of(self._source, self._answers), "samplers": (self.positions(),)}
            return state | ({"shard": ((self.shard, self.shards),)} if self.shards > 1 else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from the `state_dict` of the learner of this rank, on all learners and before the first step.

        In lock-step the bits are those of an uninterrupted run. A loop that comes late to others in lock-step has their
        state already, and keeps it. With another number of learners the run goes on with
        the state of any of the former ones, from its share of the steps.

        Raises:
            RuntimeError: Steps have been taken already, or the loop is not in its block.
            ValueError: The state is none of `state_dict`, or one of another kind of strategy, optimizer or model.
        """
        self._check_training("load_state_dict")
        check_state(state, (self.shard, self.shards))
        if self._seat.late and regroups(self.strategy):
            log.info("learner %d has the others' state, which is newer than the saved one", self.rank)
            return
        if self._running is not None:
            raise RuntimeError("load_state_dict comes too late: call it before the first step")
        check_origin(self._source, state)
        self._loaded = int(state["minibatches"])  # known before the strategy repeats a part of a round
        self.go_on_from(*state.get("samplers", ([],)))
        resume(self._source, state, self._advance)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left = True
        if error is None:
            with telling_who_is_lost(self.rank), self._stack, ordinary_tensors():
                self._finish()
            self._source.surface()
        else:
            try:
                self._abort(error)
            finally:
                self._stack.__exit__(kind, error, trace)

    def _abort(self, error: BaseException) -> None:
        if self._running is not None:
            self._running.close()
        self._all.loops.give_up()
        if self.size > 1:
            self._answers.stop()
            self._answers.give_up()
        if not self._me.lock_step:
            with suppress(ConnectionError):  # the store is gone, and with it the way to the others
                self._all.membership.leave()
        if self._folder is not None and self.rank == 0:
            self._folder.fail(error)

    def _finish(self) -> None:
        """Take part until the loops of all learners are over, then take over the consensus."""
        self._loop.over = True
        self._layout.clear_gradients()  # gradients without a step are dropped
        try:
            self._check_going("the end of the block")
            self._all.loops.announce([self.rank])
            self._advance()
            self._recorder.end_trace(self._world)
            leads = self._me.leads and not self._me.role.follows  # asked while the others are there
            with telling_who_is_lost(self.rank):
                drive(self._settle())
                self._shards.finish(self._buffers.model, self._buffers)
                if self._folder is not None and leads:
                    drive(self._folder.finish(self._world))
        except BaseException as error:
            self._abort(error)
            raise

    async def _settle(self) -> None:
        me = self._me
        await take_over(me, self._world, self._source)
        if me.role.follows:
            self._seat.inner.waits = False
        elif not me.lock_step:
            await me.averager.meet(ENDED, me.seat)
        await end_run(self.strategy, me)
        if self.size > 1:
            self._answers.stop()
            await self._answering
