"""NIST SPHERE files: their header, and the decoding of those that libsndfile cannot read.

A header is 1024 bytes or a multiple of them: `NIST_1A`, its size, lines `name -type value`, `end_head`. libsndfile
reads linear, mu-law and A-law samples, with any number of channels. Most telephone corpora of the LDC are compressed by
`shorten` (sample_coding `ulaw,embedded-shorten-v2.00`); the LDC's program `sph2pipe` unpacks them.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from murmur.speech.corpus.corpus import CorpusError

MAGIC = b"NIST_1A"
LONGEST_HEADER = 1 << 16
TO_CODING = {"ulaw": "-u", "mu-law": "-u", "alaw": "-a"}  # options of sph2pipe that keep 8-bit samples as they are
REMEDY = (
    "its samples are compressed by shorten, which only the program sph2pipe unpacks: install it"
    " (`lhotse install-sph2pipe`, then put it on the PATH)"
)


@dataclass(frozen=True)
class SphereHeader:
    """The facts of a header.

    Attributes:
        channels: interleaved channels.
        samples: samples of one channel.
        rate_hz: sample rate.
        coding: sample coding, such as `pcm`, `ulaw` or `ulaw,embedded-shorten-v2.00`.
    """

    channels: int
    samples: int
    rate_hz: int
    coding: str

    @property
    def is_shortened(self) -> bool:
        """True if the samples are compressed by shorten."""
        return "shorten" in self.coding


def is_shortened(path: Path) -> bool:
    """True for a SPHERE file compressed by shorten, whatever its name; False for other and for missing files.

    Raises:
        CorpusError: a SPHERE file has no complete header.
    """
    if not path.is_file():
        return False
    with path.open("rb") as file:
        sphere = file.read(len(MAGIC)) == MAGIC
    return sphere and read_header(path).is_shortened


def read_header(path: Path) -> SphereHeader:
    """Read the header of a SPHERE file; a missing channel_count is 1, a missing sample_coding is pcm.

    Raises:
        CorpusError: the file has no complete header.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(LONGEST_HEADER).partition(b"end_head")[0]
    if not head.startswith(MAGIC):
        raise CorpusError(f"{path} is no NIST SPHERE file: convert it, or copy it again")
    rows = (line.split(maxsplit=2) for line in head.decode("latin-1").splitlines()[2:])
    fields = {row[0]: row[2].strip() for row in rows if len(row) == 3}
    try:
        channels, samples = int(fields.get("channel_count", 1)), int(fields["sample_count"])
        found = SphereHeader(channels, samples, int(fields["sample_rate"]), fields.get("sample_coding", "pcm"))
    except (KeyError, ValueError) as error:
        raise CorpusError(f"{path} has a damaged SPHERE header ({error}): copy the file again") from error
    if min(found.channels, found.samples, found.rate_hz) < 1:
        raise CorpusError(f"{path} has a SPHERE header without samples, channels or rate: copy the file again")
    return found


def unpack(path: Path, target: Path) -> None:
    """Write a shortened SPHERE file as WAV with all its channels, its samples unchanged (mu-law stays mu-law).

    `target` appears complete or not at all.

    Raises:
        CorpusError: sph2pipe is not installed or fails.
    """
    program = shutil.which("sph2pipe")
    if program is None:
        raise CorpusError(f"{path}: {REMEDY}")
    how = TO_CODING.get(read_header(path).coding.partition(",")[0], "-p")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.part")
    # Arguments instead of a shell command: the paths of corpora may hold spaces.
    done = subprocess.run([program, how, "-f", "wav", str(path), str(part)], capture_output=True, check=False)
    if done.returncode != 0 or not part.is_file():
        part.unlink(missing_ok=True)
        told = done.stderr.decode(errors="replace").strip()[-300:]
        raise CorpusError(f"{path}: sph2pipe failed with status {done.returncode}: {told or 'without a message'}")
    part.replace(target)
