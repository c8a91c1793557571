"""Final test of a run: the model that represents it, its printed lines and score.json."""

from __future__ import annotations

import json
import logging
import math
import shutil
import time
from dataclasses import asdict
from pathlib import Path

from torch import nn

from murmur.core.printable import say
from murmur.engine.checkpoints.checkpoint import write_whole
from murmur.engine.experiment import Experiment
from murmur.engine.task import REPORTS, DescribesModel, Recognises, test_in
from murmur.execution.told_once import told_once
from murmur.run.folder.contents import DESCRIPTION, RECOGNISER, refuse_links
from murmur.run.request import RunRequest
from murmur.run.saved_model import Initialised, choose, read_into, told_choice

log = logging.getLogger(__name__)
RECOGNISED = "recognised.jsonl"
DECODED = "decoded"  # folder with the results of an unfinished test


def report(request: RunRequest, experiment: Experiment, model: nn.Module) -> None:
    """Test the model that represents the run, chosen by held-out loss alone; print its lines and save its figures."""
    refuse_links(request.out)
    name, stem = choose(request.out, request.tested, experiment.digest())
    facts = read_into(model, stem)
    figures = facts["figures"]
    averaged = f" (mean of {len(facts['marks'])} evaluation points)" if "marks" in facts else ""
    log.info("testing the %s model%s, held-out loss %.5g", name, averaged, figures.get("loss", math.nan))
    began = time.monotonic()
    with told_once(log.info):
        score = test_in(experiment.task, model, request.out / DECODED)
    seconds = time.monotonic() - began
    told = told_choice(stem, request.tested, facts)
    shown = [*score.lines[: score.others], *(f"{line}; {told}" for line in score.lines[score.others :])]
    for line in shown:
        say(line)
    saved = {
        "test": dict(score.figures),
        "heldout": figures,
        "model": {"name": name, "minibatches": facts["minibatches"], "marks": facts.get("marks")},
        "lines": shown,
        "test_seconds": seconds,
    }
    save_companions(experiment, request.out)
    keep_reports(request.out)
    if score.recognised:
        lines = (json.dumps(asdict(each), ensure_ascii=False) + "\n" for each in score.recognised)
        write_whole(request.out / RECOGNISED, "".join(lines).encode())
    write_whole(request.out / "score.json", json.dumps(saved, indent=1).encode())  # written last: it completes the run
    shutil.rmtree(request.out / DECODED, ignore_errors=True)


def keep_reports(out: Path) -> None:
    """Move the reports of errors out of the folder that is removed after the test."""
    for report in sorted((out / DECODED / REPORTS).glob("*")):
        (out / REPORTS).mkdir(exist_ok=True)
        report.replace(out / REPORTS / report.name)


def save_companions(experiment: Experiment, out: Path) -> None:
    """Save everything besides the weights that the model's use needs: the recogniser, or the task's description."""
    task = experiment.task.task if isinstance(experiment.task, Initialised) else experiment.task
    if isinstance(task, Recognises):
        task.recogniser().save(out / RECOGNISER)
    elif isinstance(task, DescribesModel):
        task.save_description(out / DESCRIPTION)
