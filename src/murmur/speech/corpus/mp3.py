"""Recognition of MP3 without an ID3 tag, which has no header of a file: it begins with the header of a frame.

A header of a frame is four bytes: eleven ones (the sync word), version, layer, protection; bit rate, sample rate,
padding; channels. Raw samples can begin with the same bytes, so the next frame must begin where the first one ends.
"""

from __future__ import annotations

HEADER_BYTES = 4
LAYER_3 = 1
RATES_HZ = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}  # by version: 1, 2, 2.5
KBITS_1 = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
KBITS_2 = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)


def begins_as_mp3(content: bytes) -> bool:
    """True if the content begins with a frame of MP3, and goes on with another one."""
    length = _frame_bytes(content)
    if length is None:
        return False
    following = content[length : length + HEADER_BYTES]
    # The bit rate may change from frame to frame, version and layer may not.
    return _frame_bytes(following) is not None and following[1] == content[1]


def _frame_bytes(content: bytes) -> int | None:
    """Length of the frame that the content begins with; None if it does not begin with a frame."""
    if len(content) < HEADER_BYTES or content[0] != 0xFF or content[1] & 0xE0 != 0xE0:
        return None
    version, layer = content[1] >> 3 & 3, content[1] >> 1 & 3
    bit_rate, sample_rate, padding = content[2] >> 4, content[2] >> 2 & 3, content[2] >> 1 & 1
    if version not in RATES_HZ or layer != LAYER_3 or bit_rate in (0, 15) or sample_rate == 3:
        return None
    kbits, unit = (KBITS_1, 144) if version == 3 else (KBITS_2, 72)
    return unit * 1000 * kbits[bit_rate - 1] // RATES_HZ[version][sample_rate] + padding
