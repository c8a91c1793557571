"""`murmur align`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from murmur.commands.options import Jobs, Settings
from murmur.core.counted import counted
from murmur.core.errors import SettingError, nearest
from murmur.core.path_checks import folder_to_write
from murmur.core.printable import say
from murmur.engine.checkpoints.checkpoint import write_whole
from murmur.run.configuration import resolved
from murmur.run.task_checks import task_to_do
from murmur.run.timed import timed
from murmur.speech.corpus.atomic_file import write_text_whole
from murmur.speech.corpus.corpus import Corpus
from murmur.speech.decoding.decoder import Hypothesis
from murmur.speech.decoding.word_times import WordTimer
from murmur.speech.hmm.phone_times import write_ctm
from murmur.speech.lexicon.lexicon import SILENCE
from murmur.tasks.aligns import Aligns
from murmur.tasks.hybrid.stage import Stage

app = typer.Typer(add_completion=False)
PARTS = ("train", "dev", "test")
FRAME_SECONDS = 0.01


Source = Annotated[
    str, typer.Argument(metavar="EXPERIMENT", help="A hybrid experiment: a Python file or the name of a recipe.")
]
Out = Annotated[Path, typer.Option(help="Folder for the alignments; each part has a folder below it.")]
Parts = Annotated[
    list[str] | None, typer.Option("--part", help="train, dev or test; repeatable; train and dev by default.")
]
StageOption = Annotated[
    str | None, typer.Option(help="Gaussian system: monophone, triphone, lda or sat; the last one by default.")
]


@app.command()
def align(
    source: Source,
    out: Out = Path("runs/align"),
    parts: Parts = None,
    stage: StageOption = None,
    settings: Settings = None,
    jobs: Jobs = None,
) -> None:
    """Train the Gaussian systems of a hybrid experiment and write their alignments.

    Example: murmur align yesno --set task.corpus=FOLDER --out runs/align --jobs 2

    Each part gets phones.ctm and words.ctm (lines of utterance, 1, start, duration, label; in seconds), pdfs.npz (for
    each utterance an array with one pdf per frame: the targets of a network) and summary.json (frames, pdfs, share of
    silence, utterances without an alignment). Every stage is stored in task.cache; after an interruption the same
    command continues with the next stage.
    """
    task = resolved(source, settings or (), jobs).task
    if not isinstance(task, Aligns):
        raise SettingError(
            f"{source} trains a {type(task).__name__}, which needs no alignment: name a hybrid experiment"
        )
    check(task, parts or (), stage, out)
    with timed("Gaussian systems"):
        systems = {each.name: each for each in task.systems()}
    system = systems[stage or list(systems)[-1]]
    for part in parts or ("train", "dev"):
        corpus = task.utterances(part)
        with timed(f"aligning {part}"):
            tids = task.aligned(system, part)
        facts = write_part(system, corpus, tids, out / part)
        say(
            f"{part}: {counted(facts['utterances'], 'utterance')}, {counted(facts['frames'], 'frame')},"
            f" {facts['silence']:.0%} silence; {out / part}"
        )


def check(task: Aligns, parts: Sequence[str], stage: str | None, out: Path) -> None:
    """Check names and paths before anything is prepared.

    Raises:
        SettingError, CorpusError: something is missing or unknown; the message names it.
    """
    for part in parts:
        if part not in PARTS:
            raise SettingError(f"--part {part!r} is not one of {', '.join(PARTS)}{nearest(part, PARTS)}")
    names = task.system_names()
    if stage is not None and stage not in names:
        raise SettingError(f"the experiment has no stage {stage!r}{nearest(stage, names)}")
    folder_to_write(out, "--out")
    task_to_do(task)


def write_part(system: Stage, corpus: Corpus, tids: Mapping[str, np.ndarray], out: Path) -> dict[str, Any]:
    """Write the alignments of one part; return the contents of summary.json."""
    out.mkdir(parents=True, exist_ok=True)
    model = system.model
    write_ctm(model, tids, out / "phones.ctm")
    write_text_whole(out / "words.ctm", "".join(word_lines(system, corpus.texts, tids)))
    pdfs: dict[str, Any] = dict(model.pdf_ids(tids))
    beside = out / ".pdfs.npz"
    beside.unlink(missing_ok=True)  # left by a killed program
    with beside.open("xb") as file:
        np.savez_compressed(file, **pdfs)
    beside.replace(out / "pdfs.npz")
    silence = list(model.lang.phones).index(SILENCE)
    frames = sum(len(tids_T) for tids_T in tids.values())
    quiet = sum(int((model.transitions.phone_of[tids_T] == silence).sum()) for tids_T in tids.values())
    facts = {
        "system": system.name,
        "digest": system.key,
        "utterances": len(tids),
        "frames": frames,
        "pdfs": model.num_pdfs,
        "silence": quiet / max(1, frames),
        "lost": sorted(set(corpus.texts) - set(tids)),
    }
    write_whole(out / "summary.json", json.dumps(facts, indent=1, ensure_ascii=False).encode())
    return facts


def word_lines(system: Stage, texts: Mapping[str, str], tids: Mapping[str, np.ndarray]) -> list[str]:
    """CTM lines of the words of aligned utterances."""
    lines, timer = [], WordTimer.of(system.model.lang, system.model.transitions)
    for utterance in sorted(tids):
        path = Hypothesis(tuple(texts[utterance].split()), tids[utterance], 0.0, True)
        for time in timer(path):
            start, seconds = time.first_frame * FRAME_SECONDS, time.num_frames * FRAME_SECONDS
            lines.append(f"{utterance} 1 {start:.3f} {seconds:.3f} {time.word}\n")
    return lines
