"""Run folders, whole and damaged, become one self-contained page."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from murmur.report.about import strategy_of
from murmur.report.page import write_curve, write_report, write_text
from murmur.report.read import ReportError, names_of, read_run
from murmur.report.records import MOST_POINTS, Records
from murmur.report.verdict import headline, notes, ranking

STEP = {"kind": "step", "figures": {}, "loss": 1.0, "staleness": 0, "epoch": 0.0, "data_seconds": 0.0}


def record_lines(learners: int, steps: int, last_logprob: float = -1.0) -> list[str]:
    """Steps of all learners, each with 0.2 s of compute and 0.1 s of waiting, and an evaluation every four steps."""
    lines = []
    for step in range(steps):
        for learner in range(learners):
            at = {"learner": learner, "step": step, "minibatches": step * learners, "samples": 100.0 * step * learners}
            spent = {"seconds": 0.3 * (step + 1), "compute_seconds": 0.2, "waiting_seconds": 0.1, "rate": 1e-3}
            lines.append(json.dumps(STEP | at | spent | {"communicating_seconds": None}))
        if step % 4 == 3:
            figures = {"logprob": last_logprob - steps + step, "frame accuracy": step / steps, "loss": 9.0}
            mark = STEP | {"kind": "evaluation", "learner": 0, "figures": figures, "rate": None}
            lines.append(json.dumps(mark | {"samples": 100.0 * (step + 1) * learners, "seconds": 0.3 * (step + 1)}))
    return lines


def make_run(folder: Path, learners: int = 1, wer: float | None = 2.0, steps: int = 12) -> Path:
    """A run folder as written by training; without `wer`, an unfinished one."""
    folder.mkdir(parents=True)
    strategy = {"type": "murmur.strategies.kavg.KAVG", "K": 4}
    facts = {"learners": learners, "command": ["murmur", "train", "<x>"], "commit": "abc", "python": "3.11"}
    facts |= {"experiment": {"seed": 7, "strategy": strategy}, "versions": {"torch": "2"}, "digest": "00"}
    (folder / "run.json").write_text(json.dumps(facts))
    (folder / "records.jsonl").write_text("\n".join(record_lines(learners, steps)) + "\n")
    span = {"ph": "X", "cat": "evaluation", "pid": 0, "dur": 250000.0}
    (folder / "trace.json").write_text("[\n" + json.dumps(span) + ",\n" + json.dumps(span | {"pid": 1}) + ",\n{cut")
    (folder / "phases.json").write_text(json.dumps({"corpus": 5.0, "features": 4.0}))
    if wer is not None:
        test = {"monophone test wer": 9.0, "network dev wer": 0.5}
        test |= {"network test wer": wer, "network test low": wer - 1, "network test high": wer + 1}
        score = {"test": test, "lines": [f"%WER {wer} & more"], "test_seconds": 3.0}
        (folder / "score.json").write_text(json.dumps(score))
    return folder


def test_a_run_is_read(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "two", learners=2))
    assert run.problems == ()
    assert run.records.steps_of == {0: 12, 1: 12}
    assert run.records.seconds_of[1]["compute"] == pytest.approx(12 * 0.2)
    assert run.records.seconds_of[1]["waiting"] == pytest.approx(12 * 0.1)
    assert [e.samples for e in run.records.evaluations] == [800.0, 1600.0, 2400.0]
    expected = {"corpus": 5.0, "features": 4.0, "training": 3.6, "evaluation": 0.25, "decoding": 3.0}
    assert run.phases == pytest.approx(expected)
    assert list(run.phases) == list(expected)
    assert run.headline is not None
    assert (run.headline.name, run.headline.percent) == ("network test wer", 2.0)
    assert (run.headline.low, run.headline.high) == (1.0, 3.0)


def test_of_two_evaluations_at_one_place_the_later_one_counts() -> None:
    records = Records()
    for samples, loss in ((1.0, 5.0), (2.0, 4.0), (2.0, 3.0)):
        mark = {"kind": "evaluation", "figures": {"loss": loss, "bad": None}}
        records.add(STEP | mark | {"samples": samples, "seconds": samples, "epoch": samples})
    assert [e.figures for e in records.evaluations] == [{"loss": 5.0}, {"loss": 3.0}]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_records_cut_off_anywhere_are_read_as_far_as_they_go(data: st.DataObject, tmp_path_factory) -> None:
    text = "\n".join(record_lines(2, 8)) + "\n"
    cut = data.draw(st.integers(0, len(text)))
    folder = tmp_path_factory.mktemp("cut")
    (folder / "records.jsonl").write_text(text[:cut])
    run = read_run(folder)
    assert sum(run.records.steps_of.values()) + len(run.records.evaluations) == text[:cut].count("\n")
    assert any("records.jsonl: the last line is unfinished" in p for p in run.problems) == (text[:cut][-1:] not in "\n")
    assert not any("damaged" in p for p in run.problems)
    assert any("run.json" in p for p in run.problems)


def test_a_long_curve_is_thinned_out() -> None:
    records = Records()
    for n in range(20 * MOST_POINTS):
        records.add(STEP | {"learner": 0, "samples": float(n), "seconds": 1.0, "rate": 0.1})
    assert MOST_POINTS <= len(records.rates) <= 2 * MOST_POINTS
    assert records.rates[0][0] == 0.0
    assert records.rates[-1][0] > 19 * MOST_POINTS


def test_the_lowest_error_rate_wins_and_doubt_is_told(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / n, wer=w) for n, w in (("one", 2.5), ("two", 2.0), ("far", 8.0), ("open", None))]
    ranked = ranking([read_run(folder) for folder in folders])
    assert [run.name for run in ranked] == ["two", "one", "far", "open"]
    assert headline(ranked) == (
        "No difference beyond chance in word error rate: two 2.00 % (95 % interval 1.00 to 3.00 %),"
        " one 2.50 % (95 % interval 1.50 to 3.50 %); training took equally long, within 5 %"
    )
    winner = "Winner: two, word error rate 2.00 % (95 % interval 1.00 to 3.00 %)"
    assert headline([ranked[0], *ranked[2:]]).startswith(winner)
    assert headline(ranked[:1]) == "two: word error rate 2.00 % (95 % interval 1.00 to 3.00 %)"
    said = " ".join(notes(ranked))
    assert said.startswith("Measured on test, by the network. ")
    assert "overlaps with that of one." in said
    assert "without an error rate: open." in said


@pytest.mark.parametrize(
    ("simulated", "told"),
    [((), "; two trained 1.92 times as long as one"), (("one", "two"), "one, in virtual seconds"), (("two",), " %)")],
)
def test_the_verdict_tells_the_training_time(simulated: tuple[str, ...], told: str, tmp_path: Path) -> None:
    runs = []
    for name, steps in (("one", 12), ("two", 23)):
        folder = make_run(tmp_path / name, wer=0.0, steps=steps)
        if name in simulated:
            facts = json.loads((folder / "run.json").read_text())
            (folder / "run.json").write_text(json.dumps(facts | {"simulated": {"kind": "x"}}))
        runs.append(read_run(folder))
    assert headline(ranking(runs)).endswith(told)


def test_without_error_rates_held_out_figures_decide(tmp_path: Path) -> None:
    runs = [read_run(make_run(tmp_path / name, wer=None, steps=steps)) for name, steps in (("b", 4), ("a", 8))]
    worse = runs[0].records.evaluations[-1].figures
    assert worse["logprob"] == -2.0
    object.__setattr__(runs[0].records.evaluations[-1], "figures", {"loss": 3.0})
    ranked = ranking(runs)
    assert [run.name for run in ranked] == ["a", "b"]
    least = "Best: a, held-out log-probability -2.0000; no word error rate"
    assert headline(ranked) == f"{least}; a trained 2.00 times as long as b"
    assert headline(ranked[1:]) == "b: held-out log-probability -3.0000; no word error rate"
    facts = {"experiment": {"strategy": {"type": "murmur.strategies.x.X", "mixing": "murmur.core.mixing.ring", "K": 2}}}
    assert strategy_of(facts) == "X(mixing=ring, K=2)"


def test_the_page_stands_on_its_own(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / "<one>", 1, 9.5), make_run(tmp_path / "two", 2, 2.0)]
    page = write_report(folders, tmp_path / "sub" / "report.html").read_text()
    assert re.search(r"<main>\s*<h1>Winner: two", page)
    assert "(95\u00a0% interval" in page
    assert "Diamonds" not in page  # no run is simulated
    assert "<one>" not in page
    assert "<x>" not in page
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    assert not re.findall(r"url\((?!#)", page)
    assert not re.findall(r"<(?:link|img|iframe|object)\b(?![^>]*data:)", page)
    svgs = re.findall(r"<svg(?! class=.swatch)[^>]*>", page)
    assert len(svgs) == 7  # no staleness in lock-step runs
    for svg in svgs:
        assert 'role="img"' in svg
        assert "viewBox" in svg
        assert " width=" not in svg
        assert re.search(r'aria-label="[^"]{20,}"', svg)
    identifiers = re.findall(r'\bid="([^"]+)"', page)
    assert len(set(identifiers)) == len(identifiers)
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', page)) <= set(identifiers)
    for told in (
        "KAVG(K=4)",
        "abc",
        "torch 2",
        "corpus 5.0 s",
        "murmur train &#39;&lt;x&gt;&#39;",
        "%WER 2.0 &amp; more",
    ):
        assert told in page


def test_staleness_is_shown_where_there_is_any(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    stale = (folder / "records.jsonl").read_text().replace('"staleness": 0', '"staleness": 2')
    (folder / "records.jsonl").write_text(stale)
    assert "Staleness" in write_report([folder], tmp_path / "r.html").read_text()


def test_timelines_come_from_the_trace_and_shares_are_text(tmp_path: Path) -> None:
    run = make_run(tmp_path / "two", learners=2)
    page = write_report([run], tmp_path / "r.html").read_text()
    assert f"{run}/trace.json holds no spans." in page  # it has events without times
    assert "two: compute 67 %, waiting 33 %." in page
    span = {"ph": "X", "cat": "compute", "pid": 1, "ts": 1e6, "dur": 250000.0}
    (run / "trace.json").write_text(f"[\n{json.dumps(span)},\n")
    page = write_report([run], tmp_path / "r.html").read_text()
    lanes = re.findall(r'<svg class="lanes".*?</svg>', page, re.DOTALL)
    assert len(lanes) == 1
    assert ">learner 1<" in lanes[0]
    assert "style" not in lanes[0]
    assert ".lanes .compute{fill:var(--c0)" in page  # the colours of the page


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    for damaged, content in (("run.json", "{"), ("score.json", "[]"), ("phases.json", "{}")):
        (folder / damaged).write_text(content)
    (folder / "records.jsonl").unlink()
    (folder / "trace.json").unlink()
    page = write_report([folder], tmp_path / "r.html").read_text()
    for name in ("run.json cannot be read", "score.json holds a list", "records.jsonl is missing"):
        assert f"{folder}/{name}" in html.unescape(page)


def test_the_curve_is_a_picture_of_its_own(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name) for name in ("a", "b")]
    picture = ElementTree.parse(write_curve(runs, tmp_path / "curve.svg")).getroot()
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    told = "".join(picture.itertext())
    style, *_ = [each.text or "" for each in picture if each.tag.endswith("style")]
    assert style.index("--ink: #1b1b1b") < style.index("(prefers-color-scheme: dark)") < style.index("--ink: #e9e7e3")
    used = {found for each in picture.iter() for found in re.findall(r"#[0-9a-f]{6}|var[^)]*", each.get("style", ""))}
    assert {"var(--panel", "var(--ink", "var(--c0"} <= used
    assert not any(colour.startswith("#") for colour in used)
    assert all(word in told for word in ("seconds of training", "nats per frame", "a", "b"))
    for run in runs:
        (run / "records.jsonl").write_text("")
    with pytest.raises(ReportError, match="no evaluation yet"):
        write_curve(runs, tmp_path / "none.svg")


def test_folders_that_are_no_runs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ReportError, match="empty holds neither"):
        write_report([tmp_path / "empty"], tmp_path / "r.html")
    with pytest.raises(ReportError, match="at least one"):
        write_report([], tmp_path / "r.html")
    run = make_run(tmp_path / "a")
    with pytest.raises(ReportError, match="twice"):
        write_report([run, run], tmp_path / "r.html")
    assert names_of([tmp_path / "x" / "a", tmp_path / "y" / "a"]) == ["x/a", "y/a"]


def make_simulated(folder: Path, tested: bool = False) -> Path:
    """A run of murmur simulate: an hour of virtual time, without a score."""
    run = make_run(folder, learners=2, wer=2.0 if tested else None)
    facts = json.loads((run / "run.json").read_text())
    kill = {"type": "murmur.worlds.virtual.cluster.Kill", "learner": 1, "at_seconds": 30.0}
    cluster = {"learners_per_node": 8, "faults": [kill]}
    facts["simulated"] = {"kind": "v100-ethernet", "cluster": cluster, "compute": None, "tested": tested}
    (run / "run.json").write_text(json.dumps(facts))
    mark = STEP | {"kind": "evaluation", "learner": 0, "figures": {"loss": 1.5}, "samples": 9e3, "seconds": 7200.0}
    with (run / "records.jsonl").open("a") as file:
        file.write(json.dumps(mark | {"consensus_distance": 0.25}) + "\n")
    return run


def test_a_simulated_run_says_so_and_shows_virtual_hours(tmp_path: Path) -> None:
    page = write_report([make_simulated(tmp_path / "paper")], tmp_path / "r.html").read_text()
    said = html.unescape(re.sub(r"<[^>]+>", " ", page))
    assert "Simulated: gradients are real" in said
    assert "2 learners, v100-ethernet" in said
    assert "2 virtual h" in said
    assert "against virtual hours" in said
    assert "Distance of the learners from the consensus" in said
    assert "Kill(learner=1, at_seconds=30.0)" in said
    assert "Not finished" not in said  # nobody asked for a test
    assert "Time by phase" not in said  # virtual and real seconds do not add up


def test_virtual_and_real_runs_side_by_side_are_told_apart(tmp_path: Path) -> None:
    runs = [make_simulated(tmp_path / "paper", tested=True), make_run(tmp_path / "real")]
    said = html.unescape(write_report(runs, tmp_path / "r.html").read_text())
    assert "paper (virtual)" in said
    assert "Simulated (paper)" in said
    assert "real (virtual)" not in said
    assert "against virtual hours" not in said


def test_a_page_is_written_through_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.html", tmp_path / "link.html"
    link.symlink_to(real)
    write_text(link, "page")
    assert link.is_symlink()
    assert real.read_text() == "page"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.html", "real.html"]
