"""Work on one block of a corpus in a pass, which `Workers` can map: training graphs, best paths, sums.

Before every call into the library, its arguments are checked for values that it would read out of bounds or abort on;
objects that it refers to are kept alive here.

Shapes: T or N frames, F features, P pdfs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import kaldi_hmm_gmm as khg
import kaldifst
import numpy as np
from numpy.typing import NDArray

from murmur.core.whole_files import appearing
from murmur.speech.hmm.blocks import Block
from murmur.speech.hmm.mixtures import Additive, MixtureStats, check_frames, expect
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.transitions import Transitions
from murmur.speech.hmm.tree import IntArray
from murmur.speech.lexicon.lexicon import Lang
from murmur.speech.lexicon.lexicon_fst import training_lexicon


@dataclass(frozen=True)
class AlignOptions:
    """Search options. Scales multiply log probabilities; beams are in the scaled scores.

    Attributes:
        acoustic_scale: factor on the acoustic log-likelihoods.
        transition_scale: factor on the log probabilities of transitions that leave a state.
        self_loop_scale: factor on the log probabilities of self-loops.
        beam: largest distance from the best path; worse paths are dropped.
        retry_beam: beam of a second try if no path reached the end.
    """

    acoustic_scale: float = 0.1
    transition_scale: float = 1.0
    self_loop_scale: float = 0.1
    beam: float = 10.0
    retry_beam: float = 40.0

    def __post_init__(self) -> None:
        if not (self.acoustic_scale > 0 and 0 < self.beam < self.retry_beam):
            raise ValueError(f"scale and beams must be positive and beam < retry_beam, got {self}")


class BestPath(NamedTuple):
    """The transition-ids of the frames, and their unscaled total log-likelihood."""

    tids: IntArray
    log_likelihood: float


class Scores(NamedTuple):
    """Scaled scores for the library's search, with the objects that it uses but does not keep alive."""

    decodable: Any
    kept: tuple[Any, ...]


class GraphCompiler:
    """Makes training graphs from transition-ids to words, without probabilities, which change from pass to pass."""

    def __init__(self, lang: Lang, transitions: Transitions) -> None:
        self._lang = lang
        # The library's compiler refers to the transition model and the tree without keeping them alive.
        self._transitions = transitions
        self._compiler = khg.TrainingGraphCompiler(
            trans_model=transitions.library,
            ctx_dep=transitions.tree,
            lex_fst=training_lexicon(lang),
            disambig_syms=[],
            opts=khg.TrainingGraphCompilerOptions(transition_scale=0.0, self_loop_scale=0.0),
        )

    def compile(self, text: str) -> kaldifst.StdVectorFst:
        """The graph of one transcript.

        Raises:
            KeyError: a word is not in the lexicon.
        """
        return self._compiler.compile_graph_from_text(self._lang.word_ids(text))


def equal_length_path(graph: kaldifst.StdVectorFst, frames: int, seed: int) -> IntArray | None:
    """A random path of `frames` transitions with states of about equal length; None if there is none."""
    found, path = kaldifst.equal_align(ifst=graph, length=frames, rand_seed=seed, num_retries=10)
    if not found:
        return None
    return np.array(kaldifst.get_linear_symbol_sequence(path)[1], dtype=np.int32)


def gmm_scores(
    mixtures: khg.AmDiagGmm, transitions: Transitions, feats_TF: NDArray[np.float32], scale: float
) -> Scores:
    """Scaled scores of frames under mixtures, computed by the library on demand.

    Raises:
        ValueError: the number of features is not the mixtures', or some are not finite.
    """
    check_frames(feats_TF, mixtures.dim)
    decodable = khg.DecodableAmDiagGmmScaled(am=mixtures, tm=transitions.library, feats=feats_TF, scale=scale)
    return Scores(decodable, (mixtures, transitions, feats_TF))


def matrix_scores(transitions: Transitions, scores_TP: NDArray[np.float32], scale: float) -> Scores:
    """Scores of a network by pdf, e.g. log-posteriors minus log-priors, gathered to one column per transition-id.

    Raises:
        ValueError: the number of columns is not the number of pdfs, or a score is not finite.
    """
    num_pdfs = transitions.library.num_pdfs
    if scores_TP.ndim != 2 or scores_TP.shape[1] != num_pdfs:
        raise ValueError(f"scores of shape {scores_TP.shape} where (frames, {num_pdfs}) is needed: one column per pdf")
    if not np.isfinite(scores_TP).all():
        raise ValueError("scores hold values that are not finite: look at the network's output")
    scaled = (scores_TP * np.float32(scale)).astype(np.float32, copy=False)
    columns = np.ascontiguousarray(scaled[:, transitions.pdf_of[1:]])
    return Scores(khg.DecodableCtc(columns), (columns,))


def best_path(
    utterance: str, graph: kaldifst.StdVectorFst, transitions: Transitions, scores: Scores, options: AlignOptions
) -> BestPath | None:
    """The most likely path through a training graph; None if even the wide beam finds none."""
    weighted = graph.copy()
    khg.add_transition_probs(
        trans_model=transitions.library,
        transition_scale=options.transition_scale,
        self_loop_scale=options.self_loop_scale,
        fst=weighted,
    )
    done, _, _, log_likelihood, _, tids, *_ = khg.align_utterance_wrapper(
        config=khg.AlignConfig(beam=options.beam, retry_beam=options.retry_beam),
        utt=utterance,
        acoustic_scale=options.acoustic_scale,
        fst=weighted,
        decodable=scores.decodable,
        num_done=0,
        num_error=0,
        num_retried=0,
        tot_like=0.0,
        frame_count=0,
    )
    if done != 1:
        return None
    return BestPath(np.array(tids, dtype=np.int32), float(log_likelihood))


@dataclass(frozen=True)
class PassStats(Additive):
    """The E step's sums for mixtures and transitions.

    Attributes:
        mixtures: sums of the mixtures.
        transition_counts: (I,) count of each transition-id.
    """

    mixtures: MixtureStats
    transition_counts: NDArray[np.float64]


Graphs = Mapping[str, kaldifst.StdVectorFst]


def graphs_of(block: Block, model: HmmGmm) -> Graphs:
    """The block's training graphs for the model's tree, read from their file, or made and written."""
    path = None if block.stem is None else block.stem.with_name(f"{block.stem.name}-{model.tying[:16]}.graphs")
    if path is not None and path.is_file():
        return _read_graphs(block, path)
    compiler = GraphCompiler(model.lang, model.transitions)
    graphs = {utterance: compiler.compile(text) for utterance, text in block.texts.items()}
    if path is not None:
        with appearing(path) as beside:
            writer = kaldifst.VectorFstWriter(f"ark:{beside}")
            for number, graph in enumerate(graphs.values()):
                writer.write(str(number), graph)
            writer.close()
    return graphs


def _read_graphs(block: Block, path: Path) -> Graphs:
    graphs = {}
    reader = kaldifst.SequentialVectorFstReader(f"ark:{path}")
    for utterance in block.texts:
        graphs[utterance] = reader.value.copy()
        reader.next()
    reader.close()
    return graphs


def realign(block: Block, model: HmmGmm, options: AlignOptions) -> dict[str, str]:
    """Replace the block's alignments by the best paths under the model; return {utterance: reason} of failures."""
    return _take(block, {u: _best(block, u, graph, model, options) for u, graph in graphs_of(block, model).items()})


def realign_pair(
    block: Block, model: HmmGmm, options: AlignOptions, unadapted: HmmGmm, speakers: Collection[str]
) -> dict[str, str]:
    """`realign` of adapted speakers, and of all others with the model `unadapted`."""
    graphs = graphs_of(block, model)
    found = {u: model if block.speakers.get(u) in speakers else unadapted for u in graphs}
    return _take(block, {u: _best(block, u, graphs[u], own, options) for u, own in found.items()})


def _best(
    block: Block, utterance: str, graph: kaldifst.StdVectorFst, model: HmmGmm, options: AlignOptions
) -> BestPath | None:
    frames_TD = block.frames(utterance, model.projection)
    scores = gmm_scores(model.library_mixtures, model.transitions, frames_TD, options.acoustic_scale)
    return best_path(utterance, graph, model.transitions, scores, options)


def realign_scores(block: Block, model: HmmGmm, options: AlignOptions) -> dict[str, str]:
    """Replace the block's alignments by the best paths under scores by pdf, which the block holds as features."""
    paths = {}
    for u, graph in graphs_of(block, model).items():
        scores = matrix_scores(model.transitions, block.feats[u], options.acoustic_scale)
        paths[u] = best_path(u, graph, model.transitions, scores, options)
    return _take(block, paths)


def _take(block: Block, paths: Mapping[str, BestPath | None]) -> dict[str, str]:
    block.tids = {u: path.tids for u, path in paths.items() if path is not None}
    return {u: "has no path within the retry beam" for u, path in paths.items() if path is None}


def accumulate(block: Block, model: HmmGmm) -> PassStats:
    """The E step over the block's current alignments."""
    feats_NF, tids_N = aligned_frames(block, model)
    transitions = model.transitions
    counts = np.bincount(tids_N, minlength=transitions.num_ids + 1).astype(np.float64)
    sums = expect(model.mixtures, feats_NF, transitions.pdf_of[tids_N])
    changed = sum(len(path) * block.log_determinant(u) for u, path in block.tids.items())
    return PassStats(replace(sums, log_likelihood=sums.log_likelihood + changed), counts)


def aligned_frames(block: Block, model: HmmGmm) -> tuple[NDArray[np.float32], IntArray]:
    """The mixtures' input and the transition-ids of all aligned frames of a block, end to end."""
    if not block.tids:
        return np.zeros((0, model.mixtures.dim), dtype=np.float32), np.zeros(0, dtype=np.int32)
    feats_NF = np.concatenate([block.frames(u, model.projection) for u in block.tids])
    return feats_NF, np.concatenate(list(block.tids.values()))


def unadapted_frames(block: Block, model: HmmGmm) -> NDArray[np.float32]:
    """The projected features of all aligned frames of a block before adaptation, in the order of `aligned_frames`."""
    parts = [model.features(block.feats[u]) for u in block.tids]
    return np.concatenate([np.zeros((0, model.mixtures.dim), dtype=np.float32), *parts])


def silence_weights(model: HmmGmm, tids_N: IntArray, weight: float) -> NDArray[np.float64]:
    """(N,) `weight` for frames of silence-like phones, 1 for the others."""
    return np.where(model.transitions.phone_of[tids_N] <= model.lang.num_silence, weight, 1.0)
