"""`murmur export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from murmur.commands.options import OfRun, Settings, Trust, Weights
from murmur.commands.vocabulary_options import (
    DevOption,
    GrammarOption,
    GuessOption,
    LexiconOption,
    LmOption,
    WordsOption,
    chosen,
)
from murmur.core.path_checks import folder_to_write
from murmur.core.printable import say
from murmur.recognition.export import Cmvn, Ivector, Kind, Wish, check_place, export_run
from murmur.recognition.trained_run import Wanted, open_run
from murmur.recognition.tuning import SearchRequest
from murmur.run.folder.lock import beside, locked
from murmur.run.timed import timed

app = typer.Typer(add_completion=False)
NORMALISATION, SEARCH = "Normalisation", "Search"

Model = Annotated[Path, typer.Argument(help="Folder of a run, or one of its .safetensors files.")]
To = Annotated[Literal["onnx"], typer.Option(help="Format of the network.")]
Out = Annotated[Path, typer.Option(help="Folder of the export: a new one, or with --force that of an earlier export.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the export in --out.")]
KindOption = Annotated[
    Kind,
    typer.Option(
        help="whole: utterance by utterance; stream: chunk by chunk, with states as inputs and outputs"
        " (one-directional LSTMs)."
    ),
]
CmvnOption = Annotated[
    Cmvn,
    typer.Option(
        help="utterance: normalise each utterance by itself, as in training with task...cmvn=utterance; global: by the"
        " statistics of the training set. By default the closest to training.",
        rich_help_panel=NORMALISATION,
    ),
]
IvectorOption = Annotated[
    Ivector,
    typer.Option(
        help="zero: without adaptation, the mean of all speakers in place of an i-vector; input: the i-vector is an"
        " input of the model, for runtimes that give one.",
        rich_help_panel=NORMALISATION,
    ),
]
Scale = Annotated[
    float | None,
    typer.Option(
        min=1e-6, help="Acoustic scale, stored in the model; by default the tuned one.", rich_help_panel=SEARCH
    ),
]
Penalty = Annotated[
    float | None,
    typer.Option(help="Cost of a word, stored in the graph; by default the tuned one.", rich_help_panel=SEARCH),
]


@app.command()
def export(
    model: Model,
    out: Out,
    to: To = "onnx",
    kind: KindOption = "whole",
    cmvn: CmvnOption = "closest",
    ivector: IvectorOption = "zero",
    grammar: GrammarOption = None,
    lm: LmOption = None,
    words: WordsOption = None,
    lexicon: LexiconOption = None,
    guess: GuessOption = "auto",
    dev: DevOption = None,
    scale: Scale = None,
    penalty: Penalty = None,
    experiment: OfRun = None,
    trust: Trust = False,
    weights: Weights = None,
    settings: Settings = None,
    force: Force = False,
) -> None:
    """Export a trained model: network, normalisation, prior, graph, tokens and words in one folder.

    Example: murmur export runs/demo/one-learner --to onnx --out exported

    A finished run is enough, without corpus and cache. The folder holds model.onnx, tokens.txt, metadata.json,
    times.json and, with a graph, graph.fst, graph.json and words.txt, as sherpa-onnx's from_zipformer_ctc expects them.
    murmur transcribe reads it, examples/decode_export.py decodes it with onnxruntime. The export's scores are compared
    with the network's before the folder is written; docs/export.md describes the decoding of each kind of model.
    """
    folder_to_write(out, "--out")
    check_place(out, force)
    given = {"acoustic_scale": scale, "insertion_penalty": penalty}
    with locked(beside(out.resolve())):
        request = SearchRequest(chosen(grammar, lm, words, lexicon, guess), dev, given)
        run = open_run(Wanted(model, experiment, tuple(settings or ()), request, trust, weights))
        search, options = run.searched(request)
        with timed(f"exporting to {to}"):
            lines = export_run(run, Wish(out, kind, cmvn, force, ivector), search, options)
    say("\n".join(lines))
