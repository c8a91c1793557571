"""Readers of speech data and of derived files. Most use native libraries, which must not abort."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import soundfile
import torch

from murmur.speech.corpus.corpus import Audio, Corpus, CorpusError, Utterance
from murmur.speech.corpus.kaldi_dir import read_alignments, read_data_dir, write_table
from murmur.speech.corpus.lhotse_cuts import read_cuts
from murmur.speech.ctc import Units
from murmur.speech.decoding.graph import build_hclg
from murmur.speech.decoding.graph_store import load_graph, save_graph
from murmur.speech.features.analysis import LogMel, Ready, features_of
from murmur.speech.features.cmvn import statistics
from murmur.speech.features.feature_store import prepare
from murmur.speech.features.frame_parts import aligned_parts, read_targets
from murmur.speech.features.shards import damages, make, open_store
from murmur.speech.hmm.align import align
from murmur.speech.hmm.em_loop import EmConfig
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.monophone import train_monophone
from murmur.speech.hmm.storage import load_alignments, load_model, save_alignments, save_model
from murmur.speech.language_model.arpa import read_arpa
from murmur.speech.language_model.grammar import acceptor_grammar, loop_grammar, ngram_grammar
from murmur.speech.language_model.grammar_file import read_grammar, read_words
from murmur.speech.language_model.word_lstm import WordLstm, WordNumbers
from murmur.speech.lexicon.lexicon import Lang, make_lang, read_lexicon
from murmur.speech.lexicon.lexicon_fst import decoding_lexicon, training_lexicon
from murmur.speech.models import Lstm
from murmur.speech.scoring.time_marked import read_ctm, read_stm
from murmur.speech.scoring.word_network import align as align_words
from murmur.speech.tasks.acoustic_model import AcousticModel
from murmur.speech.tasks.graph_sources import CtcSources, HmmSources, Search
from murmur.speech.tasks.language_model import PortableLanguageModel
from murmur.speech.tasks.recogniser import MANIFEST, PortableRecogniser
from tests.fuzz.harness import Files, Target
from tests.support.speech_files import write_alignments, write_archive, write_cuts
from tests.support.sphere_files import write_sphere

LEXICON = "AB a b\nBC b c\nCA c a\nB b\nB(2) c b\n"
FRONT = LogMel(rate_hz=8000, bins=12)
DIM = 4


def _noise(frames: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((frames, DIM)).astype(np.float32)


def _sound(path: Path, seed: int = 0) -> None:
    soundfile.write(path, 0.1 * np.random.default_rng(seed).standard_normal(1600).astype(np.float32), 8000)


def _utterances(corpus: Corpus) -> None:
    """Features of all utterances of a corpus; unreadable ones are errors of the corpus."""
    for utterance in corpus.utterances:
        source = utterance.features or utterance.audio
        try:
            feats_TF = features_of(utterance, Ready(DIM) if utterance.features else FRONT)
        except CorpusError as error:  # becomes a problem of the utterance, which names its file
            raise CorpusError(f"{source}: {error}") from error
        statistics([feats_TF])


def _write_audio_dir(folder: Path) -> None:
    write_table(folder / "text", {"s1-a": "AB B", "s1-b": "CA", "s2-c": "B C"})
    write_table(folder / "utt2spk", {"s1-a": "s1", "s1-b": "s1", "s2-c": "s2"})
    write_table(folder / "wav.scp", {"r1": "r1.wav", "r2": "r2.flac"})
    write_table(folder / "segments", {"s1-a": "r1 0.0 0.1", "s1-b": "r1 0.1 -1", "s2-c": "r2 0.02 0.15"})
    _sound(folder / "r1.wav")
    _sound(folder / "r2.flac", 1)


def _write_feats_dir(folder: Path) -> None:
    names = ("s1-a", "s1-b", "s2-c")
    write_table(folder / "text", dict.fromkeys(names, "AB B"))
    write_table(folder / "utt2spk", {n: n[:2] for n in names})
    write_archive({n: _noise(7 + i, i) for i, n in enumerate(names[:2])}, folder / "feats.ark")
    np.savez(folder / "more.npz", **{"s2-c": _noise(9)})
    rows = [line.split() for line in (folder / "feats.scp").read_text().splitlines()]
    index = {name: f"feats.ark:{where.rpartition(':')[2]}" for name, where in rows}
    write_table(folder / "feats.scp", {**index, "s2-c": "more.npz:s2-c"})


def _read_dir(folder: Path) -> None:
    _utterances(read_data_dir(folder))


def _write_calls(folder: Path) -> None:
    """Two calls of two channels, as SPHERE and WAV."""
    sides = [0.1 * np.random.default_rng(n).standard_normal(1600) for n in range(2)]
    write_sphere(folder / "c1.sph", *sides)
    soundfile.write(folder / "c2.wav", np.stack(sides, 1), 8000)
    write_table(folder / "text", {"c1-A-0": "AB B", "c1-B-0": "CA", "c2-B-0": "B C"})
    write_table(folder / "wav.scp", {"c1-A": "c1.sph", "c1-B": "c1.sph", "c2-B": "c2.wav"})
    write_table(folder / "reco2file_and_channel", {"c1-A": "c1 A", "c1-B": "c1 B", "c2-B": "c2 2"})
    write_table(folder / "segments", {"c1-A-0": "c1-A 0.0 0.1", "c1-B-0": "c1-B 0.1 -1", "c2-B-0": "c2-B 0.02 0.15"})


def _write_cuts(folder: Path) -> None:
    _sound(folder / "a.wav")
    audio = [Utterance(f"u{i}", "s", "AB B", Audio(folder / "a.wav", 0.05 * i, 0.05 * (i + 1))) for i in range(3)]
    write_cuts(Corpus(tuple(audio)), folder / "plain.jsonl")
    plain = (folder / "plain.jsonl").read_bytes().replace(f"{folder}/".encode(), b"")
    (folder / "plain.jsonl").write_bytes(plain)
    (folder / "cuts.jsonl.gz").write_bytes(gzip.compress(plain, mtime=0))


def _read_cuts(folder: Path) -> None:
    for path in sorted(folder.glob("*.jsonl*")):
        read_cuts(path)


def _write_lexicon(folder: Path) -> None:
    (folder / "lexicon.txt").write_text(LEXICON)


def _read_lexicon(folder: Path) -> None:
    lang = make_lang(read_lexicon(folder / "lexicon.txt"))
    assert training_lexicon(lang).num_states > 0
    assert decoding_lexicon(lang).num_states > 0
    assert Lang.from_json(json.loads(json.dumps(lang.to_json()))).words == lang.words


@cache
def _lang() -> Lang:
    rows = [line.split() for line in LEXICON.splitlines()]
    return make_lang([(row[0].removesuffix("(2)"), tuple(row[1:])) for row in rows])


ARPA = (
    "\\data\\\nngram 1=5\nngram 2=4\nngram 3=1\n\n\\1-grams:\n-1.0\t<s>\t-0.3\n-0.7\t</s>\n-0.6\tAB\t-0.2\n"
    "-0.9\tBC\t-0.1\n"
    "-0.8\tnoword\t-0.1\n\n\\2-grams:\n-0.4\t<s> AB\t-0.1\n-0.5\tAB BC\t0\n-0.2\tBC </s>\n-0.3\tAB </s>\n\n"
    "\\3-grams:\n-0.1\t<s> AB BC\n\n\\end\\\n"
)


def _write_arpa(folder: Path) -> None:
    (folder / "lm.arpa").write_text(ARPA)


def _read_arpa(folder: Path) -> None:
    model = read_arpa(folder / "lm.arpa")
    try:
        grammar = ngram_grammar(_lang(), model)
    except ValueError as error:
        # A sound model of another language, or without sentences; the message is about the model, which has no file.
        raise ValueError(f"{folder / 'lm.arpa'}: {error}") from error
    assert grammar.fst.num_states > 0


JSGF = """﻿#JSGF V1.0 UTF-8 en;
grammar fuzz.words; // of a few words
public <main> = [<polite>] (/2/ AB <more>* | /1.5/ <fuzz.words.more> B+) {a tag};
<polite> = "B B" /* please */ | <NULL>;
<more> = BC | CA [AB] | <VOID>;
"""


def _write_grammars(folder: Path) -> None:
    (folder / "own.jsgf").write_text(JSGF, encoding="utf-8")
    (folder / "own.txt").write_text("0 1 AB\n1 2 <eps> 0.5\n2 1 BC 1.25\n1 0 CA\n0 2 B 3\n2 0.125\n1\n")
    (folder / "words.txt").write_text("# of a kitchen\nAB\nBC\n\nB\n")


def _read_grammars(folder: Path) -> None:
    for name in ("own.jsgf", "own.txt"):
        acceptor = read_grammar(folder / name)
        lang = make_lang([(word, ("a", "b")) for word in acceptor.words])
        assert acceptor_grammar(lang, acceptor).fst.num_states > 0
    read_words(folder / "words.txt")


def _write_alignments(folder: Path) -> None:
    classes = {f"u{i}": np.arange(5 + i, dtype=np.int32) % 3 for i in range(3)}
    write_alignments(folder / "ali.1.gz", {n: classes[n] for n in ("u0", "u1")})
    write_alignments(folder / "ali.2.gz", {"u2": classes["u2"]})
    np.savez(folder / "pdfs.npz", **classes)


def _read_alignments(folder: Path) -> None:
    feats = {f"u{i}": _noise(5 + i, i) for i in range(3)}
    for source in (folder, folder / "pdfs.npz"):
        targets = read_targets(source)
        for part in aligned_parts(feats, dict.fromkeys(feats, "s"), targets, "none"):
            list(part.utterances())
    read_alignments(folder)


def _corpus(folder: Path) -> Corpus:
    return Corpus(tuple(Utterance(f"u{i}", "s", "AB", Audio(folder / f"{i}.wav")) for i in range(3)))


def _write_shards(folder: Path) -> None:
    for i in range(3):
        _sound(folder / f"{i}.wav", i)
    store = prepare(_corpus(folder), FRONT, folder / "cache")
    store.folder.rename(folder / "cache" / "store")


def _read_shards(folder: Path) -> None:
    corpus = _corpus(folder)
    found, cache = folder / "cache" / "store", folder / "cache"
    if found.is_dir():
        found.rename(_folder_of(corpus, cache))
    store = prepare(corpus, FRONT, cache)
    for name in store:
        assert len(store[name]) == store.frames(name)
    store.summary()


def _folder_of(corpus: Corpus, cache: Path) -> Path:
    """The folder in which `prepare` puts the store of a corpus, found by a run with an empty cache."""
    scratch = cache / "scratch"
    try:
        return cache / prepare(corpus, FRONT, scratch).folder.name
    except CorpusError:
        return cache / "nowhere"


def _write_frames(folder: Path) -> None:
    feats = {f"u{i}": _noise(6 + i, i) for i in range(3)}
    targets = {name: np.arange(len(x), dtype=np.int32) % 3 for name, x in feats.items()}
    make(folder, aligned_parts(feats, dict.fromkeys(feats, "s"), targets, "none"), "uint8")


def _sign_frames(files: Files) -> None:
    """Update the sizes and checksums of the files."""
    for name in sorted(files, reverse=True):  # manifest.json first, which holds the shards' own line
        if name.endswith(".json"):
            try:
                content = json.loads(files[name])
                for shard in content.get("shards", [content]):
                    for file in shard["files"]:
                        if file in files:
                            shard["files"][file] = [len(files[file]), hashlib.sha256(files[file]).hexdigest()]
                files[name] = json.dumps(content).encode()
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                continue  # no longer of its kind, so there is nothing to sign


def _read_frames(folder: Path) -> None:
    damages(folder, 0)
    store = open_store(folder)
    _ = store.problems, store.names
    out_TF = np.empty((4, store.dims), np.float32)
    for utterance in range(len(store)):
        store.feats(utterance)
        store.targets(utterance)
        store.read(utterance, -2, out_TF)


@cache
def _trained() -> tuple[HmmGmm, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    feats, texts = {}, {}
    for n in range(12):
        feats[f"u{n}"] = rng.standard_normal((40, DIM)).astype(np.float32)
        texts[f"u{n}"] = ("AB B", "CA", "BC AB", "B")[n % 4]
    config = EmConfig(gaussians=12, passes=2, grow_passes=1, align_passes=(1,), min_gaussian_frames=2)
    trained = train_monophone(_lang(), feats, texts, config)
    return trained.model, dict(trained.tids)


def _write_gmm(folder: Path) -> None:
    model, tids = _trained()
    save_model(model, folder / "gmm.npz")
    save_alignments(model, tids, folder / "ali.npz")


def _read_gmm(folder: Path) -> None:
    model = load_model(folder / "gmm.npz")
    try:
        align(model, {"u": _noise(30)}, {"u": "AB B"})
    except (ValueError, KeyError) as error:
        # A sound model of another language or of other features than the ones tried here.
        raise ValueError(f"{folder / 'gmm.npz'}: {error}") from error
    model.pdf_ids(load_alignments(model, folder / "ali.npz"))


def _write_graph(folder: Path) -> None:
    model, _ = _trained()
    save_graph(build_hclg(_lang(), model.transitions, loop_grammar(_lang())), folder / "g", "key")


def _sign_graph(files: Files) -> None:
    try:
        content = json.loads(files["g/graph.json"])
        content["sha256"] = hashlib.sha256(files["g/graph.fst"]).hexdigest()
        files["g/graph.json"] = json.dumps(content).encode()
    except (ValueError, TypeError, KeyError, RecursionError):
        return  # no longer of its kind, so there is nothing to sign


def _read_graph(folder: Path) -> None:
    graph = load_graph(folder / "g")
    assert graph.fst.num_states >= 0


def _target(make_: Callable[[Path], None], read: Callable[[Path], object]) -> Target:
    return Target(make_, read)


def _write_recogniser(folder: Path) -> None:
    model, _ = _trained()
    (folder / "source.txt").write_text(LEXICON)
    acoustic = AcousticModel(
        *(FRONT, 0, "speaker", Lstm(hidden=4, layers=1), FRONT.bins, model.num_pdfs),
        log_prior=torch.zeros(model.num_pdfs),
        training=lambda: (np.zeros(FRONT.bins, np.float32), np.ones(FRONT.bins, np.float32)),
    )
    hmm = HmmSources(model.states, folder / "source.txt", 0.5, Search())
    PortableRecogniser(acoustic, hmm, folder).save(folder / "hmm")
    units = Units("word", ("AB", "B"))
    acoustic = replace(acoustic, outputs=units.columns, log_prior=None, training=None)
    PortableRecogniser(acoustic, CtcSources(units, Search(), (), frozenset(units.symbols)), folder).save(folder / "ctc")


def _sign_recogniser(files: Files) -> None:
    for folder in ("hmm", "ctc"):
        names = [name for name in files if name.startswith(f"{folder}/") and not name.endswith(MANIFEST)]
        digests = {name.partition("/")[2]: hashlib.sha256(files[name]).hexdigest() for name in names}
        whole = hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()
        content = {"format": "murmur recogniser 1", "sha256": digests, "digest": whole}
        files[f"{folder}/{MANIFEST}"] = json.dumps(content).encode()


def _read_recogniser(folder: Path) -> None:
    for name in ("hmm", "ctc"):
        graphs = PortableRecogniser.open(folder / name).graphs
        try:
            graphs.words("loop")
        except ValueError as error:
            raise ValueError(f"{folder / name}: {error}") from error


def _write_language_model(folder: Path) -> None:
    words = WordNumbers(("</s>", "<unk>", "AB", "B", "É"))
    PortableLanguageModel(words, WordLstm(4, 6, 2)).save(folder / "description")


def _sign_language_model(files: Files) -> None:
    try:
        values = json.loads(files["description/language_model.json"])
        values["sha256"]["words.txt"] = hashlib.sha256(files["description/words.txt"]).hexdigest()
    except (ValueError, LookupError, TypeError, RecursionError):
        return  # no longer of its kind, so there is nothing to sign
    files["description/language_model.json"] = json.dumps(values).encode()


def _read_language_model(folder: Path) -> None:
    assert PortableLanguageModel.open(folder / "description").weights > 0


def _write_scoring(folder: Path) -> None:
    marks = ["f A s1 0.0 2.5 <o,f0,male> going { to / @ } (uh) { { b / c } d / e }", "f A s2 2.5 3.0 wor-"]
    (folder / "ref.stm").write_text("\n".join([';; LABEL "o" "Overall" "all"', *marks]) + "\n")
    (folder / "hyp.ctm").write_text("f A 0.1 0.2 going 0.9\nf A 0.4 0.2 to 0.5\nf A 2.6 0.2 word 1.0\n")


def _read_scoring(folder: Path) -> None:
    words = read_ctm(folder / "hyp.ctm")
    for recording, segments in read_stm(folder / "ref.stm").segments.items():
        for segment in segments:
            if segment.network is not None:
                align_words(segment.network, [each.word for each in words.get(recording, ())])


TARGETS = {
    "scoring": _target(_write_scoring, _read_scoring),
    "audio directories": _target(_write_audio_dir, _read_dir),
    "calls": _target(_write_calls, _read_dir),
    "feature directories": _target(_write_feats_dir, _read_dir),
    "cuts": _target(_write_cuts, _read_cuts),
    "lexicons": _target(_write_lexicon, _read_lexicon),
    "arpa": _target(_write_arpa, _read_arpa),
    "grammars": _target(_write_grammars, _read_grammars),
    "alignments": _target(_write_alignments, _read_alignments),
    "shards": _target(_write_shards, _read_shards),
    "frame stores": Target(_write_frames, _read_frames, _sign_frames),
    "hmm": _target(_write_gmm, _read_gmm),
    "graphs": Target(_write_graph, _read_graph, _sign_graph),
    "language models": Target(_write_language_model, _read_language_model, _sign_language_model),
    "recognisers": Target(_write_recogniser, _read_recogniser, _sign_recogniser),
}
