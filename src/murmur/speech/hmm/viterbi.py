"""Forced alignment of one utterance: training graph, flat-start path, best path.

Before every call into the library, its arguments are checked for values that it would read out of bounds or abort on;
objects that it refers to are kept alive here.

Shapes: T frames, F features, P pdfs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import kaldi_hmm_gmm as khg
import kaldifst
import numpy as np
from numpy.typing import NDArray

from murmur.speech.hmm.phone_arcs import IntArray
from murmur.speech.hmm.transitions import Transitions
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
    """The transition-ids of the frames, their unscaled total log-likelihood, and True if the wide beam was needed."""

    tids: IntArray
    log_likelihood: float
    retried: bool


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
        ValueError: the number of features is not the mixtures'.
    """
    if feats_TF.ndim != 2 or feats_TF.shape[1] != mixtures.dim:
        raise ValueError(f"features of shape {feats_TF.shape} where (frames, {mixtures.dim}) is needed")
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
    done, _, retried, log_likelihood, _, tids, *_ = khg.align_utterance_wrapper(
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
    return BestPath(np.array(tids, dtype=np.int32), float(log_likelihood), retried > 0)
