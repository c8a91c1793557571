"""Audio files decoded to their ends by libsndfile; whatever is wrong with one is an error of soundfile or the system.

A file is the streams of its layout one behind the other. Codecs that libsndfile cannot seek are read in order.
"""

from __future__ import annotations

import io
import os
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Self

import numpy as np
import soundfile

from murmur.speech.corpus.layout import layout_of

NO_HEADER = "a .raw file holds samples without a header: convert it to WAV, or give it to murmur transcribe on -"
UNEQUAL = "has streams of different sample rates or numbers of channels: convert it (ffmpeg -i FILE NEW.wav)"
BLOCK_FRAMES = 1 << 16
FRAMES_PER_BYTE = 1 << 13  # at most, of digital silence in FLAC; a greater declared length is none
UNSEEKABLE = "DWVW"  # beginning of the names of codecs that libsndfile claims to seek
RATES_HZ = range(1000, 1_000_001)


class _InOrder(soundfile.SoundFile):  # type: ignore[misc]  # soundfile has no types
    """A file that is read in order, since seeking fails in its codec."""

    def seekable(self) -> bool:
        """False."""
        return False


class _Content(io.BytesIO):
    """The content of a file, in which a damaged header can ask for a place before its beginning, as in a file."""

    def seek(self, place: int, whence: int = os.SEEK_SET, /) -> int:
        """Move, or stay where that is impossible, and return the place."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self.tell(), os.SEEK_END: len(self.getbuffer())}[whence]
        return super().seek(start + place) if 0 <= start + place < 1 << 62 else self.tell()


class Stream:
    """One stream of a file, open.

    Attributes:
        rate_hz: sample rate.
        channels: number of channels.
        frames: number of samples of a channel.
    """

    def __init__(self, source: Path | bytes) -> None:
        self._source = source
        self._file = self._opened(soundfile.SoundFile)
        size = source.stat().st_size if isinstance(source, Path) else len(source)
        self.rate_hz, self.channels = int(self._file.samplerate), int(self._file.channels)
        self.frames, self.format = int(self._file.frames), str(self._file.format)
        endless = self.frames > (size + BLOCK_FRAMES) * FRAMES_PER_BYTE
        self._in_order = endless or not self._file.seekable() or self._file.subtype.startswith(UNSEEKABLE)
        if self.rate_hz not in RATES_HZ:
            self.close()
            raise soundfile.SoundFileRuntimeError(f"it declares a sample rate of {self.rate_hz} Hz")
        if self._in_order:
            self._begin_again()
        if endless:
            self.frames = self._skip(self.frames)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read_all(self) -> np.ndarray:
        """All samples of all channels, (S, C), before any `read`: a decoder of MP3 that moves rounds otherwise."""
        return self.read(0, self.frames) if self._in_order else self._decoded(self.frames)

    def read(self, first: int, last: int) -> np.ndarray:
        """Samples [first, last) of all channels, (S, C); fewer if the stream ends before `last`."""
        if not self._in_order:
            self._file.seek(first)
            return self._decoded(last - first)
        if first < self._place:
            self._begin_again()
        self._skip(first)
        blocks = [self._decoded(0)]
        while self._place < last and len(block := self._decoded(min(last - self._place, BLOCK_FRAMES))):
            blocks.append(block)
        return np.concatenate(blocks)

    def _opened(self, kind: type[soundfile.SoundFile]) -> soundfile.SoundFile:
        source = self._source
        try:
            # Bytes, since soundfile encodes text as strict UTF-8, and names of files may be any bytes.
            return kind(os.fsencode(source) if isinstance(source, Path) else _Content(source))
        except TypeError as error:  # soundfile asks for the rate of each file whose name ends in .raw
            raise soundfile.SoundFileRuntimeError(NO_HEADER) from error
        except soundfile.LibsndfileError as error:
            raise soundfile.SoundFileRuntimeError(error.error_string) from error

    def _begin_again(self) -> None:
        self._file.close()
        self._file, self._place = self._opened(_InOrder), 0

    def _skip(self, end: int) -> int:
        """Decode up to `end`, or the end of the stream, and return the place."""
        while self._place < end and len(self._decoded(min(end - self._place, BLOCK_FRAMES))):
            pass
        return self._place

    def _decoded(self, count: int) -> np.ndarray:
        samples_SC: np.ndarray = self._file.read(count, dtype="float32", always_2d=True)
        if self._in_order:
            self._place += len(samples_SC)
        return samples_SC


class Sound:
    """An open file: one or several streams, and the fault of its layout.

    Attributes:
        source: the file, or the content of one.
        streams: its streams in order.
        fault: the fault that its layout shows, for a message that begins with its name; None if there is none.
    """

    def __init__(self, source: Path | bytes) -> None:
        layout = layout_of(source)
        self.source, self.fault = source, layout.fault
        content = b"" if not layout.streams else source.read_bytes() if isinstance(source, Path) else source
        with ExitStack() as stack:
            parts: list[Path | bytes] = [*layout.contents(content)] or [source]
            self.streams = tuple(stack.enter_context(closing(Stream(part))) for part in parts)
            self._stack = stack.pop_all()
        self.rate_hz, self.channels = self.streams[0].rate_hz, self.streams[0].channels
        self.frames, self.format = sum(stream.frames for stream in self.streams), self.streams[0].format

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def is_uniform(self) -> bool:
        """True if all streams have the same sample rate and number of channels."""
        return all((s.rate_hz, s.channels) == (self.rate_hz, self.channels) for s in self.streams)

    def read(self, first: int, last: int) -> np.ndarray:
        """Samples [first, last) of all channels, (S, C), of a uniform file; fewer if a stream ends before."""
        found, begin = [], 0
        for stream in self.streams:
            if first < begin + stream.frames and begin < last:
                found.append(stream.read(max(first - begin, 0), min(last - begin, stream.frames)))
            begin += stream.frames
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else np.zeros((0, self.channels), np.float32)


def rate_and_channels(source: Path | bytes) -> tuple[int, int]:
    """Sample rate in Hz and number of channels of the first stream of a file, whose end is not looked for.

    Raises:
        soundfile.SoundFileError: libsndfile cannot read it.
        OSError: the system cannot.
    """
    try:
        with closing(Stream(source)) as stream:
            return stream.rate_hz, stream.channels
    except soundfile.SoundFileError:
        with open_sound(source) as sound:
            return sound.rate_hz, sound.channels


def open_sound(source: Path | bytes) -> Sound:
    """Open a file or the content of one.

    Raises:
        soundfile.SoundFileError: libsndfile cannot read it.
        OSError: the system cannot.
    """
    return Sound(source)
