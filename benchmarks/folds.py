"""Settings of a recipe compared by leaving one training speaker out at a time.

Each candidate is a list of settings. It trains once a fold; errors on the held-out speakers are summed, and the
candidate with the fewest network errors is named with the command of its last run, on all speakers. The test speaker is
in no fold. Runs that are finished are not repeated.

    python benchmarks/folds.py fsdd --set task.corpus=FOLDER --set task.cache=FOLDER --out FOLDER
        --candidate 'two epochs: budget.epochs=2' --candidate 'dropout: budget.epochs=4 task.network.dropout=0.3'
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

KIND = "study"
FOLDS = tuple(f"fsdd_fold_{n}" for n in range(1, 6))
DECIDES = "network"
Train = Callable[[Sequence[str]], None]


@dataclass(frozen=True)
class Candidate:
    """Settings under a name."""

    name: str
    settings: tuple[str, ...] = ()

    @staticmethod
    def of(text: str) -> Candidate:
        """A candidate from 'NAME: SETTING SETTING'; settings are separated by spaces.

        Raises:
            ValueError: there is no name, or a word after it is no setting.
        """
        name, colon, rest = text.partition(":")
        settings = tuple(rest.split())
        if not name.strip() or not colon or not all("=" in setting for setting in settings):
            raise ValueError(f"{text!r} is not 'NAME: SETTING SETTING', such as 'short: budget.epochs=2'")
        return Candidate(name.strip(), settings)


@dataclass(frozen=True)
class Errors:
    """Errors of one system on the held-out speakers of all folds."""

    errors: int
    words: int
    folds: tuple[int, ...]

    @property
    def percent(self) -> float:
        """Word error rate."""
        return 100 * self.errors / self.words

    def __str__(self) -> str:
        return f"%WER {self.percent:.2f} [ {self.errors} / {self.words} ], by fold {', '.join(map(str, self.folds))}"


def commands(recipe: str, candidate: Candidate, settings: Sequence[str], out: Path) -> dict[Path, list[str]]:
    """The command of each fold, by the folder of its run."""
    found = {}
    for fold in FOLDS:
        folder = out / f"{candidate.name.replace(' ', '-')}-{fold}"
        every = [f"task.loader={fold}", *settings, *candidate.settings]
        options = [word for setting in every for word in ("--set", setting)]
        found[folder] = ["train", recipe, *options, "--threads", "1", "--out", str(folder)]
    return found


def pooled(scores: Sequence[Mapping[str, float]]) -> dict[str, Errors]:
    """The errors of each system, summed over the folds, from the figures of dev (the held-out speaker).

    Args:
        scores: the figures of the recogniser of each fold, `test` in its score.json.

    Raises:
        ValueError: the figures hold no errors on dev.
    """
    names = [name.removesuffix(" dev errors") for name in scores[0] if name.endswith(" dev errors")]
    if not names:
        raise ValueError("the scores of the folds hold no errors on dev")
    found = {}
    for name in names:
        folds = tuple(int(score[f"{name} dev errors"]) for score in scores)
        found[name] = Errors(sum(folds), int(sum(score[f"{name} dev words"] for score in scores)), folds)
    return found


def measured(recipe: str, candidate: Candidate, settings: Sequence[str], out: Path, train: Train) -> dict[str, Errors]:
    """Errors of a candidate, trained on the folds that have no score yet."""
    scores = []
    for folder, command in commands(recipe, candidate, settings, out).items():
        if not (folder / "score.json").is_file():
            train(command)
        scores.append(json.loads((folder / "score.json").read_bytes())["test"])
    return pooled(scores)


def best(found: Mapping[str, Mapping[str, Errors]]) -> str:
    """The candidate with the fewest errors of the network; the first one among equals."""
    return min(found, key=lambda name: found[name][DECIDES].errors)


def murmur(arguments: Sequence[str]) -> None:
    """Run a command of murmur."""
    subprocess.run([sys.executable, "-m", "murmur", *arguments], check=True)


def main(arguments: Sequence[str] | None = None, train: Train = murmur) -> str:
    """Compare the candidates; return the name of the best one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--candidate", dest="candidates", action="append", type=Candidate.of, metavar="NAME: SETTINGS")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    candidates = given.candidates or [Candidate("recipe")]
    found = {}
    for candidate in candidates:
        found[candidate.name] = measured(given.recipe, candidate, given.settings, given.out, train)
        for system, errors in found[candidate.name].items():
            print(f"{candidate.name}: {errors} {system}", flush=True)
    chosen = next(candidate for candidate in candidates if candidate.name == best(found))
    last = " ".join(f"--set '{setting}'" for setting in ("task.loader=fsdd_all", *given.settings, *chosen.settings))
    print(f"best: {chosen.name}; its last run: murmur train {given.recipe} {last} --weights last")
    return chosen.name


if __name__ == "__main__":
    main()
