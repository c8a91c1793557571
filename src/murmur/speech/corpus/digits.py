"""The embedded corpus `digits`: connected digit strings spoken by espeak-ng, written as a Kaldi data directory.

Every utterance has a voice (accent x variant), rate and pitch of its own, noise at 5-20 dB, and a fifth are
reverberant. The variants of dev and test are never in training, and one accent is in test only. All choices are
drawn here, from the seed, before anything is synthesised (`synth.render`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from murmur.core.whole_files import alone, atomic_folder
from murmur.speech.corpus.kaldi_dir import write_scp, write_table
from murmur.speech.corpus.synth import ScriptLine, Voice, render

LEXICON = {
    "ZERO": ("Z IH R OW", "Z IY R OW"),
    "ONE": ("W AH N",),
    "TWO": ("T UW",),
    "THREE": ("TH R IY",),
    "FOUR": ("F AO R", "F AO"),
    "FIVE": ("F AY V",),
    "SIX": ("S IH K S",),
    "SEVEN": ("S EH V AH N",),
    "EIGHT": ("EY T",),
    "NINE": ("N AY N",),
}
WORDS = tuple(LEXICON)
TEST_ACCENT = "en-gb-scotland"
ACCENTS = ("en", "en-us", "en-gb-x-rp", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-029", "en-us-nyc")
# espeak-ng's variants that sound like people: whispers, robots and other effects are left out.
_VARIANTS = {
    "train": "Alex Andrea Andy Annie Denis Diogo Gene Henrique Hugo Jacky Lee Marco Michael Mike adam anika announcer "
    "antonio belinda benjamin boris caleb david ed edward f1 f2 f4 gustave ian iven iven3 john kaukovalta klatt klatt3 "
    "linda m1 m2 m4 m6 m8 marcelo max miguel norbert pablo pedro quincy rob sandro shelby steph2 travis zac",
    "dev": "Gene2 f5 iven2 klatt2 m5 mike2 steph",
    "test": "Alicia Mario aunty edward2 f3 grandma grandpa iven4 klatt4 m3 m7 michel paul robert steph3 victor",
}
VARIANTS = {split: tuple(names.split()) for split, names in _VARIANTS.items()}
FORMAT = 2


@dataclass(frozen=True)
class Digits:
    """Size and seed of the corpus. The defaults make 28 minutes for training, 3 for dev and 12 for test.

    Attributes:
        train: utterances for training.
        dev: utterances for tuning, unseen variants.
        test: utterances for the final figure, unseen variants, about a quarter in the unseen accent.
        seed: seed of all random choices.
    """

    train: int = 960
    dev: int = 100
    test: int = 420
    seed: int = 1

    def digest(self) -> str:
        """Name of the corpus made from these values."""
        content = json.dumps([asdict(self), FORMAT, LEXICON, ACCENTS, TEST_ACCENT, VARIANTS], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:12]


def digits_folder(folder: Path, config: Digits) -> Path:
    """The folder of the corpus made from these values, below `folder`; it exists once the corpus is complete."""
    return Path(folder) / f"digits-{config.digest()}"


def plan(config: Digits) -> dict[str, tuple[ScriptLine, ...]]:
    """The lines of each split, with speaker and conditions: {split: lines}. A pure function of `config`."""
    counts = {"train": config.train, "dev": config.dev, "test": config.test}
    return {split: tuple(_line(split, index, config.seed) for index in range(count)) for split, count in counts.items()}


def make_digits(folder: Path, config: Digits = Digits(), processes: int = 2) -> Path:
    """Write the corpus to `folder`/digits-<digest> unless it exists, and return that path.

    Layout: data/<split>/{text,utt2spk,wav.scp}, wav/<split>/*.flac, lexicon.txt. The folder gets its name only when
    complete.

    Raises:
        SynthesisError: espeak-ng is missing or failed.
    """
    target = digits_folder(folder, config)
    if target.is_dir():
        return target
    with alone(target):
        if not target.is_dir():
            with atomic_folder(target) as new:
                _speak(new, config, processes)
    return target


def _speak(scratch: Path, config: Digits, processes: int) -> None:
    for split, of_split in plan(config).items():
        render(of_split, scratch / "wav" / split, processes)
        _write_split(scratch, split, of_split)
    pronunciations = sorted(f"{word} {phones}\n" for word, ways in LEXICON.items() for phones in ways)
    (scratch / "lexicon.txt").write_text("".join(pronunciations), encoding="utf-8")


def _write_split(root: Path, split: str, lines: Sequence[ScriptLine]) -> None:
    folder = root / "data" / split
    write_table(folder / "text", {line.id: " ".join(line.words) for line in lines})
    write_scp(folder / "wav.scp", {line.id: f"wav/{split}/{line.id}.flac" for line in lines})
    write_table(folder / "utt2spk", {line.id: line.id.rpartition("-")[0] for line in lines})


def _line(split: str, index: int, seed: int) -> ScriptLine:
    rng = np.random.default_rng([seed, ("train", "dev", "test").index(split), index])
    variant = VARIANTS[split][index % len(VARIANTS[split])]
    foreign = split == "test" and rng.integers(4) == 0
    accent = TEST_ACCENT if foreign else ACCENTS[rng.integers(len(ACCENTS))]
    voice = Voice(
        accent=accent,
        variant=variant,
        words_per_minute=int(rng.integers(130, 241)),
        pitch=int(rng.integers(25, 76)),
        pitch_range=int(rng.integers(30, 71)),
    )
    speaker = f"{accent}_{variant}".replace("-", "")
    return ScriptLine(
        id=f"{speaker}-{split}{index:05}",
        words=tuple(WORDS[i] for i in rng.integers(len(WORDS), size=3 + index % 5)),
        voice=voice,
        snr_db=round(float(rng.uniform(5, 20)), 2),
        noise_slope=round(float(rng.uniform(0, 2)), 2),
        rt60_seconds=round(float(rng.uniform(0.15, 0.5)), 3) if index % 5 == rng.integers(5) else 0.0,
        peak_db=round(float(rng.uniform(-20, -3)), 2),
        margin_seconds=(round(float(rng.uniform(0.05, 0.25)), 3), round(float(rng.uniform(0.05, 0.25)), 3)),
        seed=int(rng.integers(2**31)),
    )
