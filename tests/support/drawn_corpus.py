"""A tiny language, and a corpus drawn from known Gaussians with known phone boundaries."""

from typing import NamedTuple

import numpy as np

from murmur.speech.hmm.topology import num_states
from murmur.speech.lexicon.lexicon import Lang, make_lang

WORDS = {"AB": ("a", "b"), "BC": ("b", "c"), "CA": ("c", "a"), "B": ("b",)}
DIM = 4


class Corpus(NamedTuple):
    """Features (T, 4) and transcripts by utterance, and for each utterance the true first frames of its phones."""

    lang: Lang
    feats: dict[str, np.ndarray]
    texts: dict[str, str]
    starts: dict[str, list[int]]


def draw_corpus(utterances: int, seed: int = 0) -> Corpus:
    random = np.random.default_rng(seed)
    lang = make_lang([(word, phones) for word, phones in WORDS.items()])
    centres = {
        (p, s): 4 * random.standard_normal(DIM)
        for p in range(1, lang.num_phones + 1)
        for s in range(num_states(lang, p))
    }
    feats, texts, starts = {}, {}, {}
    for n in range(utterances):
        words = random.choice(list(WORDS), size=random.integers(2, 5))
        phones = [1]
        for word in words:
            phones += [lang.phones.index(p) for p in WORDS[word]]
            phones += [1] * int(random.random() < 0.5)
        frames, begins = [], []
        for phone in phones:
            begins.append(len(frames))
            for state in range(num_states(lang, phone)):
                for _ in range(random.integers(1, 5)):
                    frames.append(centres[phone, state] + random.standard_normal(DIM))
        name = f"u{n:03d}"
        feats[name], texts[name] = np.array(frames, dtype=np.float32), " ".join(words)
        starts[name] = begins
    return Corpus(lang, feats, texts, starts)
