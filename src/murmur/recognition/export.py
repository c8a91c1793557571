"""Writes the folder of `murmur export` atomically: network, graph, symbol tables, metadata."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import nn

from murmur.core.counted import counted
from murmur.core.errors import SettingError
from murmur.recognition.trained_run import TrainedRun
from murmur.recognition.tuning import graph_folder
from murmur.speech.corpus.atomic_folder import atomic_folder
from murmur.speech.corpus.file_errors import read_object
from murmur.speech.ctc.criterion import Units
from murmur.speech.decoding.decoder import DecodeOptions
from murmur.speech.decoding.deployable import (
    FixedCmvn,
    JoinedInput,
    NoCmvn,
    Readout,
    ScoreNetwork,
    StreamedChunks,
    UtteranceCmvn,
    WholeUtterances,
    outputs_of,
    why_no_stream,
)
from murmur.speech.decoding.graph import DecodingGraph, with_insertion_penalty
from murmur.speech.decoding.graph_store import StoredGraph, write_graph
from murmur.speech.decoding.onnx_file import OPSET, ExportError, libraries, write_onnx
from murmur.speech.decoding.word_moving import Moved, move_words
from murmur.speech.features.analysis import LogMel
from murmur.speech.features.shards import sha256_of
from murmur.speech.lexicon.lexicon import write_symbols
from murmur.tasks.speaker_inputs import EXTRACTOR
from murmur.tasks.word_search import WordSearch

Kind = Literal["whole", "stream"]
Cmvn = Literal["closest", "utterance", "global"]
Ivector = Literal["zero", "input"]
MARK = "murmur-export"
METADATA, TIMES, SPEAKERS = "metadata.json", "times.json", "speakers.json"
SPACE = "\u2581"  # sherpa-onnx prints it as a space


@dataclass(frozen=True)
class Wish:
    """Settings of an export.

    Attributes:
        out: Folder.
        kind: Whole utterances or chunks.
        cmvn: Source of the normalisation statistics.
        force: True if an export in the folder may be replaced.
        ivector: "zero" for the mean of the prior in place of an i-vector, "input" for an input of the model.
    """

    out: Path
    kind: Kind = "whole"
    cmvn: Cmvn = "closest"
    force: bool = False
    ivector: Ivector = "zero"


@dataclass(frozen=True, eq=False)
class ExportedSearch:
    """Files beside the network: the names of the output columns, and the graph with its words, if there is one.

    `times` holds plain values from which words get their times.
    """

    tokens: Sequence[str]
    times: Mapping[str, Any]
    columns: np.ndarray | None = None
    graph: DecodingGraph | None = None
    moved: Moved | None = None


def export_run(run: TrainedRun, wish: Wish, found_by: WordSearch | None, options: DecodeOptions) -> list[str]:
    """Write the folder and return lines that describe it.

    Raises:
        ExportError: this network cannot be written in that form, or onnxruntime computes different scores.
        SettingError: the folder holds files that are not an export, or an export that may not be replaced.
    """
    check_place(wish.out, wish.force)
    check_one_pass(run)
    front = run.front
    cmvn, normalised_by = normaliser(run, wish)
    cmvn, ivector = joined_input(run, wish, cmvn)
    why_not = why_no_stream(run.network, cmvn) if wish.kind == "stream" else None
    if why_not:  # before a graph is built
        raise ExportError(why_not)
    search = _search(run, found_by, options)
    # Without a graph there are no other scores to balance: the scores stay log posteriors.
    scale = options.acoustic_scale if search.graph is not None else 1.0
    scores = ScoreNetwork(Readout(run.log_prior, search.columns, scale), outputs_of(run.network))
    module: WholeUtterances | StreamedChunks = WholeUtterances(cmvn, run.network, scores, ivector)
    if wish.kind == "stream":
        module = StreamedChunks(cmvn, run.network, scores)
    facts = _facts(run, wish, front, normalised_by)
    facts |= {"acoustic_scale": f"{scale:g}", "vocab_size": str(scores.width), "graph": _of(search)}
    with atomic_folder(wish.out) as folder:
        worst = write_onnx(module, front.bins, facts, folder / "model.onnx")
        lines = _write_tables(folder, search)
        if ivector:
            _write_speakers(folder, run)
        _write_metadata(folder, facts, search, options, worst)
    told = f"at most {worst:.1g} from the network; {run.weights}"
    first = f"{wish.out}: opset {OPSET}, {wish.kind}, normalised by {normalised_by}, {told}"
    return [first, *lines]


def normaliser(run: TrainedRun, wish: Wish) -> tuple[nn.Module, str]:
    """Return the normalisation module for the export, and its description.

    A single utterance comes without statistics of its speaker, so it is normalised as if it had its own speaker.

    Raises:
        ExportError: a normalisation is requested, but the network was trained without one.
    """
    if run.cmvn == "none":
        if wish.cmvn != "closest":
            raise ExportError("the network was trained on features as they are: leave --cmvn out")
        return NoCmvn(), "nothing, as in training"
    if wish.cmvn == "global":
        assert run.acoustic.training is not None  # known for every front end that computes features
        return FixedCmvn(*run.acoustic.training()), f"the training set's statistics (training: each {run.cmvn}'s)"
    if run.cmvn == "speaker":
        return UtteranceCmvn(), "each utterance's own statistics (training: each speaker's)"
    return UtteranceCmvn(), "each utterance's own statistics, as in training"


def check_one_pass(run: TrainedRun) -> None:
    """Check that the network's input needs no decoding passes.

    Raises:
        ExportError: it has features adapted to the speaker.
    """
    speakers = run.acoustic.speakers
    if speakers is not None and speakers.gaussians is not None:
        raise ExportError(
            "the network's input has features adapted to the speaker (task.front.input.fmllr), whose transforms come"
            " from a decoding pass before the network's, and other runtimes make one pass: export a network of spectrum"
            " and i-vector"
        )


def joined_input(run: TrainedRun, wish: Wish, cmvn: nn.Module) -> tuple[nn.Module, int]:
    """Return the module that makes the network's input, and the number of values of an i-vector that is an input.

    Raises:
        ExportError: an i-vector is requested where it cannot be an input.
    """
    speakers, order = run.acoustic.speakers, run.acoustic.delta_order
    extractor = None if speakers is None else speakers.extractor
    if wish.ivector == "input" and (extractor is None or wish.kind == "stream"):
        reason = "the network takes none" if extractor is None else "a stream begins before there is speech for one"
        raise ExportError(f"--ivector input: {reason}: leave --ivector out")
    if extractor is None and not order:
        return cmvn, 0
    dims = 0 if extractor is None else extractor.dims
    made = JoinedInput(cmvn, order, np.zeros(dims), run.acoustic.normalised)
    return made, dims if wish.ivector == "input" else 0


def token_names(units: Units) -> list[str]:
    """Names of the columns as sherpa-onnx joins them to text: a word's first unit and a space begin with U+2581."""
    if units.kind in ("word", "phone"):
        return ["<blk>", *(SPACE + symbol for symbol in units.symbols)]
    return ["<blk>", *(SPACE if symbol == " " else symbol for symbol in units.symbols)]


def _search(run: TrainedRun, search: WordSearch | None, options: DecodeOptions) -> ExportedSearch:
    units = run.graphs.units
    if search is None:
        assert units is not None  # networks without units have no best path
        return ExportedSearch(token_names(units), {"units": units.kind, "symbols": list(units.symbols)})
    graph = StoredGraph.of(graph_folder(search)).read()
    if options.insertion_penalty:
        graph = with_insertion_penalty(graph, options.insertion_penalty)
    columns = range(2, len(graph.columns) + 1)
    names = token_names(units) if units is not None else ["<blk>", *(f"t{label}" for label in columns)]
    return ExportedSearch(names, search.spans(graph.columns).to_json(), graph.columns, graph, move_words(graph.fst))


def _of(search: ExportedSearch) -> str:
    if search.graph is None:
        return "none: the best path of CTC"
    return "graph.fst: input label k reads column k - 1 of log_probs, output labels are those of words.txt"


def _facts(run: TrainedRun, wish: Wish, front: LogMel, normalised_by: str) -> dict[str, str]:
    """Metadata of the ONNX file, all strings; keys that sherpa-onnx reads have its names."""
    speakers, more = run.acoustic.speakers, {}
    if speakers is not None and speakers.extractor is not None:
        more = {"ivector": wish.ivector, "ivector_dim": str(speakers.extractor.dims)}
    return {
        **more,
        "model_author": "murmur",
        "version": version("murmur"),
        "comment": run.name,
        "kind": wish.kind,
        "sample_rate": str(front.rate_hz),
        "feature_dim": str(front.bins),
        "features": "log mel energies as Kaldi's and lhotse's fbank",
        "samples": "in [-1, 1], normalize_samples=1",
        "dither": "0",
        "snip_edges": "0",
        "low_freq": f"{front.low_hz:g}",
        "high_freq": f"{front.high_hz:g}",
        "frame_length_ms": f"{1000 * front.frame_length_seconds:g}",
        "frame_shift_ms": f"{1000 * front.frame_shift_seconds:g}",
        "subsampling_factor": str(run.stack),
        "normalised_by": normalised_by,
    }


def _write_tables(folder: Path, search: ExportedSearch) -> list[str]:
    """Write tokens.txt, times.json, and graph.fst with words.txt and graph.json; return lines that describe them."""
    write_symbols({name: label for label, name in enumerate(search.tokens)}, folder / "tokens.txt")
    (folder / TIMES).write_text(json.dumps(search.times, ensure_ascii=False), encoding="utf-8")
    if search.graph is None or search.moved is None:
        return [f"{len(search.tokens)} tokens, no graph: greedy decoding"]
    fst, moved = search.moved.fst, search.moved
    labels = np.arange(len(search.graph.columns), dtype=np.int32)  # the network has already reordered its columns
    facts = replace(search.graph.facts, states=fst.num_states, dropped_by_sherpa=0)
    write_graph(DecodingGraph(fst, search.graph.words, labels, len(labels), facts), folder, MARK)
    return [
        f"{counted(len(search.tokens), 'column')}, {counted(len(search.graph.words), 'word')}, a graph of"
        f" {counted(fst.num_states, 'state')}",
        f"{moved.unread} words were on arcs that sherpa-onnx does not read: {moved.backwards} moved to the frame"
        f" before, {moved.forwards} to the frame after",
    ]


def _write_speakers(folder: Path, run: TrainedRun) -> None:
    """Write the estimation of i-vectors: the extractor, and the values of speakers.json."""
    assert run.acoustic.speakers is not None  # an i-vector is an input
    values = json.dumps(run.acoustic.speakers.save(folder), indent=1)
    (folder / SPEAKERS).write_text(values + "\n", encoding="utf-8")


def _write_metadata(
    folder: Path, facts: Mapping[str, str], search: ExportedSearch, options: DecodeOptions, worst: float
) -> None:
    own = [name for name in (SPEAKERS, EXTRACTOR) if (folder / name).is_file()]
    content = {
        "format": MARK,
        **facts,
        "opset": OPSET,
        "libraries": list(libraries()),
        "greatest_difference": worst,
        "search": {"beam": options.beam, "max_active": options.max_active, "min_active": options.min_active},
        "retries": options.retries,
        "insertion_penalty": options.insertion_penalty if search.graph is not None else 0.0,
        "words_moved": search.moved.unread if search.moved is not None else 0,
        "sha256": {name: sha256_of(folder / name) for name in (*vouched(search.graph is not None), *own)},
    }
    content["digest"] = digest_of(content)
    (folder / METADATA).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def check_place(out: Path, force: bool) -> None:
    """Check that the folder is new or empty, or with `force` holds an earlier export.

    Raises:
        SettingError: the folder is a mount point, or holds an export or other files; describes them.
    """
    if os.path.ismount(out.resolve()):
        raise SettingError(f"{out} is a mount point, which cannot be replaced: name a folder in it")
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not is_export(out):
        raise SettingError(f"{out} holds files that are not an export: name another folder")
    if not force:
        facts = read_object(out / METADATA, "export again to another folder")
        told = ", ".join(str(facts[name]) for name in ("comment", "kind", "graph") if name in facts)
        raise SettingError(f"{out} holds an export already ({told}): give another --out, or replace it with --force")


def is_export(folder: Path) -> bool:
    """True if this program has written the folder."""
    mark = folder / METADATA
    return mark.is_file() and f'"{MARK}"' in mark.read_text(encoding="utf-8", errors="replace")


def vouched(graph: bool) -> Sequence[str]:
    """Files whose digests metadata.json holds; graph.json holds that of graph.fst."""
    return ("model.onnx", TIMES, "graph.json") if graph else ("model.onnx", TIMES)


def digest_of(content: Mapping[str, Any]) -> str:
    """Digest of metadata, without their own entry `digest`."""
    rest = {name: value for name, value in content.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
