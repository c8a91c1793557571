"""Frames of MP3, found without decoding: streams, their lengths, and the bytes that belong to none.

A header of a frame is four bytes: eleven ones (the sync word), version, layer, protection; bit rate, sample rate,
padding; channels. Raw samples can begin with the same bytes, so the next frame must begin where the first one ends.

A file has no header. Many encoders write a first frame without sound that counts the frames (`Xing`, `Info`, `VBRI`).
Without it libsndfile estimates the length from the bit rate of the first frames, and reads no further than that.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

HEADER_BYTES = 4
LAYER_3 = 1
CONTAINERS = (b"RIFF", b"RIFX", b"RF64", b"riff", b"FORM", b"caff", b".snd", b"NIST_1A", b"Creative", b"MATLAB")
MONO = 3
RATES_HZ = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}  # by version: 1, 2, 2.5
KBITS_1 = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
KBITS_2 = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
COUNTING_KBITS = 9  # index of the bit rate of a frame that counts: long enough at every sample rate
SIDE_BYTES = {(True, False): 32, (True, True): 17, (False, False): 17, (False, True): 9}  # by version 1, mono
VBRI_OFFSET = 36
DECODER_DELAY = 529
SILENCE_SAMPLES = 4608  # whole frames, and whole turns of a decoder's buffer of 16 times 32 samples
NO_TAG = b"ID3\4" + bytes(5) + b"\x0a" + bytes(10)  # an ID3 tag of nothing, by which libsndfile knows MP3
BEGINNING = re.compile(rb"\xff[\xe2-\xff]|ID3|TAG|APETAGEX|LYRICSBEGIN")  # of a frame or a tag


class Frame(NamedTuple):
    """A frame: the range of its bytes; its version, sample rate in Hz, and True for one channel."""

    first: int
    end: int
    kind: tuple[int, int, bool]


@dataclass
class Stream:
    """Frames of one version, sample rate and number of channels, one encoder's work.

    Attributes:
        kind: that of its frames.
        spans: ranges of bytes with its frames.
        counted: number of frames that its first frame states; None without one.
        frames: number of frames found, without the one that counts.
    """

    kind: tuple[int, int, bool]
    spans: list[tuple[int, int]] = field(default_factory=list)
    counted: int | None = None
    frames: int = 0

    @property
    def seconds(self) -> float:
        """Length of its frames."""
        return self.frames * self.frame_samples / self.kind[1]

    @property
    def frame_samples(self) -> int:
        """Samples of a frame."""
        return 1152 if self.kind[0] == 3 else 576

    def add(self, frame: Frame) -> None:
        """Append a frame."""
        if self.spans and self.spans[-1][1] == frame.first:
            self.spans[-1] = (self.spans[-1][0], frame.end)
        else:
            self.spans.append((frame.first, frame.end))


def has_frames(head: bytes) -> bool:
    """True if frames begin in the head of a file that is no container known to libsndfile."""
    return not head.startswith(CONTAINERS) and (is_frame(head, 0) or _next(head, 0) < len(head))


def streams_in(content: bytes) -> tuple[list[Stream], list[tuple[int, int]]]:
    """The streams of a file, and the ranges of bytes that are neither frames nor tags."""
    streams: list[Stream] = []
    junk: list[tuple[int, int]] = []
    for frame in _frames(content, junk):
        counted = _count(content, frame)
        last = streams[-1] if streams else None
        if counted is not None:
            streams.append(Stream(frame.kind, counted=counted or None))
            if counted:
                streams[-1].add(frame)
            continue
        if last is None or last.kind != frame.kind or last.frames == last.counted:
            last = Stream(frame.kind)
            streams.append(last)
        last.add(frame)
        last.frames += 1
    # A frame more than was counted is no stream: some encoders do not count their first one.
    kept = [s for n, s in enumerate(streams) if s.frames > 1 or (s.frames and not (n and streams[n - 1].counted))]
    return kept, junk


def beginning(kind: tuple[int, int, bool], frames: int) -> bytes:
    """Bytes to put before frames that no first frame counts, so that their number is known and every sample is kept.

    They are a tag, a frame that counts, and frames of silence. Decoders leave out their own delay where frames are
    counted: here they leave out the silence. It fills the decoder's buffer, so that samples keep their bits.
    """
    version, rate_hz, mono = kind
    silence = bytes(
        (
            0xFF,
            0xE1 | version << 3 | LAYER_3 << 1,
            COUNTING_KBITS << 4 | RATES_HZ[version].index(rate_hz) << 2,
            MONO << 6 if mono else 0,
        )
    )
    frame = _frame(silence, 0)
    assert frame is not None
    silence += bytes(frame.end - len(silence))
    before = SILENCE_SAMPLES // (1152 if version == 3 else 576)
    delay = struct.pack(">I", SILENCE_SAMPLES - DECODER_DELAY << 12)[1:]
    count = b"Xing" + struct.pack(">II", 1, frames + before) + b"LAME" + bytes(17) + delay
    offset = HEADER_BYTES + SIDE_BYTES[version == 3, mono]
    return NO_TAG + silence[:offset] + count + silence[offset + len(count) :] + before * silence


def _frames(content: bytes, junk: list[tuple[int, int]]) -> Iterator[Frame]:
    """The frames of a file in order; ranges that are neither frames nor tags are added to `junk`."""
    place, kind = 0, None
    while place < len(content):
        frame = _frame(content, place)
        # A first frame, or one of another kind, counts if another one follows.
        if frame is not None and frame.end <= len(content) and (frame.kind == kind or is_frame(content, place)):
            kind = frame.kind
            yield frame
            place = frame.end
        elif tag := tag_bytes(content, place):
            place += tag
        else:
            following = _next(content, place)
            junk.append((place, following))
            place = following


def _next(content: bytes, place: int) -> int:
    """The place of the next frame or tag behind `place`; the end of the content if there is none."""
    for found in BEGINNING.finditer(content, place + 1):
        if is_frame(content, found.start()) or tag_bytes(content, found.start()):
            return found.start()
    return len(content)


def is_frame(content: bytes, place: int) -> bool:
    """True if a frame begins at a place, and one of its kind follows it, or a tag, or the end of the content."""
    frame = _frame(content, place)
    if frame is None:
        return False
    following = _frame(content, frame.end)
    # The bit rate may change from frame to frame, version and sample rate may not.
    return following is not None and following.kind == frame.kind


def _frame(content: bytes, place: int) -> Frame | None:
    """The frame whose header is at a place; None if there is none."""
    head = content[place : place + HEADER_BYTES]
    if len(head) < HEADER_BYTES or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return None
    version, layer = head[1] >> 3 & 3, head[1] >> 1 & 3
    bit_rate, sample_rate, padding = head[2] >> 4, head[2] >> 2 & 3, head[2] >> 1 & 1
    if version not in RATES_HZ or layer != LAYER_3 or bit_rate in (0, 15) or sample_rate == 3:
        return None
    kbits, unit = (KBITS_1, 144) if version == 3 else (KBITS_2, 72)
    rate_hz = RATES_HZ[version][sample_rate]
    length = unit * 1000 * kbits[bit_rate - 1] // rate_hz + padding
    return Frame(place, place + length, (version, rate_hz, head[3] >> 6 == MONO))


def _count(content: bytes, frame: Frame) -> int | None:
    """The number of frames that a frame without sound states, 0 if it states none; None for a frame with sound."""
    body = content[frame.first : frame.end]
    offset = HEADER_BYTES + SIDE_BYTES[frame.kind[0] == 3, frame.kind[2]]
    if body[offset : offset + 4] in (b"Xing", b"Info") and len(body) >= offset + 12:
        flags, count = struct.unpack_from(">II", body, offset + 4)
        return int(count) if flags & 1 else 0
    if body[VBRI_OFFSET : VBRI_OFFSET + 4] == b"VBRI" and len(body) >= VBRI_OFFSET + 18:
        return int(struct.unpack_from(">I", body, VBRI_OFFSET + 14)[0])
    return None


ID3_HEADER, ID3_BYTES, EXTENDED_ID3_BYTES, APE_BYTES = 10, 128, 227, 32
APE_IS_HEADER = 1 << 29
LYRICS_END = (b"LYRICS200", b"LYRICSEND")


def tag_bytes(content: bytes, place: int) -> int:
    """Length of the tag at a place of the content (ID3, APE, Lyrics3); 0 if there is none."""
    head = content[place : place + APE_BYTES]
    if head[:3] == b"ID3" and len(head) >= ID3_HEADER and max(head[6:10]) < 0x80:
        size = head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9]
        return ID3_HEADER * (2 if head[5] & 0x10 else 1) + size
    if head[:3] == b"TAG":
        return EXTENDED_ID3_BYTES if head[3:4] == b"+" else ID3_BYTES
    if head[:8] == b"APETAGEX" and len(head) == APE_BYTES:
        size, _, flags = struct.unpack_from("<III", head, 12)
        return int(size) + APE_BYTES if flags & APE_IS_HEADER else APE_BYTES
    if head[:11] == b"LYRICSBEGIN":
        ends = [content.find(end, place) for end in LYRICS_END]
        return min((end for end in ends if end >= 0), default=len(content)) + len(LYRICS_END[0]) - place
    return 0


def is_filling(content: bytes, first: int, end: int) -> bool:
    """True if bytes between streams hold no sound: zeros at the ends of a file, or an APE tag without a header."""
    at_an_end = end == len(content) or not content[:first].strip(b"\0")
    if at_an_end and not content[first:end].strip(b"\0"):
        return True
    footer = content[end : end + APE_BYTES]
    return (
        footer[:8] == b"APETAGEX"
        and len(footer) == APE_BYTES
        and struct.unpack_from("<I", footer, 12)[0] >= end - first
    )
