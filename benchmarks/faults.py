"""Cost of a fault for the other learners: four learners on four hosts, one or two of which fail or slow down.

    python benchmarks/faults.py [--strategies ADPSGD KAVG(8) ...] [--cases "kill one" ...] [--record NAME]   (as root)
    python benchmarks/faults.py --joined                                                     (loops of `murmur.join`)

Killed (SIGKILL): one, two; one stopped for a while (SIGSTOP); one cable pulled for 20 s; one learner ten times slower;
one that is killed early and comes back late. If two learners form a super-learner, both are hit. For each case: whether
the others finished, the seconds in which they made less than 90 % of their pace, minibatches left undone, held-out loss
at the end against undisturbed runs of three seeds. SyncSGD, which does not tolerate loss, must end within seconds and
name the lost learner. At start, a learner is killed, or stopped for good, before it reaches the store, when it does, or
when all are ready: the others, without word from a launcher, must end in time and name it, or go on. That time is 5 s
after a kill, and 5 s after the time that learners wait for one another if it has not come or is only stopped. torchft's
LocalSGD is measured for comparison, on this host alone (`make peers` installs it).

A gradient sleeps and then takes a small real step, so that two cores can act as four hosts. Pace is the number of
steps of all unaffected learners in a window of a second, so that a full stop of d seconds measures as about d + 0.8.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from joined_learner import run_loop
from measure import bar, close
from murmur.core.facts import FactsOfInner
from murmur.core.group import PeerLost
from murmur.core.learner import Learner, Strategy
from murmur.core.mixing import randomized_ring
from murmur.core.stop_signals import end_process
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.engine.scaling import Fixed
from murmur.engine.schedule import Cosine
from murmur.engine.trainer import Trainer
from murmur.strategies import ADPSGD, ASGD, BMUF, KAVG, DelayByOne, SuperLearners, SyncSGD
from murmur.worlds.process.environment import COME_KEY, READY_KEY, Place, place_of
from murmur.worlds.process.failure_detector import LEAST_SECONDS, ROUNDS
from murmur.worlds.process.listener import listen
from murmur.worlds.process.store_server import StoreClient
from murmur.worlds.process.world import ProcessWorld
from namespaces import Network, hosts, refusal
from trouble import PacedRegression, Step, StepLog, Troubled, slowness_of, steps_of, troubled

KIND = "long"
HERE = Path(__file__).parent
PEERS = HERE.parent / ".venv-peers" / "bin" / "python"
PEER, PEER_CASES = "torchft LocalSGD(8)", ("kill one", "slow one 10x")
SIZE, NODE, SECONDS, MINIBATCHES, BITS, K = 4, 2, 0.05, 2400, 1e9, 8
BEFORE_SECONDS, CUT_SECONDS, STOP_SECONDS, LATE_SECONDS = 5.0, 20.0, 8.0, 10.0
START_SECONDS, PATIENCE_SECONDS = 120.0, 400.0  # in lock-step a run with a slow learner takes five minutes
WINDOW_SECONDS, GRID_SECONDS, SLOW_PACE = 1.0, 0.05, 0.9
SEEDS = (0, 1, 2)
VICTIM = 1
AT_START: dict[str, Callable[[Troubled, int], None]] = {
    "killed at start": Troubled.kill,
    "stopped at start": Troubled.stop,
}
COMING_SECONDS, ENDING_SECONDS = 30.0, 5.0  # wait for a learner that never comes; until all have ended
MOMENTS: dict[str, list[str]] = {
    "before it comes": [],
    "when it comes": [f"{COME_KEY}/{VICTIM}"],
    "when all are ready": [f"{READY_KEY}/{r}" for r in range(SIZE)],
}
DEADLINE_SECONDS = max(LEAST_SECONDS, ROUNDS * SECONDS)
STRATEGIES: dict[str, Strategy] = {
    "ADPSGD": ADPSGD(),
    "ADPSGD randomized ring": ADPSGD(randomized_ring),
    f"SuperLearners(ADPSGD, {NODE})": SuperLearners(ADPSGD(), NODE),
    f"KAVG({K})": KAVG(K),
    f"BMUF({K})": BMUF(K),
    "SyncSGD": SyncSGD(),
    "DelayByOne": DelayByOne(),
    "ASGD": ASGD(),
}
JOINED = "joined "  # before the name of a strategy: a user's own loop runs it
OF_LOOPS = tuple(JOINED + name for name in (f"KAVG({K})", f"BMUF({K})", "ADPSGD"))
STARTED_ONLY = (
    "DelayByOne",
    "ASGD",
)  # faults in training are not measured for these: they end, or lose a server


@dataclass(frozen=True)
class Case:
    """One fault.

    Attributes:
        name: name of the fault.
        troubled: learners that it hits.
        begin: function that starts the fault, called for each of them.
        seconds: time from `begin` to `end`.
        end: function that ends the fault.
        returns: True if the learners are expected at the end of the run.
    """

    name: str
    troubled: tuple[int, ...] = ()
    begin: Callable[[Troubled, Path, int], None] = lambda *_: None
    seconds: float = 0.0
    end: Callable[[Troubled, Path, int], None] = lambda *_: None
    returns: bool = True


def slow(running: Troubled, folder: Path, rank: int) -> None:  # noqa: ARG001 - as the other faults
    (folder / f"{rank}.slow").write_text("10")


CASES = (
    Case("undisturbed"),
    Case("kill one", (1,), lambda f, _, r: f.kill(r), returns=False),
    Case("kill two", (1, 2), lambda f, _, r: f.kill(r), returns=False),
    Case("stop one", (1,), lambda f, _, r: f.stop(r), STOP_SECONDS, lambda f, _, r: f.go_on(r)),
    Case("cut one", (1,), lambda f, _, r: f.cut(r), CUT_SECONDS, lambda f, _, r: f.mend(r)),
    Case("slow one 10x", (1,), slow),
    Case("one comes late", (3,), lambda f, _, r: f.kill(r), LATE_SECONDS, lambda f, _, r: f.start(r)),
)


@dataclass(frozen=True)
class Counted(FactsOfInner):
    """A strategy without lock-step, with a counter of averages that is visible from outside."""

    strategy: Strategy
    me: list[Learner] = field(default_factory=list, repr=False)

    @property
    def inner(self) -> Strategy:
        return self.strategy

    async def __call__(self, me: Learner) -> None:
        self.me.append(me)
        await self.strategy(me)

    def exchanges(self) -> int:
        """Averages completed so far; 0 for a member of a super-learner, whose leader makes them."""
        return self.me[0].averager.exchanges if self.me and not self.me[0].lock_step else 0


def learner(place: Place, name: str, seed: int, folder: Path) -> int:
    """Run one learner, write its steps, and its figures or its error, to files; return its exit status."""
    torch.set_num_threads(1)
    task = PacedRegression(SECONDS, MINIBATCHES, seed, slowness_of(folder, place.rank))
    chosen = STRATEGIES[name.removeprefix(JOINED)]
    counted = Counted(chosen)
    strategy: Strategy = counted if name.removeprefix(JOINED).startswith("ADPSGD") else chosen
    log = StepLog(folder / f"{place.rank}.steps", task, counted.exchanges)
    if name.startswith(JOINED):
        return run_loop(strategy, task, place, folder, log.write, start_seconds_of(folder))
    experiment = Experiment(task, strategy, Budget(epochs=1), SGD(0.2), Cosine(warm=0.0), seed=seed, scaling=Fixed())
    try:
        world = ProcessWorld(place, timeout_seconds=60, start_seconds=start_seconds_of(folder))
        outcome = Trainer(experiment, world, observers=lambda _: (log,)).fit()
    except (PeerLost, ConnectionError) as error:
        (folder / f"{place.rank}.error").write_text(f"{time.monotonic()} {type(error).__name__}: {error}")
        return 1
    if outcome.leads:
        (folder / "figures.json").write_text(json.dumps(outcome.figures))
    return 0


@dataclass(frozen=True)
class Ran:
    """One run.

    Attributes:
        survived: True if all expected learners were there at the end, and the held-out loss.
        disturbed_seconds: seconds in which the unaffected learners made less than 90 % of their pace.
        undone, done_twice: numbers of minibatches.
        loss: held-out loss of the consensus.
        back_seconds: time from the end of the fault to the hit learner's next average (or step, in lock-step).
        ended_seconds: time from the fault to the end of the last remaining process.
        said: errors of learners that could not go on, and their times in seconds after the fault.
    """

    survived: bool
    disturbed_seconds: float
    undone: int
    done_twice: int
    loss: float | None
    back_seconds: float | None
    ended_seconds: float
    said: tuple[tuple[float, str], ...]


def befallen(name: str, case: Case) -> list[int]:
    """The learners hit by a fault: whole super-learners, if the strategy has them."""
    node = NODE if name.startswith("SuperLearners") else 1
    return [r for r in range(SIZE) if r // node in {t // node for t in case.troubled}]


def perform(network: Network | None, name: str, case: Case, seed: int) -> Ran:
    """Run a strategy (torchft on this host), cause the fault, wait for the end."""
    befell = befallen(name, case)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        words = words_of_peer(seed, place) if name == PEER else words_of(name, seed, place)
        with troubled(network, SIZE, words) as running:
            began = until_under_way(running, folder)
            time.sleep(max(0.0, began + BEFORE_SECONDS - time.monotonic()))
            at = time.monotonic()
            for rank in befell:
                case.begin(running, folder, rank)
            time.sleep(case.seconds)
            over = time.monotonic()
            for rank in befell:
                case.end(running, folder, rank)
            expected = [r for r in range(SIZE) if case.returns or r not in befell]
            again = befell if case.returns and name not in (PEER, "SyncSGD") else ()
            codes = running.wait(expected, PATIENCE_SECONDS, again)
            ended = time.monotonic()
        steps = {r: steps_of(folder / f"{r}.steps") for r in range(SIZE)}
        figures = folder / "figures.json"
        loss = json.loads(figures.read_text())["loss"] if figures.exists() else None
        told = [file.read_text().partition(" ") for file in sorted(folder.glob("*.error"))]
        said = tuple((float(when) - at, why) for when, _, why in told)
    done = done_in(name, steps)
    return Ran(
        survived=loss is not None and all(code == 0 for code in codes.values()),
        disturbed_seconds=disturbed([steps[r] for r in range(SIZE) if r not in befell], began, at),
        undone=max(0, MINIBATCHES - len(set(done))),  # loops of users may take a few more
        done_twice=len(done) - len(set(done)),
        loss=loss,
        back_seconds=back(steps[befell[0]], over) if case.seconds else None,
        ended_seconds=ended - at,
        said=said,
    )


def done_in(name: str, steps: Mapping[int, Sequence[Step]]) -> list[int]:
    """The minibatches of all steps.

    A leader steps with the sum over its super-learner; a member repeats that one message later, and may die before it
    logs that. So a leader's step counts for all of its super-learner.
    """
    if not name.startswith("SuperLearners"):
        return [step.minibatch for own in steps.values() for step in own]
    units = [step.minibatch for leader in range(0, SIZE, NODE) for step in steps[leader]]
    return [n for first in units for n in range(first, min(first + NODE, MINIBATCHES))]


def words_of(name: str, seed: int, folder: str) -> Callable[[int], list[str]]:
    """Command lines of our learners."""
    return lambda _: [sys.executable, __file__, "--learner", name, str(seed), folder]


def words_of_peer(seed: int, folder: str) -> Callable[[int], list[str]]:
    """Command lines of torchft's."""
    with listen() as found:
        port = found.getsockname()[1]
    given = [str(port), str(MINIBATCHES), str(SECONDS), str(seed), folder]
    return lambda rank: [str(PEERS), str(HERE / "peers" / "torchft_faults.py"), str(rank), *given]


def until_under_way(running: Troubled, folder: Path) -> float:
    """Wait until every learner has taken a step, and return the time.

    Raises:
        RuntimeError: a learner has ended, or they take too long.
    """
    deadline = time.monotonic() + START_SECONDS
    while not all(steps_of(folder / f"{r}.steps") for r in range(SIZE)):
        ended = [r for r, process in running.processes.items() if process.poll() is not None]
        if ended or time.monotonic() > deadline:
            raise RuntimeError(f"not all learners have begun; ended: {ended}")
        time.sleep(0.05)
    return time.monotonic()


def disturbed(others: Sequence[Sequence[Step]], began: float, at: float) -> float:
    """Seconds from `at` until the budget is nearly spent in which the others made less than 90 % of their pace."""
    times = torch.tensor(sorted(step.at for own in others for step in own), dtype=torch.float64)
    if not len(times):
        return 0.0

    def counts(first: float, last: float) -> torch.Tensor:
        starts = torch.arange(
            first, max(first + GRID_SECONDS, last - WINDOW_SECONDS), GRID_SECONDS, dtype=torch.float64
        )
        return torch.searchsorted(times, starts + WINDOW_SECONDS) - torch.searchsorted(times, starts)

    pace = float(counts(began + WINDOW_SECONDS, at).double().median())
    return float((counts(at, float(times[-1])) < SLOW_PACE * pace).sum()) * GRID_SECONDS


def back(steps: Sequence[Step], over: float) -> float | None:
    """Seconds from the end of the fault until a learner averages again (or steps, if it makes no averages)."""
    before = [step for step in steps if step.at <= over]
    exchanged = before[-1].exchanges if before else 0
    for step in steps:
        if step.at > over and (step.exchanges != exchanged or exchanged == 0):
            return step.at - over
    return None


def examine(network: Network, name: str, cases: Sequence[Case]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """All cases of a strategy: figures and bars."""
    found: dict[str, Any] = {}
    undisturbed = [perform(network, name, CASES[0], seed) for seed in SEEDS]
    losses = [run.loss for run in undisturbed if run.loss is not None]
    mean, spread = statistics.fmean(losses), statistics.stdev(losses)
    noise = statistics.fmean(run.disturbed_seconds for run in undisturbed)
    found["undisturbed"] = [asdict(run) for run in undisturbed]
    print(f"{name}, undisturbed: losses {losses}, below 90 % of the pace for {noise:.2f} s on average", flush=True)
    bars = []
    for case in (case for case in cases if len(befallen(name, case)) < SIZE):
        ran = perform(network, name, case, SEEDS[0])
        found[case.name] = asdict(ran)
        print(f"{name}, {case.name}: " + "  ".join(f"{k} {v}" for k, v in asdict(ran).items()), flush=True)
        what = f"{name}, {case.name}"
        bars += [
            bar(f"{what}: survived", float(ran.survived), 1, at_most=False),
            bar(f"{what}: seconds of disturbance", ran.disturbed_seconds, DEADLINE_SECONDS + 1),
            bar(f"{what}: minibatches that nobody did", ran.undone, 0),
        ]
        if ran.loss is not None:
            deviations = abs(ran.loss - mean) / spread
            bars.append(bar(f"{what}: held-out loss, standard deviations off undisturbed runs", deviations, 2))
        if case.name == "cut one":
            returned = PATIENCE_SECONDS if ran.back_seconds is None else ran.back_seconds
            bars.append(bar(f"{what}: seconds until it is back in the ring", returned, 10))
    return found, bars


def fails_in_seconds(network: Network, name: str, cases: Sequence[Case]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Figures and bars of a strategy that does not tolerate loss: time to its end, and naming of the lost learner."""
    found: dict[str, Any] = {}
    bars = []
    for case in (case for case in cases if case.name in ("kill one", "stop one")):
        ran = perform(network, name, case, SEEDS[0])
        found[case.name] = asdict(ran)
        print(f"{name}, {case.name}: " + "  ".join(f"{k} {v}" for k, v in asdict(ran).items()), flush=True)
        named = [after for after, why in ran.said if f"learner {case.troubled[0]} " in why]
        others = sorted(named)[: SIZE - 1]  # without the lost one, which learns of it when it goes on
        bars += [
            bar(f"{name}, {case.name}: learners that name the lost one", len(others), SIZE - 1, at_most=False),
            bar(f"{name}, {case.name}: seconds until they have", max(others, default=PATIENCE_SECONDS), 5),
        ]
    return found, bars


def start_seconds_of(folder: Path) -> float:
    """Time that learners wait for each other at start: from a file, else as long as the benchmark does."""
    file = folder / "start_seconds"
    return float(file.read_text()) if file.exists() else START_SECONDS


def at_start(network: Network | None, name: str, fault: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Lose a learner before training begins: time until the others end or go on, and naming of the lost learner.

    The clock runs from the fault, or from the arrival of the last of the others at the store, if that is later.
    """
    found: dict[str, Any] = {}
    bars = []
    for moment, keys in MOMENTS.items():
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            (folder / "start_seconds").write_text(str(COMING_SECONDS))
            with troubled(network, SIZE, words_of(name, SEEDS[0], place)) as running, closing(line_to(running)) as line:
                until_there(running, line, keys)
                AT_START[fault](running, VICTIM)
                others = [r for r in range(SIZE) if r != VICTIM]
                until_there(running, line, [f"{COME_KEY}/{r}" for r in others])
                at = time.monotonic()
                codes = running.wait(others, PATIENCE_SECONDS)
            errors = {r: folder / f"{r}.error" for r in others}
            told = {r: file.read_text().partition(" ") for r, file in errors.items() if file.exists()}
        named = [r for r, (_, _, why) in told.items() if f"learner {VICTIM}" in why]
        went_on = [r for r, code in codes.items() if code == 0]
        seconds = max((float(when) - at for when, _, _ in told.values()), default=0.0)
        found[moment] = {"named": len(named), "went_on": len(went_on), "seconds": seconds}
        ended = {r: told[r][2] if r in told else f"status {codes[r]}" for r in others if r not in (*named, *went_on)}
        if ended:
            found[moment]["others"] = ended
        what = f"{name}, {fault} {moment}"
        print(f"{what}: {found[moment]}", flush=True)
        limit = ENDING_SECONDS + (0.0 if keys and fault == "killed at start" else COMING_SECONDS)
        bars += [
            bar(f"{what}: others that name it or go on", len(named) + len(went_on), SIZE - 1, at_most=False),
            bar(f"{what}: seconds until they have ended", seconds, limit),
        ]
    return found, bars


def line_to(running: Troubled) -> StoreClient:
    """A connection to the store of a group."""
    return StoreClient(*running.store)


def until_there(running: Troubled, line: StoreClient, keys: Sequence[str]) -> None:
    """Wait until learners have set their keys, or have ended before that.

    Raises:
        RuntimeError: they take too long.
    """
    prefix, deadline = Place(0, SIZE, 0, "", 0).prefix, time.monotonic() + START_SECONDS
    for key in keys:
        process = running.processes[int(key.rpartition("/")[2])]
        while not line.call({"do": "check", "keys": [prefix + key]})[0]["there"] and process.poll() is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{key} has not come")
            time.sleep(0.01)


def beside(figures: dict[str, Any], cases: Sequence[Case]) -> list[dict[str, Any]]:
    """torchft's LocalSGD under the same faults; bars: ADPSGD is disturbed no longer."""
    if not PEERS.exists():
        print("no .venv-peers: run `make peers` to compare with torchft")
        return []
    bars = []
    found = figures[PEER] = {}
    for case in (case for case in (CASES[0], *cases) if case.name in ("undisturbed", *PEER_CASES)):
        ran = perform(None, PEER, case, SEEDS[0])
        found[case.name] = asdict(ran)
        print(f"{PEER}, {case.name}: " + "  ".join(f"{k} {v}" for k, v in asdict(ran).items()), flush=True)
        if case.name in PEER_CASES and case.name in figures.get("ADPSGD", {}):
            ours = figures["ADPSGD"][case.name]["disturbed_seconds"] - ran.disturbed_seconds
            bars.append(bar(f"{case.name}: seconds of disturbance, ADPSGD's less torchft's", ours, 0))
    return bars


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--strategies", nargs="+", choices=[*STRATEGIES, *OF_LOOPS])
    options.add_argument("--joined", action="store_true", help="loops of murmur.join, recorded as faults_joined")
    names = [*(c.name for c in CASES[1:]), *AT_START]
    options.add_argument("--cases", nargs="+", choices=names, default=names)
    options.add_argument("--record", help="name in results/bench, for a run of some of them alone")
    options.add_argument("--learner", nargs=3, metavar=("STRATEGY", "SEED", "FOLDER"), help="be one of the learners")
    given = options.parse_args()
    place = place_of()
    if given.learner is not None and place is not None:
        end_process(learner(place, given.learner[0], int(given.learner[1]), Path(given.learner[2])))
    reason = refusal()
    if reason is not None:
        print(f"faults cannot run: {reason}")
        print(json.dumps({"benchmark": "faults", "figures": {}, "bars": [], "cannot_run": reason}))
        return
    figures: dict[str, Any] = {}
    bars: list[dict[str, Any]] = []
    cases = [case for case in CASES if case.name in given.cases]
    with hosts(SIZE, BITS) as network:
        for name in given.strategies or (OF_LOOPS if given.joined else STRATEGIES):
            judge: Callable[..., tuple[dict[str, Any], list[dict[str, Any]]]]
            judge = fails_in_seconds if name == "SyncSGD" else examine
            figures[name], more = judge(network, name, cases) if cases and name not in STARTED_ONLY else ({}, [])
            bars += more
            for fault in (fault for fault in AT_START if fault in given.cases):
                figures[name][fault], more = at_start(network, name, fault)
                bars += more
    if not given.joined:
        bars += beside(figures, cases)
    close(given.record or ("faults_joined" if given.joined else "faults"), figures, bars)


if __name__ == "__main__":
    main()
