"""Swim-lanes: geometry against runs computed by hand, colours, hostile names, stretches of traces."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from murmur.core.trace import COMPUTE, WAITING, Span, Transfer
from murmur.core.world import Seat
from murmur.report.read import ReportError
from murmur.report.swim_lanes import DARK, LIGHT, Lanes, stand_alone, swim_lanes
from murmur.report.timeline import MOST_SPANS, read_stretch, run_timeline
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Link
from murmur.worlds.virtual.world import VirtualWorld

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "]]><script>alert('1')</script>&\u202e\x1b[2J\""


def paths(svg: str) -> dict[str, list[str]]:
    """Return the paths by class, without the grid and the legend, which stands below the lanes."""
    found: dict[str, list[str]] = {}
    for kind, drawn in re.findall(r'^<path class="(\w+)" d="([^"]*)"/>$', svg, re.MULTILINE):
        found[kind] = [f"M{part}" for part in drawn.split("M")[1:]]
    return found


def texts(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_a_message_leaves_after_its_gradient_and_ends_a_wait() -> None:
    """Learner 0 computes for 1 s; its vector takes 0.5 s of latency and 1 s of transfer: learner 1 waits 2.5 s."""
    spans: list[Span] = []
    sent: list[Transfer] = []
    cluster = Cluster(2, ConstantSeconds(1.0), Link(0.5, 1e6), message_bytes=1e6)

    async def program(seat: Seat) -> None:
        if seat.group.rank == 0:
            await seat.work(lambda: None)
            seat.group.post(torch.zeros(0), 1, "empty")  # a request without a vector is not drawn
            seat.group.post(torch.zeros(3), 1)
        else:
            await seat.group.recv(0)

    VirtualWorld(cluster, spans.append, transfers=sent.append).run(program)
    assert sent == [Transfer(0, 1, 1.0, 2.5)]
    svg = swim_lanes("by hand", [Lanes("two", spans, sent)], 0.0, 3.6)  # 100 units a second, from 66 on
    drawn = paths(svg)
    assert drawn["compute"] == ["M66 24h100v12h-100z"]
    assert drawn["waiting"] == ["M66 53h250v4h-250z"]  # 25 units below
    assert drawn["message"] == ["M166 36L316 49"]  # from the lower edge of lane 0 to the upper edge of lane 1
    assert len(drawn["head"]) == 1
    assert drawn["head"][0].startswith("M316 49L")
    assert "learner 0: gradient 1 s, 1 message sent; learner 1: waiting 2.5 s" in svg


def test_a_world_without_a_picture_records_no_transfers_and_runs_alike() -> None:
    async def program(seat: Seat) -> None:
        other = 1 - seat.group.rank
        seat.group.post(torch.ones(5), other)
        await seat.group.recv(other)

    sent: list[Transfer] = []
    worlds = VirtualWorld(2), VirtualWorld(2, transfers=sent.append)
    for world in worlds:
        world.run(program)
    assert worlds[0].clock.now == worlds[1].clock.now == max(each.arrived_seconds for each in sent)
    assert worlds[0].clock.events == worlds[1].clock.events
    assert {(each.source, each.to) for each in sent} == {(0, 1), (1, 0)}


def test_a_broadcast_goes_to_all_others() -> None:
    sent: list[Transfer] = []

    async def program(seat: Seat) -> None:
        await seat.group.start_broadcast(torch.ones(5), 1, "x")

    world = VirtualWorld(3, transfers=sent.append)
    world.run(program)
    assert sorted((each.source, each.to) for each in sent) == [(1, 0), (1, 2)]
    for each in sent:
        assert each.sent_seconds == 0.0
        assert each.arrived_seconds == pytest.approx(world.clock.now, abs=1e-9)  # up to a tick of the clock


def test_what_crosses_the_edges_is_clipped() -> None:
    spans = [Span(0, COMPUTE, 0.0, 2.0), Span(1, WAITING, 3.0, 9.0), Span(1, COMPUTE, 9.0, 10.0)]
    sent = [Transfer(0, 1, 0.0, 2.0), Transfer(1, 0, 4.0, 6.0), Transfer(0, 1, 8.0, 9.0)]
    svg = swim_lanes("cut", [Lanes("two", spans, sent)], 1.0, 4.6)
    drawn = paths(svg)
    assert drawn["compute"] == ["M66 24h100v12h-100z"]
    assert drawn["waiting"] == ["M266 53h160v4h-160z"]
    assert drawn["message"] == ["M66 42.5L166 49", "M366 49L426 45.1"]  # half of one, 0.3 of the other
    assert len(drawn["head"]) == 1  # the other arrives later
    assert texts(svg)[-3:] == ["gradient", "waiting", "message"]
    assert texts(swim_lanes("", [Lanes("two", spans, sent)], 6.5, 8.0))[-1] == "waiting"  # no others are in sight


def test_hostile_names_are_text() -> None:
    svg = stand_alone(swim_lanes(HOSTILE, [Lanes(HOSTILE, [Span(0, COMPUTE, 0.0, 1.0)])], 0.0, 1.0, HOSTILE))
    root = ElementTree.fromstring(svg)
    assert {element.tag for element in root.iter()} == {
        f"{SVG}{name}" for name in ("svg", "style", "title", "desc", "rect", "path", "text")
    }
    assert root.findtext(f"{SVG}title") == "]]><script>alert('1')</script>&\\u202e\\x1b[2J\""
    assert "\u202e" not in svg
    assert "\x1b" not in svg


def test_long_names_are_broken_into_lines() -> None:
    for name in ("x" * 200, "\u97f3" * 100, "a word " * 30):
        shown = [
            text for text in texts(swim_lanes("", [Lanes(name, [Span(0, COMPUTE, 0, 1)])], 0, 1)) if text[0] in name
        ]
        assert "".join(shown).replace(" ", "") == name.replace(" ", "")
        assert max(len(text) * (2 if text[0] == "\u97f3" else 1) for text in shown) <= 62


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_have_enough_contrast(colours: str) -> None:
    named = dict(pair.split(":") for pair in colours.split(";"))
    ground = luminance(named["--panel"])
    for name in ("--ink", "--c0", "--c1", "--c4", "--c5", "--muted"):
        light, dark = sorted((luminance(named[name]), ground), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= (4.5 if name == "--ink" else 3.0), name


def test_a_file_has_both_colours_and_scales() -> None:
    element = swim_lanes("t", [Lanes("n", [Span(0, COMPUTE, 0.0, 1.0)])], 0.0, 1.0)
    svg = stand_alone(element)
    assert f".lanes{{{LIGHT}}}@media (prefers-color-scheme:dark){{.lanes{{{DARK}}}}}" in svg
    root = ElementTree.fromstring(svg)
    left, top, width, height = map(int, root.attrib["viewBox"].split())
    assert (left, top) == (0, 0)
    assert int(root.attrib["width"]) / int(root.attrib["height"]) == pytest.approx(width / height, rel=0.01)
    assert 12 * 390 / width >= 9  # letters of 12 units on a telephone
    assert "style" not in element  # on a page the colours are those of the page


def trace(folder: Path, events: list[object], end: str = "{}]\n") -> Path:
    path = folder / "trace.json"
    path.write_text("[\n" + "".join(f"{json.dumps(event)},\n" for event in events) + end)
    return path


def event(learner: int, start: float, seconds: float, kind: str = "compute") -> dict[str, object]:
    return {"ph": "X", "name": "n", "cat": kind, "pid": learner, "tid": "t", "ts": start * 1e6, "dur": seconds * 1e6}


def test_a_stretch_of_a_trace(tmp_path: Path) -> None:
    events = [event(learner, float(s), 0.5) for learner in (1, 0) for s in range(100)]
    odd = [event(0, 1.0, -1.0), {"cat": [], "pid": 0, "ts": 0, "dur": 9}, {"cat": "compute", "pid": "x", "dur": 1}, 7]
    path = trace(tmp_path, [*events, *odd], end='{"cut off')
    whole = read_stretch(path)
    assert (whole.start, whole.end, whole.last, whole.cut) == (0.0, 29.5, 99.5, False)  # 30 gradients
    part = read_stretch(path, 10.25, 2.0)
    assert [(s.learner, s.start_seconds) for s in sorted(part.spans, key=lambda s: (s.learner, s.start_seconds))] == [
        (learner, s) for learner in (0, 1) for s in (10.0, 11.0, 12.0)
    ]
    _, told = run_timeline(path, "run", 98.0, 50.0)
    assert told == "From 98 to 99.5 s of 99.5 s."


def test_a_stretch_without_spans_is_told_in_one_line(tmp_path: Path) -> None:
    path = trace(tmp_path, [])
    with pytest.raises(ReportError, match=r"^\S+trace\.json holds no spans$"):
        run_timeline(path, "run")
    path = trace(tmp_path, [event(0, 0.0, 1.0), event(0, 8.0, 1.0)])
    with pytest.raises(ReportError, match=r"holds no spans from 20 s on: it ends at 9 s$"):
        run_timeline(path, "run", 20.0)
    with pytest.raises(ReportError, match=r"holds no spans from 2 to 4 s$"):
        run_timeline(path, "run", 2.0, 2.0)


def test_a_long_stretch_is_cut_and_says_so(tmp_path: Path) -> None:
    path = trace(tmp_path, [event(learner, float(s), 1.0) for learner in range(20) for s in range(200)])
    svg, told = run_timeline(path, "run", 0.0, 200.0)
    assert told == f"From 0 to 75 s of 200 s. Cut there: no more than {MOST_SPANS} spans are drawn. 16 of 20 learners."
    assert " ".join(texts(svg)[-2:]) == told
    assert len(paths(svg)["compute"]) == 16 * 75
