"""Phone error rate of espeak-ng's guesses against CMUdict's entries, on words not used to choose the phone map.

    python benchmarks/pronunciations.py FOLDER

FOLDER is the part of LibriSpeech with lm/lexicon.txt (CMUdict, 39 phones), lexicon_auto.txt (entries that are not
CMUdict's, left out here) and lm/bg.arpa.gz, which identifies the rare words. The words are halved by a digest of their
spelling: one half served to choose the images of reduced vowels, the figures are those of the other.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import kaldialign

from measure import bar, close
from murmur.speech.language_model.arpa import read_arpa
from murmur.speech.lexicon.g2p import ARPABET, EspeakGuess
from murmur.speech.lexicon.lexicon import pronunciations_of, read_lexicon

KIND = "study"
Phones = tuple[str, ...]
RARE = 0.1  # of the words, by unigram probability


def errors(phones: Phones, guess: Phones) -> int:
    """Insertions, deletions and substitutions."""
    total: int = kaldialign.edit_distance(list(phones), list(guess))["total"]
    return total


def figures(prons: Mapping[str, Sequence[Phones]], guesses: Mapping[str, Phones]) -> dict[str, float]:
    """Error rates in percent against the nearest and against the first pronunciation, and words without an error."""
    nearest = {word: min(prons[word], key=lambda phones: errors(phones, guesses[word])) for word in prons}
    first = {word: prons[word][0] for word in prons}
    found = {"words": float(len(prons))}
    for name, chosen in (("nearest", nearest), ("first", first)):
        wrong = sum(errors(phones, guesses[word]) for word, phones in chosen.items())
        found[f"phone error rate, {name} %"] = 100 * wrong / sum(map(len, chosen.values()))
    right = sum(guesses[word] in prons[word] for word in prons)
    found["words right %"] = 100 * right / len(prons)
    return found


def confusions(prons: Mapping[str, Sequence[Phones]], guesses: Mapping[str, Phones]) -> Counter[tuple[str, str]]:
    """(guessed, in the lexicon) of all errors."""
    found: Counter[tuple[str, str]] = Counter()
    for word, guess in guesses.items():
        phones = min(prons[word], key=lambda phones: errors(phones, guess))
        found.update((a, b) for a, b in kaldialign.align(list(guess), list(phones), "-") if a != b)
    return found


def main(folder: Path) -> None:
    """Guess all words, print figures of both halves and of rare words, and the confusions."""
    automatic = {word for word, _ in read_lexicon(folder / "lexicon_auto.txt")}
    prons = pronunciations_of(e for e in read_lexicon(folder / "lm" / "lexicon.txt") if e[0] not in automatic)
    guess = EspeakGuess(ARPABET, script="LATIN")
    halves: dict[str, dict[str, list[Phones]]] = {"chosen on": {}, "held": {}}
    for word, found in prons.items():
        half = "held" if hashlib.sha256(word.encode()).digest()[0] % 2 else "chosen on"
        halves[half][word] = found
    guesses = {word: guess(word) for word in prons}
    model = read_arpa(folder / "lm" / "bg.arpa.gz")
    held = halves["held"]
    log_prob = dict(zip(model.words, model.orders[0].log10_prob, strict=True))
    rare = sorted(held, key=lambda word: (float(log_prob.get(word, -99.0)), word))[: round(RARE * len(held))]
    parts = {**halves, "held, rarest tenth": {word: held[word] for word in rare}}
    shown = {name: figures(part, {w: guesses[w] for w in part}) for name, part in parts.items()}
    for name, values in shown.items():
        print(f"{name}: " + ", ".join(f"{what} {value:.2f}" for what, value in values.items()))
    common = confusions(held, {w: guesses[w] for w in held}).most_common(10)
    print("guessed for the lexicon's: " + ", ".join(f"{a} for {b} {n}" for (a, b), n in common))
    rate = shown["held"]["phone error rate, nearest %"]
    flat = {f"{name}: {what}": value for name, values in shown.items() for what, value in values.items()}
    close("pronunciations", flat, [bar("phone error rate on held words, %", rate, 5.0)])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
