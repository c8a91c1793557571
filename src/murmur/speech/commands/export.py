"""`murmur export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from murmur.commands.options import grouped
from murmur.core.path_checks import folder_to_write
from murmur.core.printable import say
from murmur.run.folder.lock import beside, locked
from murmur.run.timed import timed
from murmur.speech.commands.model_options import OfRun, OwnVocabulary, Search
from murmur.speech.recognition.export import Wish, check_place, export_run
from murmur.speech.recognition.trained_run import open_run

app = typer.Typer(add_completion=False)

Model = Annotated[Path, typer.Argument(help="Folder of a run, or one of its .safetensors files.")]
To = Annotated[Literal["onnx"], typer.Option(help="Format of the network.")]
Out = Annotated[Path, typer.Option(help="Folder of the export: a new one, or with --force that of an earlier export.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the export in --out.")]


@app.command()
@grouped
def export(
    model: Model,
    *,
    out: Out,
    to: To = "onnx",
    wish: Wish,
    own: OwnVocabulary,
    search: Search,
    of_run: OfRun,
    force: Force = False,
) -> None:
    """Export a trained model: network, normalisation, prior, graph, tokens and words in one folder.

    Example: murmur export runs/demo/one-learner --to onnx --out exported

    A finished run is enough, without corpus and cache. The folder holds model.onnx, tokens.txt, metadata.json,
    times.json and, with a graph, graph.fst, graph.json and words.txt, as sherpa-onnx's from_zipformer_ctc expects them.
    murmur transcribe reads it, examples/decode_export.py decodes it with onnxruntime. The export's scores are compared
    with the network's before the folder is written; docs/export.md describes the decoding of each kind of model. The
    model includes the acoustic scale, the graph the cost of a word.
    """
    folder_to_write(out, "--out")
    with locked(beside(out.resolve())):
        check_place(out, force)
        request = own.request(search)
        run = open_run(of_run.wanted(model, request))
        found, options = run.searched(request)
        with timed(f"exporting to {to}"):
            lines = export_run(run, wish, out, found, options)
    say("\n".join(lines))
