"""Synthesis of scripts to FLAC files, one shard of a synthetic corpus per process.

`python -m murmur.speech.corpus.render SCRIPT.json FOLDER PARENT` renders one shard while process PARENT lives. A fresh
process with a fixed order of utterances makes the bytes repeatable (see `murmur.speech.corpus.synth`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import soundfile
import soxr

from murmur.execution.process_guard import end_with_parent
from murmur.speech.corpus import room_acoustics as room
from murmur.speech.corpus.synth import SynthesisError, Synthesizer, Voice

RATE_HZ = 16000
UTTERANCES_PER_SHARD = 128
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class ScriptLine:
    """One utterance to render.

    Attributes:
        id: name of the FLAC file, without suffix.
        words: words to speak.
        voice: voice of the speaker.
        snr_db: signal-to-noise ratio over the utterance.
        noise_slope: colour of the noise, 0 white to 2 brown.
        rt60_seconds: reverberation time; 0 for a dry recording.
        peak_db: level of the loudest sample relative to full scale.
        margin_seconds: noise before and after the speech.
        seed: seed of the noise and of the room response.
    """

    id: str
    words: tuple[str, ...]
    voice: Voice
    snr_db: float
    noise_slope: float
    rt60_seconds: float
    peak_db: float
    margin_seconds: tuple[float, float]
    seed: int


def render(lines: Sequence[ScriptLine], folder: Path, processes: int = 2) -> None:
    """Write `folder`/<id>.flac (16 kHz, 16 bit) for every line; shards of 128 lines, each in a fresh process.

    The bytes depend on `lines` alone, not on `processes`.

    Raises:
        SynthesisError: a shard failed; the message ends with its last output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shards = [lines[i : i + UTTERANCES_PER_SHARD] for i in range(0, len(lines), UTTERANCES_PER_SHARD)]
    left, running = list(enumerate(shards))[::-1], list[_Rendering]()
    try:
        while left or running:
            while left and len(running) < processes:
                running.append(_Rendering.begin(*left.pop(), folder))
            time.sleep(POLL_SECONDS)
            for ended in [each for each in running if each.process.poll() is not None]:
                running.remove(ended)
                ended.finish()
    finally:
        for each in running:
            each.process.kill()
            each.process.wait()


@dataclass(frozen=True)
class _Rendering:
    """A shard rendered by a fresh process: its script, and the process's output."""

    process: subprocess.Popen[bytes]
    script: Path

    @staticmethod
    def begin(number: int, shard: Sequence[ScriptLine], folder: Path) -> _Rendering:
        script = folder / f"shard{number:05}.json"
        script.write_text(json.dumps([asdict(line) for line in shard]), encoding="utf-8")
        command = [sys.executable, "-m", "murmur.speech.corpus.render", str(script), str(folder), str(os.getpid())]
        with script.with_suffix(".err").open("wb") as errors:
            return _Rendering(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors), script)

    def finish(self) -> None:
        errors = self.script.with_suffix(".err")
        if self.process.returncode != 0:
            said = errors.read_text(encoding="utf-8", errors="replace")[-600:].strip()
            raise SynthesisError(f"rendering {self.script} failed with status {self.process.returncode}: {said}")
        self.script.unlink()
        errors.unlink()


def _render_shard(lines: Iterable[ScriptLine], folder: Path) -> None:
    engine = Synthesizer()
    for line in lines:
        spoken = engine.say(" ".join(line.words).lower(), line.voice).astype(np.float32) / 32768
        clean = soxr.resample(spoken, engine.rate_hz, RATE_HZ)
        soundfile.write(folder / f"{line.id}.flac", _as_recorded(clean, line), RATE_HZ, subtype="PCM_16")


def _as_recorded(clean: np.ndarray, line: ScriptLine) -> np.ndarray:
    rng = np.random.default_rng(line.seed)
    before, after = (int(seconds * RATE_HZ) for seconds in line.margin_seconds)
    speech = np.pad(clean, (before, after))
    if line.rt60_seconds > 0:
        speech = room.reverberate(speech, RATE_HZ, line.rt60_seconds, rng)
    noise = room.coloured_noise(len(speech), line.noise_slope, rng)
    return room.at_level(room.add_noise(speech, noise, line.snr_db), line.peak_db)


def _line(row: dict) -> ScriptLine:
    return ScriptLine(**{**row, "words": tuple(row["words"]), "voice": Voice(**row["voice"])})


if __name__ == "__main__":
    end_with_parent(int(sys.argv[3]))
    rows = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    _render_shard([_line(row) for row in rows], Path(sys.argv[2]))
