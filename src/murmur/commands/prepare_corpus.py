"""`murmur prepare CORPUS`: make a data set from a published corpus, taken from the network or a folder."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from murmur.core.counted import are, counted, named
from murmur.core.errors import SettingError, nearest
from murmur.core.printable import say
from murmur.run.timed import timed
from murmur.speech.corpus.corpus import Problem, losses
from murmur.speech.corpus.left_out import left_out
from murmur.speech.corpus.published.catalogue import CORPORA, CorpusPart, Published
from murmur.speech.corpus.published.dataset_writer import earlier_splits, write_set
from murmur.speech.corpus.published.fetch import fetch
from murmur.speech.corpus.published.unpacking import with_plain_audio
from murmur.tasks.corpora import HELD_OUT

DEV_OF_UTTERANCES = ("yesno",)  # recipes whose dev holds utterances of train, not speakers of their own
FEW_WORDS = 200  # with fewer words, one error changes the error rate by more than half a percent


@dataclass(frozen=True)
class From:
    """Source of a corpus.

    Attributes:
        folder: Folder with an unpacked copy.
        download: Folder into which the archives are fetched and unpacked.
        parts: Parts of the corpus; if empty, all parts in `folder`, or the usual parts of a download.
        mirror: Address that replaces the publisher's.
    """

    folder: Path | None = None
    download: Path | None = None
    parts: tuple[str, ...] = ()
    mirror: str | None = None


def prepare_corpus(name: str, places: From, out: Path, jobs: int) -> None:
    """Fetch, read and write one corpus; print its contents and the next commands.

    Raises:
        SettingError: the corpus or a part is unknown, or there is not exactly one source.
        CorpusError: the corpus cannot be fetched, read or used; the message names what is missing.
    """
    if name not in CORPORA:
        raise SettingError(f"there is no corpus {name!r}{nearest(name, list(CORPORA))}; see --list")
    if (places.folder is None) == (places.download is None):
        ways = "--from FOLDER takes an unpacked copy, --download FOLDER fetches one (not both)"
        raise SettingError(f"where is {name}? {ways if CORPORA[name].address else from_only(name, CORPORA[name])}")
    if places.mirror is not None and places.download is None:
        raise SettingError("--mirror is for --download")
    corpus = CORPORA[name]
    if places.download is not None and not corpus.address:
        raise SettingError(from_only(name, corpus))
    chosen = chosen_parts(name, corpus, places)
    folder = places.folder or places.download or Path()
    if places.download is not None:
        fetch(corpus, chosen, places.download, places.mirror)
    names = tuple(part.name for part in chosen)
    with timed(f"reading {name} in {folder}"):
        read = corpus.read(folder, names, jobs)
    if places.parts and read.absent:
        raise SettingError(f"{folder} lacks {', '.join(read.absent)}: choose other parts, or fetch them by --download")
    earlier_splits(out, name)  # refuses a folder of other data before recordings are unpacked into it
    with timed(f"recordings of {name}"):
        read = with_plain_audio(read, out / "audio", jobs)
    tell(corpus, out, write_set(out, name, corpus, read))


def from_only(name: str, corpus: Published) -> str:
    """Return the way to a corpus that cannot be downloaded."""
    if not corpus.parts:
        return f"{name} is not published anywhere: --from FOLDER"
    needs = "; ".join(f"{part.name}: {' and '.join(part.packages)}" for part in corpus.parts)
    return f"{name} cannot be downloaded: get its packages from the LDC; --from FOLDER names their folder ({needs})"


def chosen_parts(name: str, corpus: Published, places: From) -> tuple[CorpusPart, ...]:
    """Return the requested parts; by default all parts of a folder, or the usual parts of a download.

    Raises:
        SettingError: the corpus has no such part.
    """
    by_name = {part.name: part for part in corpus.parts}
    for part in places.parts:
        if part not in by_name:
            raise SettingError(f"{name} has no part {part!r}; its parts: {', '.join(by_name)}")
    if places.parts:
        return tuple(by_name[part] for part in places.parts)
    return tuple(part for part in corpus.parts if places.folder is not None or not part.optional)


def tell(corpus: Published, out: Path, manifest: dict[str, Any]) -> None:
    """Print one line per split, what is left out, and the next command."""
    tell_splits(manifest, out)
    why = why_not_trainable(manifest["splits"], 1 if corpus.recipe in DEV_OF_UTTERANCES else HELD_OUT)
    if why is not None:
        say(why)
        return
    words = manifest["splits"]["test"]["words"]
    if words < FEW_WORDS:
        say(f"data/test holds {counted(words, 'word')}: a single error is {100 / words:.1f} % of them; add recordings")
    for split, trained in manifest["trained_speakers"].items():
        say(
            f"{len(trained)} of {counted(manifest['splits'][split]['speakers'], 'speaker')} of data/{split}"
            f" {are(len(trained))} in data/train too ({named(trained)}): expect more errors with other speakers"
        )
    if manifest["rate_hz"] is not None:
        channels = "one channel" if corpus.address or not corpus.parts else "two channels, each utterance one of them"
        say(f"all recordings have {manifest['rate_hz']} Hz and {channels}; training uses them as they are")
    say(f"licence: {corpus.licence}; more in {out / 'manifest.json'}")
    for line in next_commands(corpus, out):
        say(line)


def tell_splits(manifest: Mapping[str, Any], out: Path) -> None:
    """Print one line per split, and what is left out; the manifest names all of it."""
    for split, facts in manifest["splits"].items():
        say(
            f"{out / 'data' / split}: {counted(facts['utterances'], 'utterance')}, "
            f"{counted(facts['speakers'], 'speaker')}, "
            f"{facts['hours']:.2f} h, {len(facts['skipped'])} skipped"
        )
        wordless = [(name, "no words") for name in facts["wordless"]]
        if wordless:
            say(f"data/{split}: {left_out('segment', wordless, facts['utterances'] + len(wordless))}")
        if facts["skipped"]:
            skipped = [Problem(**problem) for problem in facts["skipped"]]
            say(f"data/{split}: {losses(skipped, facts['utterances'])}")
    outside = [(problem["utterance"], problem["what"]) for problem in manifest["outside"]]
    if outside:
        say(left_out("recording", outside))
    if manifest["absent"]:
        say(f"missing parts, left out: {', '.join(manifest['absent'])}")


def next_commands(corpus: Published, out: Path) -> list[str]:
    """Return the commands that lead from a data set to a model."""
    place, setting = shlex.quote(str(out)), shlex.quote(f"task.corpus={out}")
    recipe = f"murmur train {corpus.recipe} --set {setting}"
    letters = f"murmur train ctc --set {setting} --set task.units={corpus.units}"
    if not corpus.recipe:
        return [f"next: {letters}"]
    makes = {
        "lexicon.txt": f"murmur lexicon {place}/data/train --guess espeak --out {place}",
        "lm.arpa.gz": f"murmur lm train {place}/data/train --out {place}/lm.arpa.gz",
    }
    missing = [file for file in corpus.needs if not (out / file).is_file()]
    if not missing:
        return [f"next: {recipe}"]
    if not makes.keys() >= set(missing):
        return [f"next: {letters}"]
    commands = [*(makes[file] for file in missing), recipe]
    return [*(f"next: {command}" for command in commands), f"or, with hours of speech, without a lexicon: {letters}"]


def why_not_trainable(splits: Mapping[str, Any], least_speakers: int) -> str | None:
    """Return the reason why these splits cannot be trained on, with a remedy; None if they can.

    Without data/dev, data/train needs at least `least_speakers` speakers.
    """
    lacking = [split for split in ("train", "test") if split not in splits]
    if lacking:
        return f"training needs data/{' and data/'.join(lacking)} too: prepare more parts"
    speakers = splits["train"]["speakers"]
    if "dev" not in splits and speakers < least_speakers:
        return (
            f"training tunes on data/dev, or on every {HELD_OUT}th speaker of data/train, which has {speakers}:"
            f" add speakers, or make folders train, dev and test without common speakers"
        )
    return None


def show_corpora(wanted: bool) -> None:
    """Print the list of corpora and end the program if `wanted`."""
    if not wanted:
        return
    for name, corpus in CORPORA.items():
        size = _size(sum(part.megabytes for part in corpus.parts)) if corpus.address else "no download"
        say(f"{name}: {corpus.about}")
        say(f"  {sum(part.hours for part in corpus.parts):.1f} h, {size}, licence: {corpus.licence}, {corpus.page}")
        for part in corpus.parts:
            when = ", only when named by --part" if part.optional else ""
            source = f"in {' and '.join(part.packages)}" if part.packages else _size(part.megabytes)
            say(f"  part {part.name}: {part.hours:.1f} h, {source}{when}")
        say(f"  {corpus.splits}")
    raise typer.Exit


def _size(megabytes: float) -> str:
    return f"{megabytes / 1000:.1f} GB" if megabytes >= 1000 else f"{megabytes:.0f} MB"
