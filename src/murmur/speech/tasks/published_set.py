"""Data sets of published corpora: their parts, what a written set holds, and the commands that lead on from it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from murmur.core.counted import are, counted, named
from murmur.core.errors import SettingError
from murmur.speech.corpus.corpus import Problem, left_out, losses
from murmur.speech.corpus.published.catalogue import CORPORA, CorpusPart, Published
from murmur.speech.tasks.corpora import HELD_OUT

DEV_OF_UTTERANCES = ("yesno",)  # recipes whose dev holds utterances of train, not speakers of their own
FEW_WORDS = 200  # with fewer words, one error changes the error rate by more than half a percent


def listing() -> Iterator[str]:
    """Lines about all corpora: size, licence and parts."""
    for name, corpus in CORPORA.items():
        size = _size(sum(part.megabytes for part in corpus.parts)) if corpus.address else "no download"
        yield f"{name}: {corpus.about}"
        yield f"  {sum(part.hours for part in corpus.parts):.1f} h, {size}, licence: {corpus.licence}, {corpus.page}"
        for part in corpus.parts:
            when = ", only when named by --part" if part.optional else ""
            source = f"in {' and '.join(part.packages)}" if part.packages else _size(part.megabytes)
            yield f"  part {part.name}: {part.hours:.1f} h, {source}{when}"
        yield f"  {corpus.splits}"


def _size(megabytes: float) -> str:
    return f"{megabytes / 1000:.1f} GB" if megabytes >= 1000 else f"{megabytes:.0f} MB"


def from_only(name: str, corpus: Published) -> str:
    """The way to a corpus that cannot be downloaded."""
    if not corpus.parts:
        return f"{name} is not published anywhere: --from FOLDER"
    needs = "; ".join(f"{part.name}: {' and '.join(part.packages)}" for part in corpus.parts)
    return f"{name} cannot be downloaded: get its packages from the LDC; --from FOLDER names their folder ({needs})"


def chosen_parts(name: str, names: Sequence[str], download: bool) -> tuple[CorpusPart, ...]:
    """The parts of these names; without names all parts of a folder, or the usual ones of a download.

    Raises:
        SettingError: the corpus has no such part.
    """
    parts = CORPORA[name].parts
    by_name = {part.name: part for part in parts}
    for part in names:
        if part not in by_name:
            raise SettingError(f"{name} has no part {part!r}; its parts: {', '.join(by_name)}")
    if names:
        return tuple(by_name[part] for part in names)
    return tuple(part for part in parts if not (download and part.optional))


def contents(corpus: Published, out: Path, manifest: Mapping[str, Any]) -> Iterator[str]:
    """One line per split, what is left out, and the next command."""
    yield from _splits(manifest, out)
    splits = manifest["splits"]
    why = _why_not_trainable(splits, 1 if corpus.recipe in DEV_OF_UTTERANCES else HELD_OUT)
    if why is not None:
        yield why
        return
    words = splits["test"]["words"]
    if words < FEW_WORDS:
        yield f"data/test holds {counted(words, 'word')}: a single error is {100 / words:.1f} % of them; add recordings"
    for split, trained in manifest["trained_speakers"].items():
        yield (
            f"{len(trained)} of {counted(splits[split]['speakers'], 'speaker')} of data/{split} {are(len(trained))} in"
            f" data/train too ({named(trained)}): expect more errors with other speakers"
        )
    if manifest["rate_hz"] is not None:
        channels = "one channel" if corpus.address or not corpus.parts else "two channels, each utterance one of them"
        others, rate = manifest["resampled"], f"{manifest['rate_hz']} Hz"
        if others:
            yield f"{counted(others, 'recording')} at other rates: training uses copies of {rate} in {out / 'audio'}"
        yield f"all {'other ' if others else ''}recordings have {rate} and {channels}; training uses them as they are"
    yield f"licence: {corpus.licence}; more in {out / 'manifest.json'}"
    yield from _next_commands(corpus, out)


def _splits(manifest: Mapping[str, Any], out: Path) -> Iterator[str]:
    for split, facts in manifest["splits"].items():
        yield (
            f"{out / 'data' / split}: {counted(facts['utterances'], 'utterance')},"
            f" {counted(facts['speakers'], 'speaker')}, {facts['hours']:.2f} h, {len(facts['skipped'])} skipped"
        )
        wordless = [(name, "no words") for name in facts["wordless"]]
        if wordless:
            yield f"data/{split}: {left_out('segment', wordless, facts['utterances'] + len(wordless))}"
        if facts["skipped"]:
            skipped = [Problem(**problem) for problem in facts["skipped"]]
            yield f"data/{split}: {losses(skipped, facts['utterances'])}"
    outside = [(problem["utterance"], problem["what"]) for problem in manifest["outside"]]
    if outside:
        yield left_out("recording", outside)
    if manifest["absent"]:
        yield f"missing parts, left out: {', '.join(manifest['absent'])}"


def _why_not_trainable(splits: Mapping[str, Any], least_speakers: int) -> str | None:
    """The reason why these splits cannot be trained on, with a remedy; None if they can.

    Without data/dev, data/train needs at least `least_speakers` speakers.
    """
    lacking = [split for split in ("train", "test") if split not in splits]
    if lacking:
        return f"training needs data/{' and data/'.join(lacking)} too: prepare more parts"
    speakers = splits["train"]["speakers"]
    if "dev" in splits or speakers >= least_speakers:
        return None
    return (
        f"training tunes on data/dev, or on every {HELD_OUT}th speaker of data/train, which has {speakers}: add"
        " speakers, or make folders train, dev and test without common speakers"
    )


def _next_commands(corpus: Published, out: Path) -> list[str]:
    """The commands that lead from a data set to a model."""
    place, setting = shlex.quote(str(out)), shlex.quote(f"task.corpus={out}")
    recipe = f"murmur train {corpus.recipe} --set {setting}"
    letters = f"murmur train ctc --set {setting} --set task.units={corpus.units}"
    makes = {
        "lexicon.txt": f"murmur lexicon {place}/data/train --guess espeak --out {place}",
        "lm.arpa.gz": f"murmur lm train {place}/data/train --out {place}/lm.arpa.gz",
    }
    missing = [file for file in corpus.needs if not (out / file).is_file()]
    if not corpus.recipe or not makes.keys() >= set(missing):
        return [f"next: {letters}"]
    commands = [f"next: {command}" for command in (*(makes[file] for file in missing), recipe)]
    return [*commands, f"or, with hours of speech, without a lexicon: {letters}"] if missing else commands
