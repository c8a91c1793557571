"""Lhotse cut sets, read as a `Corpus`, like Kaldi data directories."""

from __future__ import annotations

from pathlib import Path

import lhotse

from murmur.speech.corpus.corpus import Audio, Corpus, CorpusError, Problem, Utterance, check_losses, normal_text
from murmur.speech.corpus.file_content import making_sense_of
from murmur.speech.corpus.lhotse_urls import lhotse_reads
from murmur.speech.corpus.remote import is_remote, location

SIDES = "AB"
ROUNDING_SECONDS = 0.1  # by which a supervision may pass the ends of its cut


def read_cuts(manifest: Path) -> Corpus:
    """The supervised stretches of a cut set (`cuts.jsonl.gz`), one utterance per supervision.

    Audio must be a file or a URL; relative paths count from the manifest's folder, then from the working directory. The
    channel is that of the supervision; a supervision of several channels is a problem. Cuts changed by lhotse (mixed,
    padded, speed perturbed) are problems, because they are not a stretch of a file. So are supervisions of which a cut
    holds only a part, and supervisions without text.

    Raises:
        CorpusError: the manifest is missing, or more than 1 % of the supervisions cannot be used.
    """
    manifest = location(manifest)
    if not is_remote(manifest) and not manifest.is_file():
        raise CorpusError(f"{manifest} is missing: name a lhotse cut manifest such as cuts.jsonl.gz")
    with lhotse_reads(manifest), making_sense_of(manifest, "write the manifest again with lhotse"):
        found = _read(manifest)
    check_losses(len(found.utterances), found.problems)
    return found


def _read(manifest: Path) -> Corpus:
    utterances, problems = [], []
    for cut in lhotse.CutSet.from_file(str(manifest)):
        for supervision in cut.supervisions:
            if not (isinstance(supervision.id, str) and isinstance(supervision.text, str | None)):
                raise CorpusError(f"{manifest}: cut {cut.id!r} has a supervision whose id or text is no text")
            text = normal_text(supervision.text or "")
            try:
                if not text:
                    raise CorpusError("its transcript is empty")
                audio = _stretch(cut, supervision, manifest.parent)
            except CorpusError as error:
                problems.append(Problem(supervision.id, str(manifest), str(error)))
                continue
            utterances.append(Utterance(supervision.id, str(supervision.speaker or supervision.id), text, audio))
    if not utterances and not problems:
        raise CorpusError(f"{manifest} holds no supervision: name a cut set with transcripts")
    return Corpus(tuple(utterances), tuple(problems))


def _stretch(cut: lhotse.MonoCut | lhotse.MultiCut, supervision: lhotse.SupervisionSegment, folder: Path) -> Audio:
    if not isinstance(cut, lhotse.MonoCut | lhotse.MultiCut) or cut.recording is None:
        raise CorpusError(
            f"cut {cut.id} is a {type(cut).__name__} without a recording of its own: store it as audio first"
        )
    if cut.recording.transforms or any(source.type not in ("file", "url") for source in cut.recording.sources):
        raise CorpusError(f"cut {cut.id} is transformed or no file: store it as audio first")
    name = _channel(cut, supervision)
    source = next((source for source in cut.recording.sources if name in source.channels), None)
    if source is None:
        raise CorpusError(f"its recording has no file with channel {name}")
    path = location(source.source)
    if not path.is_absolute() and not is_remote(path) and (is_remote(folder) or (folder / path).exists()):
        path = folder / path
    if not is_remote(path) and not path.exists():
        raise CorpusError(f"its file {path} is missing")
    if supervision.start < -ROUNDING_SECONDS or supervision.end > cut.duration + ROUNDING_SECONDS:
        raise CorpusError(
            f"its cut holds only a part of it ({max(supervision.start, 0.0):.2f} to"
            f" {min(supervision.end, cut.duration):.2f} s of {supervision.start:.2f} to {supervision.end:.2f} s): its"
            " transcript does not fit, use a cut that holds it"
        )
    start = cut.start + max(supervision.start, 0.0)
    end = min(cut.start + supervision.end, cut.end)
    if end <= start:
        raise CorpusError(f"it goes from {start:.3f} to {end:.3f} s: correct the times")
    whole = start == 0.0 and end >= cut.recording.duration
    # Names of channels are those of the recording; a file of its own for each side begins again with its first one.
    index = None if len(source.channels) == 1 else source.channels.index(name)
    names = cut.recording.channel_ids or ()
    side = (cut.recording.id, SIDES[names.index(name)]) if len(names) == len(SIDES) else None  # in time-marked files
    declared = float(cut.recording.duration)
    return Audio(path, start, None if whole else end, channel=index, side=side, declared_seconds=declared)


def _channel(cut: lhotse.MonoCut | lhotse.MultiCut, supervision: lhotse.SupervisionSegment) -> int:
    """Channel of a supervision, by its name in the recording.

    A MonoCut has one channel, which its supervisions must share; lhotse gives them 0 if they were made without one.
    """
    named = supervision.channel if isinstance(supervision.channel, list) else [supervision.channel]
    if len(named) != 1:
        raise CorpusError(f"its supervision has the channels {named}: give a supervision for each channel")
    (name,) = named
    if isinstance(cut, lhotse.MonoCut) and name != cut.channel:
        raise CorpusError(f"its supervision is of channel {name}, and its cut of channel {cut.channel}: correct one")
    if name not in (cut.recording.channel_ids or ()):
        raise CorpusError(f"its channel {name} is none of its recording, which has {cut.recording.channel_ids}")
    return int(name)
