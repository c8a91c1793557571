"""Alignment and decoding against the bare library calls: CPU seconds, both sides in turn, one process.

A monophone system of the embedded digits, a word-loop graph. "Bare" is the shortest loop over kaldi-hmm-gmm's aligner
and kaldi-decoder's search that gives the same paths.

    python benchmarks/speech_speed.py
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import kaldi_decoder
import kaldi_hmm_gmm as khg
import kaldifst
import numpy as np
import torch

from measure import bar, close, interleave, median_ratio
from murmur.speech.corpus.digits import Digits, make_digits
from murmur.speech.decoding.decoder import DecodeOptions, Decoder
from murmur.speech.decoding.graph import DecodingGraph, build_hclg
from murmur.speech.decoding.wer import score
from murmur.speech.hmm.align import align
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.passes import GraphCompiler
from murmur.speech.language_model.grammar import loop_grammar
from murmur.speech.tasks import corpora
from murmur.speech.tasks.hybrid.config import FrontEnd, HmmStages
from murmur.speech.tasks.hybrid.hmm import HmmHalf

KIND = "bar"
REPEATS = 7
Arrays = Mapping[str, np.ndarray]


def bare_alignment(model: HmmGmm, feats: Arrays, texts: Mapping[str, str]) -> dict[str, list[int]]:
    """The graph compiler and the aligner of kaldi-hmm-gmm, utterance by utterance."""
    mixtures, transitions = model.library_mixtures, model.transitions.library
    compiler = GraphCompiler(model.lang, model.transitions)
    config = khg.AlignConfig(beam=10.0, retry_beam=40.0)
    found = {}
    for name, feats_TF in feats.items():
        fst = compiler.compile(texts[name])
        khg.add_transition_probs(trans_model=transitions, transition_scale=1.0, self_loop_scale=0.1, fst=fst)
        scores = khg.DecodableAmDiagGmmScaled(am=mixtures, tm=transitions, feats=feats_TF, scale=0.1)
        answer = khg.align_utterance_wrapper(
            config=config,
            utt=name,
            acoustic_scale=0.1,
            fst=fst,
            decodable=scores,
            num_done=0,
            num_error=0,
            num_retried=0,
            tot_like=0,
            frame_count=0,
        )
        found[name] = list(answer[5])
    return found


def bare_decoding(graph: DecodingGraph, scores: Arrays, options: DecodeOptions) -> dict[str, str]:
    """kaldi-decoder's search, utterance by utterance."""
    columns = np.array(graph.columns)
    search = kaldi_decoder.FasterDecoderOptions(max_active=options.max_active, beam=options.beam)
    found = {}
    for name, scores_TC in scores.items():
        wide = np.ascontiguousarray((scores_TC * np.float32(options.acoustic_scale))[:, columns], dtype=np.float32)
        decoder = kaldi_decoder.FasterDecoder(graph.fst, search)
        decoder.decode(kaldi_decoder.DecodableCtc(wide))
        _, best = decoder.get_best_path()
        found[name] = " ".join(graph.words[w] for w in kaldifst.get_linear_symbol_sequence(best)[2] if w)
    return found


def our_decoding(graph: DecodingGraph, scores: Arrays, options: DecodeOptions) -> dict[str, str]:
    """The same through our adapter."""
    decoder = Decoder(graph, options)
    return {name: " ".join(decoder.decode(scores_TC).words) for name, scores_TC in scores.items()}


def seconds(job: object, *arguments: object) -> float:
    start = time.process_time()
    job(*arguments)  # type: ignore[operator]
    return time.process_time() - start


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        material = corpora.LOADERS["folder"](make_digits(Path(scratch), Digits(train=300, dev=10, test=150)))
        half = HmmHalf(material, material.lexicon, FrontEnd(), HmmStages(triphone=None, lda=None), Path(scratch))
        model = half.trained[0].model
        feats = dict(half.features(material.test))
    texts = material.test.texts
    graph = build_hclg(model.lang, model.transitions, loop_grammar(model.lang))
    scores = {name: model.loglikes(x) for name, x in feats.items()}
    options = DecodeOptions()
    paths = align(model, feats, texts)
    assert all(list(paths[u]) == tids for u, tids in bare_alignment(model, feats, texts).items())
    same = bare_decoding(graph, scores, options) == our_decoding(graph, scores, options)
    print(f"same words: {same}; {score(texts, our_decoding(graph, scores, options))}")
    sides = {
        "bare align": lambda: seconds(bare_alignment, model, feats, texts),
        "our align": lambda: seconds(align, model, feats, texts),
        "bare decode": lambda: seconds(bare_decoding, graph, scores, options),
        "our decode": lambda: seconds(our_decoding, graph, scores, options),
    }
    values = interleave(sides, REPEATS)
    aligning, decoding = (
        median_ratio(values, "bare align", "our align"),
        median_ratio(values, "bare decode", "our decode"),
    )
    bars = [
        bar("alignment, share of the bare library's speed", aligning, 0.5, at_most=False),
        bar("decoding, share of the bare library's speed", decoding, 0.8, at_most=False),
    ]
    close("speech_speed", {"cpu_seconds": values, "same_words": same}, bars)


if __name__ == "__main__":
    main()
