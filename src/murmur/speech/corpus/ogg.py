"""Pages of Ogg (RFC 3533): links of a chain, which are files one behind the other, and packets.

A page is a header of 27 bytes, a table of the lengths of its segments, and the segments. A packet goes on while its
segments have 255 bytes. Pages that begin a stream stand together at the beginning of a link.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from murmur.speech.corpus.tags import tag_bytes

MAGIC = b"OggS\0"
HEADER = struct.Struct("<4sBBqIIIB")
CONTINUED, BEGINS = 1, 2
FLAC = b"\x7fFLAC"
FLAC_PREFIX = 9  # bytes of the first packet of a FLAC stream before the magic of a FLAC file


class Page(NamedTuple):
    """A page: the range of its bytes, its place in its stream, the lengths of its segments."""

    first: int
    end: int
    flags: int
    granule: int
    stream: int
    number: int
    lengths: bytes


@dataclass(frozen=True)
class Link:
    """Pages of one file in a chain of them."""

    pages: tuple[Page, ...]

    @property
    def span(self) -> tuple[int, int]:
        """The range of its bytes."""
        return self.pages[0].first, self.pages[-1].end


def links_in(content: bytes) -> tuple[list[Link], str | None]:
    """The links of a chain, and the fault of the content; None if all of it was found and is whole."""
    pages, fault = _pages(content)
    links: list[list[Page]] = []
    for page in pages:
        if not links or (page.flags & BEGINS and not links[-1][-1].flags & BEGINS):
            links.append([])
        links[-1].append(page)
    found = [Link(tuple(link)) for link in links]
    return found, fault or next((lost for link in found if (lost := _lost(link))), None)


def flac_spans(content: bytes, link: Link) -> list[tuple[int, int]] | None:
    """Ranges of bytes that make a FLAC file of a link; None if it is of another codec."""
    first = link.pages[0]
    begin = first.end - sum(first.lengths)
    if content[begin : begin + len(FLAC)] != FLAC:
        return None
    spans = [(begin + FLAC_PREFIX, first.end)]
    return spans + [(p.end - sum(p.lengths), p.end) for p in link.pages[1:] if p.stream == first.stream]


def _pages(content: bytes) -> tuple[list[Page], str | None]:
    """All pages, and the fault of the content; None if there is none."""
    found: list[Page] = []
    place = 0
    while place < len(content):
        page = _page(content, place)
        if page is not None and page.end <= len(content):
            found.append(page)
            place = page.end
            continue
        following = content.find(MAGIC, place + 1)
        if following < 0:
            inside = content[place : place + len(MAGIC)] == MAGIC[: len(content) - place]
            return found, "ends inside a page: it is cut short, copy it again" if inside else None
        if not tag_bytes(content, place) and content[place:following].strip(b"\0"):
            return found, f"is damaged at byte {place}: no page of Ogg begins there, copy it again"
        place = following
    return found, None


def _page(content: bytes, place: int) -> Page | None:
    head = content[place : place + HEADER.size]
    if len(head) < HEADER.size or not head.startswith(MAGIC):
        return None
    _, _, flags, granule, stream, number, _, segments = HEADER.unpack(head)
    lengths = content[place + HEADER.size : place + HEADER.size + segments]
    if len(lengths) < segments:
        return None
    return Page(place, place + HEADER.size + segments + sum(lengths), flags, granule, stream, number, lengths)


def _lost(link: Link) -> str | None:
    """The fault of a link that lacks pages between two with sound; those behind the headers may be left out."""
    last: dict[int, Page] = {}
    for page in link.pages:
        before = last.get(page.stream)
        if before is not None and before.granule > 0 and page.number != before.number + 1:
            return f"is damaged at byte {page.first}: pages of Ogg are missing before it, copy it again"
        last[page.stream] = page
    return None
