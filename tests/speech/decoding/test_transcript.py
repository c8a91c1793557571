"""Transcripts in every format are read back unchanged, for any names of files and words."""

from __future__ import annotations

import json
import os
import re
import urllib.parse

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.speech.decoding.transcript import (
    FORMATS,
    Transcript,
    Word,
    as_ctm,
    as_json,
    as_srt,
    as_text,
    one_field,
    readable,
    stem_of,
)

HOSTILE = [
    "a b.wav",
    ";;x",
    "a\nb",
    "x --> y",
    "%41",
    "\udcff\udcfe.wav",
    "ü/名.flac",
    "[red]x[/]",
    "\u202etxt",
    "1\t2",
    "''",
]
names = st.one_of(
    st.sampled_from(HOSTILE),
    st.binary(min_size=1, max_size=12).filter(lambda b: b"\0" not in b).map(os.fsdecode),
)
spoken = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=14).filter(
    lambda w: w.split() == [w]
)


@st.composite
def transcripts(draw):
    words, clock = [], 0.0
    for word in draw(st.lists(spoken, max_size=20)):
        start = clock + draw(st.integers(0, 2000)) / 1000
        clock = start + draw(st.integers(0, 900)) / 1000
        words.append(Word(word, start, clock, draw(st.integers(0, 1000)) / 1000))
    return Transcript(draw(names), clock + 1, tuple(words), ((0.0, clock + 1),))


@given(transcripts())
def test_ctm_has_six_fields_and_gives_everything_back(found):
    text = as_ctm(found)
    lines = text.split("\n")
    assert lines.pop() == ""
    assert len(lines) == len(found.words)
    for line, word in zip(lines, found.words, strict=True):
        assert not line.startswith(";;")
        name, channel, start, length, written, confidence = line.split(" ")
        assert urllib.parse.unquote_to_bytes(name) == os.fsencode(stem_of(found.source))
        assert (channel, written) == ("1", word.word)
        assert float(start) == pytest.approx(word.start_seconds, abs=6e-4)
        assert float(length) == pytest.approx(word.end_seconds - word.start_seconds, abs=6e-4)
        assert float(confidence) == pytest.approx(word.confidence, abs=6e-4)


def seconds(clock):
    hours, minutes, rest = clock.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(rest.replace(",", "."))


@given(transcripts())
def test_subtitles_are_numbered_in_order_and_hold_all_words(found):
    cues = [cue.split("\n") for cue in as_srt(found).split("\n\n")]
    assert cues.pop() == [""]
    assert [cue[0] for cue in cues] == [str(n) for n in range(1, len(cues) + 1)]
    said, before = [], 0.0
    for _, clock, line in cues:
        assert re.fullmatch(r"\d\d:[0-5]\d:[0-5]\d,\d{3} --> \d\d:[0-5]\d:[0-5]\d,\d{3}", clock)
        start, end = (seconds(side) for side in clock.split(" --> "))
        assert before - 0.002 <= start < end
        before = start
        said += line.split(" ")
        assert len(line) <= 42 or " " not in line
        first = found.words[len(said) - len(line.split(" "))]
        assert start == pytest.approx(first.start_seconds, abs=6e-4)
    assert said == [word.word for word in found.words]


@settings(deadline=None)
@given(transcripts())
def test_json_and_text(found):
    read = json.loads(as_json(found))
    assert as_json(found).count("\n") == 1
    assert read["text"] == as_text(found).rstrip("\n") == " ".join(w.word for w in found.words)
    assert [w["word"] for w in read["words"]] == [w.word for w in found.words]
    for written, word in zip(read["words"], found.words, strict=True):
        assert written["end_seconds"] == pytest.approx(word.end_seconds, abs=1e-4)
        assert written["confidence"] == pytest.approx(word.confidence, abs=1e-4)


@given(names)
def test_names_are_one_line_of_valid_text(name):
    for written in (readable(name), one_field(name)):
        assert written.encode()
        assert written.isprintable()
    assert one_field(name).split() == [one_field(name)]
    content = Transcript(name, 1.0, (Word("a", 0.0, 0.5, 1.0),))
    for form in FORMATS.values():
        assert form(content).encode()


def test_hours_are_written_as_hours():
    late = Transcript("x", 7300.0, (Word("a", 7199.9996, 7261.5, 0.5),))
    assert "02:00:00,000 --> 02:01:01,500" in as_srt(late)


@pytest.mark.parametrize(
    ("words", "too_short", "silent", "notes"),
    [
        ((Word("a", 0.0, 0.02, 1.0),), False, False, ()),
        ((), False, False, ("no word was recognised in 0.040 s of audio",)),
        ((), True, False, ("0.040 s of audio are shorter than one frame of features: no words",)),
        ((), True, True, ("0.040 s of audio are shorter than one frame of features: no words",)),
        ((), False, True, ("0.040 s of audio are digital silence: no words; check the recording",)),
    ],
)
def test_a_recording_without_words_is_told(words, too_short, silent, notes):
    found = Transcript("x", 0.04, words, too_short=too_short, silent=silent)
    assert found.notes == notes
    assert json.loads(as_json(found))["silent"] is silent
