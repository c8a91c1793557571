"""Portable recogniser: everything besides the weights that recognition needs, saved in a folder of plain files.

`recogniser.json` holds all values, `acoustic.npz` arrays, further files the sources of decoding graphs, and
`manifest.json` the SHA-256 of every file. `graphs/` caches built graphs, which have checksums of their own.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from murmur.core.errors import SettingError
from murmur.core.plain_files import refuse_link
from murmur.core.whole_files import atomic_folder
from murmur.run.folder.contents import RECOGNISER
from murmur.speech.corpus.corpus import Corpus
from murmur.speech.corpus.file_content import making_sense_of, read_object
from murmur.speech.features.shards import sha256_of
from murmur.speech.tasks.acoustic_model import AcousticModel
from murmur.speech.tasks.graph_sources import CtcSources, GraphSources, HmmSources
from murmur.speech.tasks.speaker_inputs import AdaptedGaussians

FORMAT = "murmur recogniser 1"
VALUES, MANIFEST, GRAPHS = "recogniser.json", "manifest.json", "graphs"
SOURCES: Mapping[str, type[HmmSources | CtcSources]] = {"hmm": HmmSources, "ctc": CtcSources}
AGAIN = "copy the run again, with all its files"


@dataclass(frozen=True, eq=False)
class PortableRecogniser:
    """Acoustic model and sources of decoding graphs; neither the corpus nor the cache of training is needed.

    Attributes:
        built: folder of the graph of the own grammar, if it was built.
        adapted: speaker-adapted Gaussian system with the same states; None if there is none.
    """

    acoustic: AcousticModel
    graphs: GraphSources
    cache: Path
    built: Path | None = None
    adapted: AdaptedGaussians | None = None

    def save(self, folder: Path) -> None:
        """Write all files; the folder is replaced as a whole."""
        with atomic_folder(folder) as new:
            values: dict[str, Any] = {
                "format": FORMAT,
                "acoustic": self.acoustic.save(new),
                "graphs": self.graphs.save(new),
            }
            if self.adapted is not None:
                values["adapted"] = self.adapted.save(new)
            (new / VALUES).write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            files = {path.name: sha256_of(path) for path in sorted(new.iterdir())}
            manifest = {"format": FORMAT, "sha256": files, "digest": _digest(files)}
            (new / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
            if self.built is not None:
                shutil.copytree(self.built, new / GRAPHS / self.built.name, copy_function=_linked)

    @staticmethod
    def open(folder: Path) -> PortableRecogniser:
        """Verify all files and read them; language models are read when a graph is built."""
        files = verified_files(folder)
        path = files[VALUES]
        values = read_object(path, AGAIN)
        with making_sense_of(path, AGAIN):
            adapted = AdaptedGaussians.open(values["adapted"], files) if "adapted" in values else None
            acoustic = AcousticModel.open(values["acoustic"], files, adapted)
            graphs = SOURCES[values["graphs"]["kind"]].open(values["graphs"], files)
        for written in (folder, folder / GRAPHS):
            refuse_link(written, " (graphs are written there)")
        return PortableRecogniser(acoustic, graphs, folder / GRAPHS, adapted=adapted)


def verified_files(folder: Path) -> dict[str, Path]:
    """Files of the manifest by name, with verified checksums."""
    manifest = folder / MANIFEST
    if not manifest.is_file():
        raise SettingError(f"{manifest} is missing: {AGAIN}")
    content = read_object(manifest, AGAIN)
    with making_sense_of(manifest, AGAIN):
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']!r}, not {FORMAT!r}")
        digests = {str(name): str(digest) for name, digest in content["sha256"].items()}
        if content["digest"] != _digest(digests) or VALUES not in digests:
            raise ValueError("it is not what was written there")
        if any(Path(name).name != name for name in digests):
            raise ValueError("it names files outside its folder")
    for name, digest in digests.items():
        if not (folder / name).is_file():
            raise SettingError(f"{folder / name} is missing: {AGAIN}")
        if sha256_of(folder / name) != digest:
            raise SettingError(f"{folder / name} is not what was written there: {AGAIN}")
    return {name: folder / name for name in digests}


def _digest(files: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _linked(source: str, target: str) -> str:
    """Link a file of a graph, which is never changed in place; copy it to another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
    return target


@runtime_checkable
class Recognises(Protocol):
    """Optional addition to `Task`, by inheritance: recognition of speech with the trained network.

    A finished run saves the recogniser beside its weights, so that it works without the training data.
    """

    def recogniser(self) -> PortableRecogniser:
        """Everything besides the weights that recognition needs."""

    def utterances(self, part: str) -> Corpus:
        """Utterances of "train", "dev" or "test"."""

    def check_grammar(self, name: str, option: str) -> None:
        """Check that there is a grammar of this name, without prepared data; by default that is left to the recogniser.

        Args:
            name: name of the grammar.
            option: setting or option that gives the name.

        Raises:
            SettingError: there is none.
        """

    def save_description(self, run: Path) -> None:
        """Write the recogniser into the folder of a run."""
        self.recogniser().save(run / RECOGNISER)
