"""`murmur transcribe`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from murmur.commands.options import Parallel, grouped
from murmur.core.printable import say
from murmur.speech.commands.model_options import OfRun, OwnVocabulary, Search, SearchWithBeam, given_options
from murmur.speech.corpus.recordings import Channels
from murmur.speech.recognition.export import looks_exported
from murmur.speech.recognition.trained_run import open_run
from murmur.speech.recognition.transcription import (
    Format,
    Inputs,
    check_files,
    check_speakers,
    refuse_fixed,
    transcribe_with_export,
    transcribe_with_run,
)

app = typer.Typer(add_completion=False)
SOME_FAILED = 3

Model = Annotated[Path, typer.Argument(help="Folder of a run, one of its .safetensors files, or an export folder.")]
Files = Annotated[
    tuple[str, ...], typer.Argument(metavar="FILE...", help="WAV, FLAC, Ogg, MP3 or SPHERE files, or - for a stream.")
]


@dataclass(frozen=True)
class Output:
    """The transcripts.

    Attributes:
        form: text, json, ctm or srt.
        out: Folder for the transcripts, one file per recording; standard output by default.
    """

    panel: ClassVar[str] = "Output"
    form: Annotated[Format, typer.Option("--format")] = "text"
    out: Path | None = None


@dataclass(frozen=True)
class Audio:
    """The way to read the files.

    Attributes:
        rate: Sample rate in Hz of a stream of raw 16-bit little-endian samples on -.
        channels: average channels, or give each a transcript of its own.
        longest: Longest piece in seconds; longer recordings are cut at silences.
    """

    panel: ClassVar[str] = "Audio"
    rate: Annotated[int | None, typer.Option(min=1000)] = None
    channels: Channels = "average"
    longest: Annotated[float, typer.Option(min=1.0)] = 30.0


@dataclass(frozen=True)
class SearchWithBeams(SearchWithBeam):
    """The same with the beam of confidences.

    Attributes:
        lattice_beam: Beam of the paths that confidences are computed from.
    """

    lattice_beam: Annotated[float | None, typer.Option(min=1e-06)] = None


@dataclass(frozen=True)
class Speakers:
    """Adaptation to speakers.

    Attributes:
        adapt: Adapt to the speaker: the network, if its input depends on the speaker, else the run's speaker-adapted
            Gaussian system; all files are of one speaker unless --utt2spk names them.
        utt2spk: File of lines NAME SPEAKER for --adapt; NAME is the file without folder and suffix, and -CHANNEL.
    """

    panel: ClassVar[str] = "Search"
    adapt: bool = False
    utt2spk: Path | None = None


HELP = """Transcribe recordings, with the time and the confidence of each word.

Example: murmur transcribe runs/demo/one-learner talk.flac --format srt --out subtitles

A finished run and an export folder (murmur export) can be moved; they need neither the corpus nor the cache.

A stream: ffmpeg -i talk.mp4 -f wav - | murmur transcribe runs/demo/one-learner - --format json

A vocabulary of your own: murmur transcribe runs/demo/one-learner talk.flac --grammar own.jsgf

A call with a speaker on each channel: murmur transcribe runs/demo/one-learner call.sph --channels each

Many recordings, four at a time: murmur transcribe runs/own talks/*.flac --out texts --jobs 4

One speaker's recordings, adapted to the speaker in two passes: murmur transcribe runs/own talk-*.flac --adapt

Channels are averaged and other sample rates are resampled; a line on standard error says so, for the first three files
and then with a count. Unreadable files are reported, the others are transcribed, and the exit status is 3. Each process
of --jobs holds the model and its search graph in memory. The words and their order do not depend on --jobs; the files
of one speaker (--adapt) stay in one process.
"""


@app.command(help=HELP)
@grouped
def transcribe(
    model: Model,
    files: Files,
    *,
    output: Output,
    audio: Audio,
    own: OwnVocabulary,
    search: SearchWithBeams,
    of_run: OfRun,
    adaptation: Speakers,
    parallel: Parallel,
) -> None:
    """Transcribe recordings, see HELP."""
    adapt = adaptation.adapt
    speakers = check_speakers(adapt, adaptation.utt2spk, audio.channels)
    inputs = Inputs(files, speakers, audio.rate, audio.channels, output.form, output.out, parallel.chosen or 1)
    check_files(model, of_run.weights, inputs, (*own.files, adaptation.utt2spk))
    if looks_exported(model):
        scores = Search(search.acoustic_scale, search.insertion_penalty)
        refuse_fixed(model, adapt, given_options(own, of_run, scores))
        beams = {name: value for name, value in search.given.items() if name.endswith("beam")}
        failed = transcribe_with_export(inputs, model, beams, audio.longest)
    else:
        request = own.request(search)
        wanted = of_run.wanted(model, request)
        failed = transcribe_with_run(inputs, open_run(wanted), wanted, request, audio.longest)
    if failed:
        say(f"murmur: {failed} of {len(files)} could not be read", err=True)
        raise typer.Exit(SOME_FAILED)
