"""Short voice commands, spoken by twelve voices of espeak-ng: a user's recordings for tests."""

from __future__ import annotations

import random
from pathlib import Path

from murmur.speech.corpus.synth import ScriptLine, Voice, render

ACCENTS, VARIANTS = ("en-us", "en-gb-x-rp"), ("m1", "m3", "m7", "f1", "f2", "f4")
DOES, ROOMS, THINGS = ("turn on", "turn off", "dim"), ("kitchen", "bedroom", "garden", "hall"), ("light", "lamp", "fan")


def record(folder: Path, each: int) -> None:
    """Write SPEAKER/NAME.flac and NAME.txt, `each` sentences of each voice."""
    draw = random.Random(0)
    for number, (accent, variant) in enumerate((a, v) for v in VARIANTS for a in ACCENTS):
        voice = Voice(accent, variant, draw.randrange(140, 200), draw.randrange(35, 65))
        lines = []
        for take in range(each):
            words = f"{draw.choice(DOES)} the {draw.choice(ROOMS)} {draw.choice(THINGS)}".split()
            words += ["please"] if draw.random() < 0.3 else []
            snr_db, seed = draw.uniform(15, 30), draw.randrange(10**6)
            lines.append(ScriptLine(f"{take:03}", tuple(words), voice, snr_db, 1.0, 0.0, -6.0, (0.15, 0.25), seed))
        speaker = folder / f"speaker{number:02}"
        render(lines, speaker, processes=1)
        for line in lines:
            (speaker / f"{line.id}.txt").write_text(" ".join(line.words).capitalize() + ".\n")
