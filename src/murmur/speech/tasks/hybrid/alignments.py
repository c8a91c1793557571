"""Files of the alignments of a part of a set: phones, words, pdfs, and a summary."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from murmur.core.whole_files import replacing, write_text_whole, write_whole
from murmur.speech.decoding.recogniser import PhoneSpans
from murmur.speech.hmm.align import write_ctm
from murmur.speech.lexicon.lexicon import SILENCE
from murmur.speech.tasks.hybrid.stage import Stage

FRAME_SECONDS = 0.01


def write_alignments(
    system: Stage, texts: Mapping[str, str], tids: Mapping[str, np.ndarray], out: Path
) -> dict[str, Any]:
    """Write phones.ctm, words.ctm, pdfs.npz and summary.json; return the contents of the last one."""
    out.mkdir(parents=True, exist_ok=True)
    model = system.model
    write_ctm(model, tids, out / "phones.ctm")
    write_text_whole(out / "words.ctm", "".join(_word_lines(system, texts, tids)))
    pdfs: dict[str, Any] = dict(model.pdf_ids(tids))
    with replacing(out / "pdfs.npz") as beside, beside.open("xb") as file:
        np.savez_compressed(file, **pdfs)
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
        "lost": sorted(set(texts) - set(tids)),
    }
    write_whole(out / "summary.json", json.dumps(facts, indent=1, ensure_ascii=False).encode())
    return facts


def _word_lines(system: Stage, texts: Mapping[str, str], tids: Mapping[str, np.ndarray]) -> Iterator[str]:
    spans = PhoneSpans.of(system.model.lang, system.model.transitions)
    for utterance in sorted(tids):
        words = texts[utterance].split()
        for word, (first, end) in zip(words, spans.of_words(words, tids[utterance]), strict=True):
            start, seconds = first * FRAME_SECONDS, (end - first) * FRAME_SECONDS
            yield f"{utterance} 1 {start:.3f} {seconds:.3f} {word}\n"
