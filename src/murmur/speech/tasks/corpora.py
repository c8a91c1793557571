"""The sets that the recipes train on: three splits, a lexicon and language models, read from the folder of each set.

Every loader takes the folder that holds `data/<split>`; it copies and changes nothing there. Sets without a dev split
get one from their training data, so that nothing is ever tuned on test: whole speakers if there are enough, else
utterances.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from murmur.core.counted import counted
from murmur.speech.corpus.corpus import Corpus, CorpusError, tell_losses
from murmur.speech.corpus.digits import Digits, digits_folder
from murmur.speech.corpus.kaldi_dir import check_data_dir, read_data_dir
from murmur.speech.corpus.synth import check_installed
from murmur.speech.features.augment import MelCepstra

FOLDS = 5  # speakers of train and dev of the Free Spoken Digit Dataset, one of which is held out at a time
SPHINX = MelCepstra(bins=40, low_hz=133.33334, high_hz=6855.4976, scaling="mean", lifter=0.0)  # of AN4's cepstra
HELD_OUT = 8  # every eighth speaker (or utterance) of a training set that comes without a dev set


@dataclass(frozen=True)
class SpeechSet:
    """A set of recordings or features, with everything that decoding needs.

    Attributes:
        dev: utterances for tuning; no speaker of `train` or `test` if the set has several (but see `an4_all`).
        language_models: ARPA files by name; empty for sets with a closed word loop.
        analysis: the analysis that made the cepstra of a set that brings features; None if it is not known.
    """

    train: Corpus
    dev: Corpus
    test: Corpus
    lexicon: Path
    language_models: Mapping[str, Path] = field(default_factory=dict)
    analysis: MelCepstra | None = None


@dataclass(frozen=True)
class Needs:
    """Files that a set must hold, relative to its folder.

    Attributes:
        parts: data directories, below data/.
        lexicon: pronunciation file.
        language_models: ARPA files by name.
    """

    parts: tuple[str, ...] = ("train", "test")
    lexicon: str = "lexicon.txt"
    language_models: Mapping[str, str] = field(default_factory=dict)

    def check(self, root: Path) -> None:
        """Check that the files are there, without reading them."""
        check_parts(root, self.parts)
        for file in (self.lexicon, *self.language_models.values()):
            _there(root / file, root)

    def read(self, root: Path) -> SpeechSet:
        """The set, with dev from data/dev, or else every eighth training speaker."""
        models = {name: _there(root / file, root) for name, file in self.language_models.items()}
        return SpeechSet(*splits(root), _there(root / self.lexicon, root), models)


NEEDS: Mapping[str, Needs] = {
    "an4": Needs(lexicon="an4.dic", language_models={"ug": "an4.ug.lm"}),
    "an4_all": Needs(lexicon="an4.dic", language_models={"ug": "an4.ug.lm"}),
    "fsdd_all": Needs(),
    **{f"fsdd_fold_{n}": Needs() for n in range(1, FOLDS + 1)},
    "fsdd_official": Needs(parts=("train_official", "test_official")),
    "fsdd_unseen": Needs(),  # one speaker for dev, one for test, four for training
    "folder": Needs(),
    "librispeech": Needs(lexicon="lm/lexicon.txt", language_models={"bg": "lm/bg.arpa.gz", "tg": "lm/tg.arpa.gz"}),
    "own": Needs(language_models={"lm": "lm.arpa.gz"}),
    "yesno": Needs(),
}


def check_parts(root: Path, parts: Sequence[str] = ("train", "test")) -> None:
    """Check that a folder is a set with these parts, without reading them."""
    if not root.is_dir():
        raise CorpusError(f"there is no folder {root}: name the folder of the set (task.corpus)")
    if not (root / "data").is_dir() and (root / "text").is_file():
        raise CorpusError(f"{root} is a data directory, not a set: name the folder that holds data/{parts[0]}")
    check_finished(root)
    for part in parts:
        check_data_dir(root / "data" / part)


def check_finished(root: Path) -> None:
    """Check that `murmur prepare` was not cut off while it replaced the splits of a set."""
    try:
        found = json.loads((root / "manifest.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return  # a set from elsewhere, which may have a file of this name
    if isinstance(found, dict) and found.get("finished") is False:
        raise CorpusError(
            f"the preparation of {root} was not finished, so that its splits may be of different times: run"
            f" murmur prepare {found.get('corpus')} with --out {root} again"
        )


def check_digits(cache: Path, config: Digits) -> None:
    """Check that the embedded digits are in `cache`, or can be synthesised.

    Raises:
        SynthesisError: espeak-ng is missing.
    """
    if not digits_folder(cache, config).is_dir():
        check_installed()


def yesno(root: Path) -> SpeechSet:
    """Hebrew yes/no strings of one speaker; dev is every eighth training utterance."""
    train, test = (_part(root, part) for part in ("train", "test"))
    held_out = {u.id for u in train.utterances[HELD_OUT - 1 :: HELD_OUT]}
    parts = train.subset(lambda u: u.id not in held_out), train.subset(lambda u: u.id in held_out)
    return SpeechSet(*parts, test, _there(root / "lexicon.txt", root))


def fsdd_official(root: Path) -> SpeechSet:
    """Isolated digits, upstream's split (all six speakers on both sides); dev is repetitions 5 and 6 of training."""
    train, test = (_part(root, part) for part in ("train_official", "test_official"))
    dev = train.subset(lambda u: u.id.endswith(("-05", "-06")))
    rest = train.subset(lambda u: not u.id.endswith(("-05", "-06")))
    return SpeechSet(rest, dev, test, _there(root / "lexicon.txt", root))


def fsdd_fold(root: Path, number: int) -> SpeechSet:
    """Isolated digits for tuning: one of the five speakers of train and dev is held out, the others train.

    Dev and test are both that speaker: the test speaker of `fsdd_unseen` stays unseen while settings are chosen.

    Args:
        root: folder of the set.
        number: place of the held-out speaker in the order of their names, from 1.
    """
    known = fsdd_all(root)
    speakers = sorted(set(known.train.speakers.values()), key=str.encode)
    if len(speakers) != FOLDS:
        raise CorpusError(f"{root} has {counted(len(speakers), 'speaker')} in train and dev, not {FOLDS}")
    own = speakers[number - 1]
    held_out = known.train.subset(lambda u: u.speaker == own)
    return replace(known, train=known.train.subset(lambda u: u.speaker != own), dev=held_out, test=held_out)


def fsdd_all(root: Path) -> SpeechSet:
    """Isolated digits, all speakers but that of test in train, for a last run with its settings already fixed.

    Dev is that of `fsdd_unseen`. Its speaker is now trained on: its figures are not held-out figures. Tune nothing on
    them.
    """
    unseen = NEEDS["fsdd_unseen"].read(root)
    both = unseen.train, unseen.dev
    utterances = (utterance for part in both for utterance in part.utterances)
    return replace(unseen, train=Corpus(tuple(utterances), sum((part.problems for part in both), ())))


def an4(root: Path) -> SpeechSet:
    """AN4 as cepstra (feats.scp) with its unigram model ("ug"); dev is every eighth training speaker."""
    return replace(NEEDS["an4"].read(root), analysis=SPHINX)


def an4_all(root: Path) -> SpeechSet:
    """AN4 with all 74 training speakers in train, for a last run with its settings already fixed.

    Dev is that of `an4`. Its speakers are now trained on: its figures are not held-out figures. Tune nothing on them.
    """
    return replace(an4(root), train=_part(root, "train"))


LOADERS: Mapping[str, Callable[[Path], SpeechSet]] = {
    **{name: needs.read for name, needs in NEEDS.items()},
    "an4": an4,
    "an4_all": an4_all,
    "fsdd_all": fsdd_all,
    **{f"fsdd_fold_{n}": partial(fsdd_fold, number=n) for n in range(1, FOLDS + 1)},
    "fsdd_official": fsdd_official,
    "yesno": yesno,
}


def splits(root: Path) -> tuple[Corpus, Corpus, Corpus]:
    """Train, dev and test of a folder; without data/dev every eighth training speaker becomes dev.

    Raises:
        CorpusError: no data/train or data/test, or too few speakers to set some aside.
    """
    train, test = (_part(root, part) for part in ("train", "test"))
    if (root / "data" / "dev").is_dir():
        return train, _part(root, "dev"), test
    speakers = sorted(set(train.speakers.values()), key=str.encode)
    held_out = set(speakers[HELD_OUT - 1 :: HELD_OUT])
    if not held_out:
        raise CorpusError(
            f"{root} has no data/dev and only {counted(len(speakers), 'training speaker')}: add a dev set"
        )
    return train.subset(lambda u: u.speaker not in held_out), train.subset(lambda u: u.speaker in held_out), test


def _part(root: Path, part: str) -> Corpus:
    """A data directory of a set; utterances that cannot be used are left out, and told in the log."""
    check_finished(root)
    corpus = read_data_dir(root / "data" / part)
    tell_losses(f"data/{part}", len(corpus), corpus.problems)
    return corpus


def _there(path: Path, root: Path) -> Path:
    if not path.is_file():
        ways = {"lexicon.txt": f"murmur lexicon {root}/data/train --guess espeak --out {path.parent}"}
        ways["lm.arpa.gz"] = f"murmur lm train {root}/data/train --out {path}"
        made = f", or make it: {ways[path.name]}" if path.name in ways else ""
        raise CorpusError(f"{path} is missing: is {root} the folder of the set?{made}")
    return path
