"""The folder of `murmur export`: written atomically, and read to transcribe without the run, its corpus or its cache.

It holds the network, which includes normalisation, prior and acoustic scale, the graph, symbol tables and metadata.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import nn

from murmur.core.counted import counted
from murmur.core.errors import SettingError
from murmur.core.whole_files import atomic_folder
from murmur.run.folder.provenance import versions
from murmur.speech.corpus.file_content import read_object
from murmur.speech.ctc import Units
from murmur.speech.decoding.decoder import DecodeOptions, Decoder
from murmur.speech.decoding.deployable import (
    FixedCmvn,
    JoinedInput,
    NoCmvn,
    ScoreNetwork,
    StreamedChunks,
    UtteranceCmvn,
    WholeUtterances,
    outputs_of,
    why_no_stream,
)
from murmur.speech.decoding.graph import DecodingGraph, with_insertion_penalty
from murmur.speech.decoding.graph_store import StoredGraph, write_graph
from murmur.speech.decoding.onnx_file import IVECTOR, OPSET, ExportError, libraries, session, write_onnx
from murmur.speech.decoding.onnx_file import run as run_session
from murmur.speech.decoding.recogniser import CtcBestPath, GraphSearch, Recogniser, spans_of
from murmur.speech.decoding.word_moving import Moved, move_words
from murmur.speech.features.analysis import LogMel
from murmur.speech.features.shards import sha256_of
from murmur.speech.lexicon.lexicon import write_symbols
from murmur.speech.recognition.trained_run import TrainedRun, analysed
from murmur.speech.recognition.transcriber import Transcriber
from murmur.speech.recognition.tuning import graph_folder
from murmur.speech.tasks.speaker_inputs import EXTRACTOR, SpeakerInputs, joined
from murmur.speech.tasks.word_search import WordSearch

Kind = Literal["whole", "stream"]
Cmvn = Literal["closest", "utterance", "global"]
Ivector = Literal["zero", "input"]
MARK = "murmur-export"
METADATA, TIMES, SPEAKERS = "metadata.json", "times.json", "speakers.json"
NO_GRAPH = "none: the best path of CTC"
OF_GRAPH = "graph.fst: input label k reads column k - 1 of log_probs, output labels are those of words.txt"
SPACE = "\u2581"  # sherpa-onnx prints it as a space


@dataclass(frozen=True)
class Wish:
    """The exported network, as the options of a command line name it.

    Attributes:
        kind: whole: utterance by utterance; stream: chunk by chunk, with states as inputs and outputs (one-directional
            LSTMs).
        cmvn: utterance: normalise each utterance by itself, as in training with task...cmvn=utterance; global: by the
            statistics of the training set. By default the closest to training.
        ivector: zero: without adaptation, the mean of all speakers in place of an i-vector; input: the i-vector is an
            input of the model, for runtimes that give one.
    """

    kind: Kind = "whole"
    cmvn: Cmvn = "closest"
    ivector: Ivector = "zero"


@dataclass(frozen=True, eq=False)
class _Tables:
    """Files beside the network: the names of the output columns, and the graph with its words, if there is one.

    `times` holds plain values from which words get their times.
    """

    tokens: Sequence[str]
    times: Mapping[str, Any]
    graph: DecodingGraph | None = None
    moved: Moved | None = None


def export_run(
    run: TrainedRun, wish: Wish, out: Path, found_by: WordSearch | None, options: DecodeOptions
) -> list[str]:
    """Write the folder and return lines that describe it.

    Raises:
        ExportError: this network cannot be written in that form, or onnxruntime computes different scores.
    """
    _check_one_pass(run)
    cmvn, normalised_by = _normaliser(run, wish)
    facts = _facts(run, wish, normalised_by)
    cmvn, ivector = _joined_input(run, wish, cmvn)
    why_not = why_no_stream(run.network, cmvn) if wish.kind == "stream" else None
    if why_not:  # before a graph is built
        raise ExportError(why_not)
    tables = _tables(run, found_by, options)
    # Without a graph there are no other scores to balance: the scores stay log posteriors.
    scale, columns = (1.0, None) if tables.graph is None else (options.acoustic_scale, tables.graph.columns)
    scores = ScoreNetwork(outputs_of(run.network), run.acoustic.log_prior, columns, scale)
    module: WholeUtterances | StreamedChunks = WholeUtterances(cmvn, run.network, scores, ivector)
    if wish.kind == "stream":
        module = StreamedChunks(cmvn, run.network, scores)
    graph = NO_GRAPH if tables.graph is None else OF_GRAPH
    facts |= {"acoustic_scale": f"{scale:g}", "vocab_size": str(scores.width), "graph": graph}
    with atomic_folder(out) as folder:
        worst = write_onnx(module, run.front.bins, facts, folder / "model.onnx")
        lines = _write_tables(folder, tables)
        if ivector:
            assert run.acoustic.speakers is not None
            _write_json(folder / SPEAKERS, run.acoustic.speakers.save(folder))
        _write_metadata(folder, facts, tables, options, worst)
    told = f"at most {worst:.1g} from the network; {run.weights}"
    return [f"{out}: opset {OPSET}, {wish.kind}, normalised by {normalised_by}, {told}", *lines]


def _normaliser(run: TrainedRun, wish: Wish) -> tuple[nn.Module, str]:
    """The normalisation module for the export, and its description.

    A single utterance comes without statistics of its speaker, so it is normalised as if it had its own speaker.
    """
    trained = run.acoustic.cmvn
    if trained == "none":
        if wish.cmvn != "closest":
            raise ExportError("the network was trained on features as they are: leave --cmvn out")
        return NoCmvn(), "nothing, as in training"
    if wish.cmvn == "global":
        assert run.acoustic.training is not None  # known for every front end that computes features
        return FixedCmvn(*run.acoustic.training()), f"the training set's statistics (training: each {trained}'s)"
    training = " (training: each speaker's)" if trained == "speaker" else ", as in training"
    return UtteranceCmvn(), f"each utterance's own statistics{training}"


def _check_one_pass(run: TrainedRun) -> None:
    """Check that the network's input needs no decoding passes."""
    speakers = run.acoustic.speakers
    if speakers is not None and speakers.gaussians is not None:
        raise ExportError(
            "the network's input has features adapted to the speaker (task.front.input.fmllr), whose transforms come"
            " from a decoding pass before the network's, and other runtimes make one pass: export a network of spectrum"
            " and i-vector"
        )


def _joined_input(run: TrainedRun, wish: Wish, cmvn: nn.Module) -> tuple[nn.Module, int]:
    """The module that makes the network's input, and the number of values of an i-vector that is an input."""
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


def _token_names(units: Units) -> list[str]:
    """Names of the columns as sherpa-onnx joins them to text: a word's first unit and a space begin with U+2581."""
    if units.kind in ("word", "phone"):
        return ["<blk>", *(SPACE + symbol for symbol in units.symbols)]
    return ["<blk>", *(SPACE if symbol == " " else symbol for symbol in units.symbols)]


def _tables(run: TrainedRun, search: WordSearch | None, options: DecodeOptions) -> _Tables:
    units = run.graphs.units
    if search is None:
        return _Tables(_token_names(run.units), {"units": run.units.kind, "symbols": list(run.units.symbols)})
    graph = StoredGraph.of(graph_folder(search)).read()
    if options.insertion_penalty:
        graph = with_insertion_penalty(graph, options.insertion_penalty)
    labels = range(2, len(graph.columns) + 1)
    names = ["<blk>", *(f"t{label}" for label in labels)] if units is None else _token_names(units)
    return _Tables(names, search.spans(graph.columns).to_json(), graph, move_words(graph.fst))


def _facts(run: TrainedRun, wish: Wish, normalised_by: str) -> dict[str, str]:
    """Metadata of the ONNX file, all strings; keys that sherpa-onnx reads have its names."""
    front, speakers, more = run.front, run.acoustic.speakers, {}
    if speakers is not None and speakers.extractor is not None:
        more = {"ivector": wish.ivector, "ivector_dim": str(speakers.extractor.dims)}
    return {
        **more,
        "model_author": "murmur",
        "version": versions(("murmur",))["murmur"],
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


def _write_tables(folder: Path, tables: _Tables) -> list[str]:
    """Write tokens.txt, times.json, and graph.fst with words.txt and graph.json; return lines that describe them."""
    write_symbols({name: label for label, name in enumerate(tables.tokens)}, folder / "tokens.txt")
    (folder / TIMES).write_text(json.dumps(tables.times, ensure_ascii=False), encoding="utf-8")
    graph, moved = tables.graph, tables.moved
    if graph is None or moved is None:
        return [f"{len(tables.tokens)} tokens, no graph: greedy decoding"]
    labels = np.arange(len(graph.columns), dtype=np.int32)  # the network has already reordered its columns
    facts = replace(graph.facts, states=moved.fst.num_states, dropped_by_sherpa=0)
    write_graph(DecodingGraph(moved.fst, graph.words, labels, len(labels), facts), folder, MARK)
    return [
        f"{counted(len(tables.tokens), 'column')}, {counted(len(graph.words), 'word')}, a graph of"
        f" {counted(facts.states, 'state')}",
        f"{moved.unread} words were on arcs that sherpa-onnx does not read: {moved.backwards} moved to the frame"
        f" before, {moved.forwards} to the frame after",
    ]


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_metadata(
    folder: Path, facts: Mapping[str, str], tables: _Tables, options: DecodeOptions, worst: float
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
        "insertion_penalty": options.insertion_penalty if tables.graph is not None else 0.0,
        "words_moved": tables.moved.unread if tables.moved is not None else 0,
        "sha256": {name: sha256_of(folder / name) for name in (*_vouched(tables.graph is not None), *own)},
    }
    _write_json(folder / METADATA, {**content, "digest": digest_of(content)})


def check_place(out: Path, force: bool) -> None:
    """Check that the folder is new or empty, or with `force` holds an earlier export.

    Raises:
        SettingError: the folder is a mount point, or holds an export or other files; describes them.
    """
    if os.path.ismount(out.resolve()):
        raise SettingError(f"{out} is a mount point, which cannot be replaced: name a folder in it")
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not _is_export(out):
        raise SettingError(f"{out} holds files that are not an export: name another folder")
    if not force:
        facts = read_object(out / METADATA, "export again to another folder")
        told = ", ".join(str(facts[name]) for name in ("comment", "kind", "graph") if name in facts)
        raise SettingError(f"{out} holds an export already ({told}): give another --out, or replace it with --force")


def _is_export(folder: Path) -> bool:
    """True if this program has written the folder."""
    mark = folder / METADATA
    return mark.is_file() and f'"{MARK}"' in mark.read_text(encoding="utf-8", errors="replace")


def looks_exported(folder: Path) -> bool:
    """True if a folder is an export, possibly without its metadata."""
    return _is_export(folder) or all((folder / name).is_file() for name in _vouched(graph=False))


def _vouched(graph: bool) -> Sequence[str]:
    """Files whose digests metadata.json holds; graph.json holds that of graph.fst."""
    return ("model.onnx", TIMES, "graph.json") if graph else ("model.onnx", TIMES)


def digest_of(content: Mapping[str, Any]) -> str:
    """Digest of metadata, without their own entry `digest`."""
    rest = {name: value for name, value in content.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class ExportedModel:
    """Network in onnxruntime, which includes normalisation, prior and acoustic scale."""

    runner: Any  # of onnxruntime
    front: LogMel
    stack: int  # input frames per output frame
    speakers: SpeakerInputs | None = None  # estimation of i-vectors, if they are an input

    def scores_of(self, pieces: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        """(U, L) scaled scores of the graph's labels, or log posteriors of CTC's units, of each piece of a speaker."""
        feats = analysed(pieces, self.front)
        if self.speakers is not None:
            cepstra = analysed(pieces, self.speakers.front)
            columns = self.speakers.columns(cepstra, dict.fromkeys(cepstra, ""), None)
            feats = {name: joined(name, spectrum_TF, columns) for name, spectrum_TF in feats.items()}
        yield from map(self._scores, feats.values())

    def _scores(self, feats_TF: np.ndarray) -> np.ndarray:
        spectrum_TF = feats_TF[:, : self.front.bins]
        given = {"x": spectrum_TF[None], "x_lens": np.array([len(feats_TF)])}
        if self.speakers is not None:
            given[IVECTOR] = feats_TF[:1, self.front.bins :]
        states = {i.name: i.shape for i in self.runner.get_inputs() if i.name in ("h", "c")}
        if states:  # a stream: all of it as one chunk
            given["x"] = np.pad(spectrum_TF, ((0, -len(feats_TF) % self.stack), (0, 0)))[None]
            given |= {name: np.zeros((shape[0], 1, shape[2]), np.float32) for name, shape in states.items()}
        scores_NUL, lengths_N, *_ = run_session(self.runner, given)
        found: np.ndarray = scores_NUL[0, : lengths_N[0]]
        return found


def exported_transcriber(
    folder: Path, beams: Mapping[str, float], longest_seconds: float, threads: int = 0
) -> Transcriber:
    """Make the transcriber of an exported folder; `beams` replace its own. `threads` compute; 0 for one per core.

    Raises:
        SettingError: the folder is damaged, or of another version, or has no beam to set.
        ExportError: onnxruntime is not installed, or cannot load the network.
    """
    try:
        facts = _read_facts(folder)
        # Scale and penalty are inside the export.
        inside = {"acoustic_scale": 1.0, "insertion_penalty": 0.0, "retries": facts["retries"]}
        recogniser = _recogniser(folder, DecodeOptions(**{**facts["search"], **beams, **inside}))
        front, stack = _front(facts), int(facts["subsampling_factor"])
        speakers = _speakers(folder) if facts.get("ivector") == "input" else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise SettingError(f"the export in {folder} is incomplete or damaged ({reason}): export it again") from error
    if isinstance(recogniser, CtcBestPath) and beams:
        raise SettingError(
            "a best path has no scale, penalty, beam or states to set: export the run with a --grammar, such as loop"
        )
    network = ExportedModel(session(folder / "model.onnx", threads=threads), front, stack, speakers)
    return Transcriber(network, recogniser, longest_seconds)


def _read_facts(folder: Path) -> dict[str, Any]:
    """Read metadata.json and verify the digests of all files."""
    facts: dict[str, Any] = json.loads((folder / METADATA).read_text(encoding="utf-8"))
    changed = [name for name, digest in facts["sha256"].items() if sha256_of(folder / name) != digest]
    if facts["digest"] != digest_of(facts) or changed:
        raise ValueError(f"{(changed or [METADATA])[0]} is not what was written there")
    return facts


def _recogniser(folder: Path, options: DecodeOptions) -> Recogniser:
    times = json.loads((folder / TIMES).read_text(encoding="utf-8"))
    if "units" in times:
        return CtcBestPath(Units(times["units"], tuple(times["symbols"])))
    return GraphSearch(Decoder(StoredGraph.of(folder).read(), options), spans_of(times))


def _speakers(folder: Path) -> SpeakerInputs:
    values = json.loads((folder / SPEAKERS).read_text(encoding="utf-8"))
    return SpeakerInputs.open(values, {EXTRACTOR: folder / EXTRACTOR}, None)


def _front(facts: Mapping[str, Any]) -> LogMel:
    return LogMel(
        rate_hz=int(facts["sample_rate"]),
        bins=int(facts["feature_dim"]),
        low_hz=float(facts["low_freq"]),
        high_hz=float(facts["high_freq"]),
        frame_length_seconds=float(facts["frame_length_ms"]) / 1000,
        frame_shift_seconds=float(facts["frame_shift_ms"]) / 1000,
    )
