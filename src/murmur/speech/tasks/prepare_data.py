"""Data preparation of `murmur prepare`: feature shards, their statistics, corpora of aligned frames."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from murmur.core.counted import counted
from murmur.core.errors import SettingError
from murmur.core.path_checks import file_to_read, folder_to_write
from murmur.core.printable import say
from murmur.core.whole_files import replacing, write_whole
from murmur.execution.executors import Jobs
from murmur.speech.corpus.corpus import Corpus, losses
from murmur.speech.corpus.kaldi_dir import check_data_dir, read_data_dir
from murmur.speech.corpus.lhotse_cuts import read_cuts
from murmur.speech.corpus.remote import check_store, exists, is_remote, location, mark
from murmur.speech.features.analysis import Front, LogMel, Mfcc, Ready, digest, read_stored, sample_rate_hz
from murmur.speech.features.cmvn import Scope, statistics
from murmur.speech.features.feature_store import FeatureStore
from murmur.speech.features.feature_store import prepare as make_features
from murmur.speech.features.frame_parts import aligned_parts, is_shar, on_demand, read_targets, shar_parts
from murmur.speech.features.shards import FORMAT, FrameStore, Storage, make

MANIFESTS = (".jsonl", ".jsonl.gz")
Kind = Literal["log-mel", "mfcc", "stored"]


@dataclass(frozen=True)
class Wanted:
    """Features to make, the scope of their statistics, their classes, and whether commands in the data may run."""

    kind: Kind | None
    bins: int | None
    scope: Scope
    alignments: Path | None
    commands_allowed: bool = False


@dataclass(frozen=True)
class Making:
    """Folder of a store, bytes per value, and the processes."""

    out: Path
    storage: Storage
    jobs: Jobs


def check(source: str, wanted: Wanted, out: Path) -> None:
    """Check all paths before any work starts."""
    if not is_remote(out):
        folder_to_write(out, "--out")
    elif wanted.alignments is None and not is_shar(location(source)):
        raise SettingError(f"--out {out} takes frames with classes (--alignments, or Shar): name a local folder")
    else:
        check_store(out)
    if wanted.alignments is not None and not exists(wanted.alignments):
        raise SettingError(f"--alignments {wanted.alignments} does not exist: name an .npz, or a folder of ali.*.gz")
    if not is_shar(location(source)):
        check_data(source)


def prepare_data(source: str, wanted: Wanted, how: Making) -> None:
    """Prepare a directory, manifest or Shar folder as requested, and report the result."""
    if is_shar(location(source)):
        if wanted != Wanted(None, None, wanted.scope, None):
            raise SettingError(
                "Shar shards bring features and targets: leave --kind, --bins, --alignments and --allow-commands out"
            )
        tell_store(make_from_shar(location(source), wanted.scope, how))
        return
    corpus = read_corpus(source, wanted.commands_allowed)
    front = front_of(corpus, wanted.kind, wanted.bins)
    if wanted.alignments is not None:
        tell_store(make_aligned(corpus, front, wanted.alignments, wanted.scope, how))
        return
    store = make_features(corpus, front, how.out, how.jobs, progress=True)
    write_statistics(store, wanted.scope)
    write_summary(store, source, wanted.scope)
    say(f"{store.summary()}\n{store.folder}")


def make_aligned(corpus: Corpus, front: Front, alignments: Path, scope: Scope, how: Making) -> FrameStore:
    """Frames with classes. Stored features are read in place; features of audio are computed first."""
    targets = read_targets(alignments)
    feats: Mapping[str, np.ndarray] = on_demand(corpus, front)
    jobs = how.jobs
    if not isinstance(front, Ready) and not is_remote(how.out):  # features take the time; packing is quick
        feats, jobs = make_features(corpus, front, how.out, how.jobs, progress=True), 1
    content = [corpus.digest(), digest(front), _name(alignments), *_stamps(alignments)]
    folder = _frames_folder(how.out, *content, scope, how.storage)
    return make(folder, aligned_parts(feats, corpus.speakers, targets, scope), how.storage, jobs, progress=True)


def make_from_shar(source: Path, scope: Scope, how: Making) -> FrameStore:
    parts = shar_parts(source, scope)
    stamps = [stamp for part in parts for _, path in part.files for stamp in _stamps(path)]
    folder = _frames_folder(how.out, _name(source), *stamps, scope, how.storage)
    return make(folder, parts, how.storage, how.jobs, progress=True)


def tell_store(store: FrameStore) -> None:
    """Print one line about a prepared corpus, one about what is left out, and its folder."""
    size = sum(size for shard in store.manifest["shards"] for size, _ in shard["files"].values())
    frames = int(store.lengths.sum())
    say(
        f"{counted(frames, 'frame')} of {counted(store.dims, 'value')}, {counted(len(store), 'utterance')}, "
        f"{len(store.problems)} skipped, "
        f"{store.storage}, {size / 1e6:.1f} MB"
    )
    if store.problems:
        say(losses(store.problems, len(store)))
    say(str(store.folder))


def _frames_folder(out: Path, *content: str) -> Path:
    return out / f"frames-{hashlib.sha256(json.dumps([FORMAT, *content]).encode()).hexdigest()[:16]}"


def _name(source: Path) -> str:
    return str(source if is_remote(source) else source.resolve())


def _stamps(source: Path) -> list[str]:
    if is_remote(source):
        return [f"{source.name} {mark(source)}"]
    files = sorted(source.glob("ali.*.gz")) if source.is_dir() else [source]
    return [f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files if file.exists()]


def read_corpus(source: str, commands_allowed: bool = False) -> Corpus:
    """Utterances of a data directory or cut manifest; commands in a directory run only if they are allowed."""
    check_data(source)
    path = location(source)
    if path.name.endswith(MANIFESTS):
        return read_cuts(path)
    return read_data_dir(path, commands_allowed=commands_allowed)


def check_data(source: str) -> None:
    """Check that there is a data directory or cut manifest with the files that it needs, without reading them."""
    path = location(source)
    if is_remote(path):
        if not path.name.endswith(MANIFESTS):
            check_data_dir(path)
    elif path.name.endswith(MANIFESTS):
        file_to_read(path, "manifest")
    elif path.is_dir():
        parts = sorted(str(p.parent) for p in path.glob("data/*/text"))
        if parts and not (path / "text").is_file():
            raise SettingError(f"{source} is a set, not a data directory: name one of {', '.join(parts)}")
        check_data_dir(path)
    else:
        raise SettingError(f"{source!r} is not a folder, a manifest, a .py file or a recipe")


def front_of(corpus: Corpus, kind: Kind | None, bins: int | None) -> Front:
    """The analysis of a corpus; without a kind, the corpus' own features or log-mel of its audio."""
    first = corpus.utterances[0]
    if kind is None:
        kind = "stored" if first.features is not None else "log-mel"
    if kind == "stored":
        if first.features is None:
            raise SettingError(f"utterance {first.id} brings no features (feats.scp): choose --kind log-mel or mfcc")
        if bins is not None:
            raise SettingError("--bins is for features computed here; stored ones have their own number")
        return Ready(dims=read_stored(first.features).shape[1])
    rate = sample_rate_hz(corpus)
    front: LogMel | Mfcc = LogMel(rate_hz=rate) if kind == "log-mel" else Mfcc(rate_hz=rate)
    return front if bins is None else replace(front, bins=bins)


def write_statistics(store: FeatureStore, scope: Scope) -> None:
    """Write cmvn-SCOPE.npz: `names` (speakers or utterances), `means`, `deviations` (names, F), over all frames."""
    if scope == "none":
        return
    members: dict[str, list[str]] = {}
    for utterance, speaker in store.corpus.speakers.items():
        members.setdefault(speaker if scope == "speaker" else utterance, []).append(utterance)
    names = sorted(members, key=str.encode)
    pairs = [statistics(store[u] for u in members[name]) for name in names]
    path = store.folder / f"cmvn-{scope}.npz"
    with replacing(path) as beside, beside.open("xb") as file:
        np.savez(
            file,
            names=np.array(names),
            means=np.stack([m for m, _ in pairs]),
            deviations=np.stack([d for _, d in pairs]),
        )


def write_summary(store: FeatureStore, source: str, scope: Scope) -> dict[str, Any]:
    """Write summary.json: amounts by speaker, and the utterances left out with the reasons."""
    problems = store.corpus.problems
    facts = {
        "source": source,
        "front": {"type": type(store.front).__name__, **asdict(store.front)},
        "cmvn": scope,
        "hours": store.hours,
        "frames": sum(store.frames(u) for u in store),
        "utterances": len(store),
        "speakers": len(set(store.corpus.speakers.values())),
        "skipped": [asdict(problem) for problem in problems],
        "reasons": dict(Counter(problem.what for problem in problems).most_common()),
    }
    write_whole(store.folder / "summary.json", json.dumps(facts, indent=1, ensure_ascii=False).encode())
    return facts
