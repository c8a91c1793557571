"""Writes the tables of strategies in docs/strategies.md, and the code of ADPSGD in README.md.

    python -m tests.project.strategies_page

Equations and remarks come from the tables below, everything else from the class attributes of the strategies in
`murmur.strategies.ALL`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import murmur
from murmur.core.facts import NOT_OF_INNER, Facts, FactsOfInner, vectors_of
from murmur.strategies import ADPSGD, ALL
from tests.project.generated_block import ROOT, rewrite, table

README, PAGE = ROOT / "README.md", ROOT / "docs" / "strategies.md"
SOURCE = Path(murmur.__file__).parent
LEARNERS, SAMPLES = 16, 256
MOST_FIELDS = 4  # of a signature in the table of equations

EQUATIONS = {
    "SyncSGD": "w ← w − α Σ n_i g_i(w) / Σ n_i, the sum hidden behind the backward pass",
    "KAVG": "K times w_i ← w_i − α g_i(w_i); then w_i ← Σ_j n_j w_j / Σ_j n_j",
    "BMUF": "Δ ← η Δ + ζ (w̄ − w_g); w ← w + Δ",
    "SlowMo": "KAVG with momentum that counts in gradients: u <- beta u + (x - mean_i w_i) / r; x <- x - alpha r u",
    "DiLoCo": "K local steps, then Nesterov's momentum on the mean change",
    "StreamingDiLoCo": "DiLoCo in fragments, one after the other, each exchanged beside the next tau local steps",
    "AdaptiveKAVG": "K-step averaging whose K, minibatch and rate follow rules such as AdaComm",
    "ParameterAveraging": "Kaldi's: learners and rates that grow; outliers left out; models combined at the end",
    "DelayByOne": "w_{k+1} = (W_k T_k)_l − α g(w_k), the average hidden behind the gradient",
    "GossipPGA": "neighbours average after every step, all learners after every H-th",
    "NoLoCo": "K local steps; then δ ← α δ + β mean(Δ) − γ (φ − mean(φ)), φ ← φ + δ with one random partner",
    "ADPSGD": "W ← W T_k − α g(Φ); T_k is `ring`, `randomized_ring`, `pairwise`, `exponential` or `random_pairs`",
    "QuasiGlobal": "ADPSGD with momentum of all changes of the weights: m <- mu m + (1 - mu) (w' - w) / r",
    "A2CiD2": "ADPSGD with a second vector z beside w: both mix continuously, and exchanges move z further than w",
    "ASGD": "server: w ← w − α d(age) g, in order of arrival",
    "Downpour": "c ← c + steps of `push` gradients; w_i ← c + steps not pushed, every `pull` gradients; all train",
    "EASGD": "every K steps d = ρ (w_i − c); c ← c + d, w_i ← w_i − d; all train",
    "DecoupledDiLoCo": "DiLoCo at every learner's own pace: an outer step takes the fragments delivered in time",
    "SuperLearners": "the mean gradient of a node in place of g; with ADPSGD this is H-ADPSGD",
    "Compressed": "any strategy with its vectors in bfloat16, float16 or int8, with error feedback",
    "OwnShares": "an asynchronous strategy with minibatches assigned beforehand instead of claimed",
}
REMARKS = {  # strategy -> what the loss of a learner means for it, beside its facts
    "ASGD": "the run ends without a server",
    "Downpour": "the run ends if the learner held a shard of the server",
    "EASGD": "the run ends if the learner held a shard of the centre",
    "DecoupledDiLoCo": "the run ends if the learner held a shard of the synchronizer",
    "OwnShares": "as its inner strategy; those that have done their share take over what the lost learner has left",
    "SuperLearners": "the node is lost with its learner; the run ends if the strategy among nodes is lock-step",
}
MEANINGS = {  # fact -> its meaning
    "lock_step": "all learners go through the same rounds together",
    "tolerates_loss": "training goes on without a lost learner",
    "accepts_new_learners": "learners can be added to a running experiment",
    "bitwise_alone": "one learner is the plain training loop, to the bit",
    "ends_equal": "all learners end with the same weights, to the bit",
    "staleness": "largest staleness of a gradient; `None`: no bound",
    "follows_losses": "exchanges depend on losses",
    "sets_weights_every": "gradients between exchanges that set all weights; `None`: exchanges only add to them",
    "reads_weights": "it uses the weights at the start of a round; a loop saved within a round then keeps them",
    "assigns_minibatches": "it chooses the minibatches of each learner; a loop with its own loader cannot run it",
    "least_learners": "smallest sensible number of learners",
    "adds_steps": "the model moves by the sum of all learners' steps, not by their mean",
    "repeatable_steps": "the members of a super-learner can repeat its leader's steps",
    "gradients_a_step": "learners whose gradients are summed for one step of an optimizer; `None`: all",
    "elementwise": "each element is treated alone: learners may be [sharded](your_own_loop.md#sharded-learners)",
    "needs_plain_sgd": "its equation holds for plain SGD only; a warning tells of an optimizer with moments",
    "follows_growth": "it scales its steps with the number of learners itself ([scaling](scaling.md))",
}
METHODS = (
    ("`training_learners(learners)`", "learners that take gradients; the first ones serve", "all"),
    ("`vectors_sent(learners, samples)`", "vectors sent for a gradient", "none"),
    ("`planned(planner)`", "closed form for `murmur plan`, chosen from the planner's methods", "none"),
)


def signature(made: Callable[..., Any]) -> str:
    """Return a strategy with the names of its first fields."""
    names = [f.name for f in fields(made)] if is_dataclass(made) else []
    shown = [*names[:MOST_FIELDS], *(["…"] if len(names) > MOST_FIELDS else [])]
    return f"{made.__name__}({', '.join(shown)})"


def file_of(made: Callable[..., Any]) -> str:
    """Return the file of a strategy, relative to the package."""
    return str(Path(inspect.getfile(made)).relative_to(SOURCE))


def overview() -> str:
    """Return the table of equations."""
    rows = [(f"`{signature(made)}`", EQUATIONS[name], f"`{file_of(made)}`") for name, made in ALL.items()]
    return table(("strategy", "equation", "file"), *rows)


def fact(made: Callable[..., Any], name: str) -> str:
    """Return a fact of a strategy as text; "inner" if it is that of the strategy inside."""
    if isinstance(made, type) and issubclass(made, FactsOfInner):
        declared = getattr(made, name, None)
        if isinstance(declared, property) or (declared is None and name not in NOT_OF_INNER):
            return "inner"
    value = getattr(Facts.of(made()), name)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "no bound" if value is None else str(value)


def facts() -> str:
    """Return the table of facts, one row per strategy."""
    heads = ("strategy", "lock-step", "one learner is bitwise the plain loop", "largest staleness", "vectors sent")
    rows = [
        (
            f"`{name}`",
            *(fact(made, attribute) for attribute in ("lock_step", "bitwise_alone", "staleness")),
            f"{vectors_of(made(), LEARNERS, SAMPLES):.3g}",
        )
        for name, made in ALL.items()
    ]
    note = (
        f"Values of default fields. *Vectors sent*: per gradient of a learner, {LEARNERS} learners, minibatches of"
        f" {SAMPLES} samples. *inner*:\nthe fact of the strategy inside."
    )
    return f"{table(heads, *rows)}\n\n{note}"


def losses() -> str:
    """Return the table about lost and new learners."""
    rows = []
    for name, made in ALL.items():
        effect = {
            "yes": "the others go on; a restarted learner rejoins",
            "no": "the run ends with the name of the lost learner, and restarts from a checkpoint",
            "inner": "",
        }[fact(made, "tolerates_loss")]
        remark = REMARKS.get(name, "")
        effect = "; ".join(part for part in (effect, remark) if part)
        rows.append((f"`{name}`", effect, fact(made, "accepts_new_learners")))
    return table(("strategy", "effect of a lost learner", "accepts new learners (`murmur add`)"), *rows)


def compositions() -> str:
    """Return the table of the strategies that run another one, and of those that each refuses."""
    outer = [name for name, made in ALL.items() if isinstance(made(), FactsOfInner)]
    rows = [(f"`{name}`", *(_composed(ALL[wrapper], made()) for wrapper in outer)) for name, made in ALL.items()]
    return table(("inside", *(f"`{wrapper}(...)`" for wrapper in outer)), *rows)


def _composed(wrapper: Callable[..., Any], inner: Any) -> str:
    try:
        wrapper(inner)
    except ValueError as refused:
        return f"refused: {refused}"
    return "runs"


def attributes() -> str:
    """Return the table of the facts that a strategy can declare."""
    rows = [(f"`{f.name}`", MEANINGS[f.name], f"`{f.default}`") for f in fields(Facts)]
    return table(("attribute", "meaning", "default"), *rows, *METHODS)


def adpsgd() -> str:
    """Return the code of ADPSGD for README.md."""
    methods = "\n".join(inspect.getsource(method) for method in (ADPSGD.__call__, ADPSGD.average))
    return f"<!-- from src/murmur/{file_of(ADPSGD)} -->\n```python\n{methods}```"


PAGES = {
    README: {"adpsgd": adpsgd()},
    PAGE: {
        "strategies": overview(),
        "facts": facts(),
        "losses": losses(),
        "compositions": compositions(),
        "attributes": attributes(),
    },
}

if __name__ == "__main__":
    rewrite(PAGES)
