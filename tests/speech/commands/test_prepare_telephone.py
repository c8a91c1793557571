"""`murmur prepare` of the LDC's telephone corpora in generated layouts: words, speakers, times, and the right channel.

The corpora themselves are licensed and were not at hand; a layout that differs from lhotse's recipes shows only there.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from murmur.cli import app
from tests.support import ldc_layouts

pytest.importorskip("lhotse", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from lhotse.audio.backend import get_current_audio_backend

from murmur.speech.corpus.kaldi_dir import read_data_dir, read_table
from murmur.speech.features.analysis import read_audio
from tests.support.nist import hub_score
from tests.support.sphere_files import RATE, from_mu_law, install_unpacker, mu_law


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def prepared(name: str, root: Path, out: Path, *options: object) -> str:
    code, said = run("prepare", name, "--from", root, "--out", out, *options)
    assert code == 0, said
    return said


def content(out: Path, split: str) -> dict[str, tuple[str, str, tuple[str, str] | None, float, float | None]]:
    """Speaker, words, side, begin and end of every utterance, after a check of all samples against the tones."""
    found = {}
    for u in read_data_dir(out / "data" / split).utterances:
        audio = u.audio
        assert audio is not None
        assert audio.side is not None
        assert audio.end_seconds is not None
        first, end = (round(seconds * RATE) for seconds in (audio.start_seconds, audio.end_seconds))
        tones = from_mu_law(mu_law(ldc_layouts.samples(audio.path.stem, audio.side[1])))
        np.testing.assert_array_equal(read_audio(audio, RATE), tones[first:end])
        found[u.id] = (u.speaker, u.text, audio.side, audio.start_seconds, audio.end_seconds)
    return found


SWITCHBOARD = {
    "sw02002-A-sw2002A-ms98-a-0002": (
        *("sw02002-A", "UH TH- THAT'S RIGHT SPLURGY THEM", ("sw02002", "A")),
        *(0.5, 2.25),
    ),
    "sw02002-A-sw2002A-ms98-a-0004": ("sw02002-A", "HANG ON -T ONE", ("sw02002", "A"), 3.0, 4.125),
    "sw02002-B-sw2002B-ms98-a-0001": ("sw02002-B", "UM HUM IT'N IT", ("sw02002", "B"), 0.25, 1.5),
}


@pytest.mark.parametrize("inside", [False, True])
def test_switchboard(tmp_path: Path, inside: bool) -> None:
    before = get_current_audio_backend()
    said = prepared("switchboard", ldc_layouts.switchboard(tmp_path / "ldc", inside=inside), tmp_path / "set")
    assert content(tmp_path / "set", "train") == SWITCHBOARD
    dev = content(tmp_path / "set", "dev")
    assert dev == {  # the first of the two calls
        name.replace("2002", "2001"): (speaker.replace("2002", "2001"), words, ("sw02001", side), begin, end)
        for name, (speaker, words, (_, side), begin, end) in SWITCHBOARD.items()
    }
    assert " segments are left out: " in said
    assert ": no words\n" in said
    assert "missing parts, left out: hub5-00" in said
    assert "training needs data/test too" in said
    facts = json.loads((tmp_path / "set/manifest.json").read_text())
    assert facts["rate_hz"] == RATE
    assert list(facts["transcripts"]) == ["swbd1"]
    assert facts["splits"]["train"]["hours"] == pytest.approx((1.75 + 1.125 + 1.25) / 3600)
    assert type(get_current_audio_backend()) is type(before)
    prepared("switchboard", tmp_path / "ldc", tmp_path / "set")  # a second time, over the first
    assert content(tmp_path / "set", "train") == SWITCHBOARD


def test_all_of_switchboard_and_fisher_with_hub5_as_test(tmp_path: Path) -> None:
    root = ldc_layouts.switchboard(tmp_path / "ldc", calls=9)
    ldc_layouts.fisher(ldc_layouts.fisher(root, 1), 2, inner=True)
    said = prepared("switchboard-fisher", ldc_layouts.hub5(root), tmp_path / "set", "--jobs", 2)
    assert "all recordings have 8000 Hz and two channels, each utterance one of them" in said
    assert f"next: murmur train ctc --set task.corpus={tmp_path / 'set'} --set task.units=char" in said
    train = content(tmp_path / "set", "train")
    assert {side[0] for _, _, side, _, _ in train.values() if side} == {
        *(f"sw0{n}" for n in range(2002, 2010)),
        *("fe_03_00002", "fe_03_05852"),
    }
    assert {side[0] for _, _, side, _, _ in content(tmp_path / "set", "dev").values() if side} == {
        *("sw02001", "fe_03_00001", "fe_03_05851"),
    }
    rules = json.loads((tmp_path / "set/manifest.json").read_text())["transcripts"]
    assert list(rules) == ["swbd1", "fisher1", "fisher2", "hub5-00"]


@pytest.mark.parametrize("inner", [False, True])
def test_fisher(tmp_path: Path, inner: bool) -> None:
    root = ldc_layouts.fisher(tmp_path / "l d c", 1, inner=inner)
    said = prepared("fisher", root, tmp_path / "set")
    assert content(tmp_path / "set", "train") == {
        "fisher-1002-fe_03_00002-0": ("fisher-1002", "AND I- I THINK SO", ("fe_03_00002", "A"), 0.5, 2.0),
        "fisher-1003-fe_03_00002-1": ("fisher-1003", "UH HUH ON T V", ("fe_03_00002", "B"), 1.75, 3.25),
    }
    assert "missing parts, left out: fisher2, hub5-00" in said
    assert " segments are left out: " in said
    assert ": no words\n" in said


def test_callhome(tmp_path: Path) -> None:
    prepared("callhome", ldc_layouts.callhome(tmp_path / "ldc"), tmp_path / "set")
    for split, call in (("train", "en_4065"), ("dev", "en_4066"), ("test", "en_4067")):
        assert content(tmp_path / "set", split) == {
            f"{call}_0A-{call}_0A_00000": (f"{call}_0A", "UM I'M CONING HOME TO BOB", (call, "A"), 0.5, 2.0),
            f"{call}_0B-{call}_0B_00001": (f"{call}_0B", "TH- THANKS A LOT", (call, "B"), 1.75, 3.25),
        }


CTM = """sw_4390 A 1.1 0.1 uh 0.9
sw_4390 A 1.3 0.1 gonna 0.9
sw_4390 A 1.7 0.1 go 0.9
sw_4390 A 2.2 0.1 hum 0.9
sw_4390 A 3.0 0.1 ignored 0.9
sw_4390 B 2.1 0.2 that 0.9
sw_4390 B 2.3 0.1 is 0.9
sw_4390 B 2.5 0.1 gonna 0.9
sw_4390 B 2.9 0.1 fine 0.9
sw_4390 B 3.7 0.4 mm-hmm 0.9
en_4156 A 0.6 0.1 I'M 0.9
en_4156 A 1.1 0.1 going 0.9
en_4156 B 1.6 0.1 you 0.9
en_4156 B 1.9 0.1 know 0.9
en_4156 B 2.3 0.4 bye-bye 0.9
"""


def test_hub5_and_its_score_by_subset(tmp_path: Path) -> None:
    prepared("eval2000", ldc_layouts.hub5(tmp_path / "ldc"), tmp_path / "set")
    assert content(tmp_path / "set", "test") == {
        "sw_4390_A-000100-000250": ("sw_4390_A", "UH GONNA GO TH- HOME", ("sw_4390", "A"), 1.0, 2.5),
        "sw_4390_B-000200-000350": ("sw_4390_B", "THAT'S GOING TO BE FINE", ("sw_4390", "B"), 2.0, 3.5),
        "sw_4390_B-000350-000450": ("sw_4390_B", "UH HUH", ("sw_4390", "B"), 3.5, 4.5),
        "en_4156_A-000050-000200": ("en_4156_A", "I'M COMING HOME", ("en_4156", "A"), 0.5, 2.0),
        "en_4156_A-000400-000500": ("en_4156_A", "UH", ("en_4156", "A"), 4.0, 5.0),
        "en_4156_B-000150-000300": ("en_4156_B", "YOU KNOW BYE BYE", ("en_4156", "B"), 1.5, 3.0),
    }
    assert (tmp_path / "set/hub5e00.stm").read_text() == ldc_layouts.stm()
    (tmp_path / "hyp.ctm").write_text(CTM)
    code, said = run(
        *("score", tmp_path / "set/hub5e00.stm", tmp_path / "hyp.ctm"),
        *("--glm", tmp_path / "set/hub5e00.glm", "--errors", tmp_path / "errors.txt"),
    )
    assert code == 0, said
    # Switchboard: of (UH) GONNA GO (TH-) HOME, HUM replaces HOME; of THAT IS GONNA BE FINE, BE is missing; %BCACK.
    assert "Switchboard: %WER 18.18 [ 2 / 11, 0 ins, 1 del, 1 sub ]" in said
    # CallHome: of I AM COMING HOME, GOING replaces COMING and HOME is missing; (UH) may be; YOU KNOW BYE BYE.
    assert "CallHome: %WER 22.22 [ 2 / 9, 0 ins, 1 del, 1 sub ]" in said
    assert "Overall: %WER 20.00 [ 4 / 20, 0 ins, 2 del, 2 sub ]" in said


def test_the_score_is_that_of_nists_pipeline(tmp_path: Path) -> None:
    (tmp_path / "ref.stm").write_text(ldc_layouts.stm())
    (tmp_path / "hyp.ctm").write_text(CTM)
    (tmp_path / "rules.glm").write_text(ldc_layouts.GLM)
    assert hub_score(tmp_path) == {"sum": (6, 20, 4), "sw_4390_a": (1, 5, 1), "sw_4390_b": (2, 6, 1)} | {
        "en_4156_a": (2, 5, 2),
        "en_4156_b": (1, 4, 0),
    }
    code, said = run("score", tmp_path / "ref.stm", tmp_path / "hyp.ctm", "--glm", tmp_path / "rules.glm")
    assert code == 0, said
    for speaker, (_, words, errors) in hub_score(tmp_path).items():
        if speaker != "sum":
            assert f"{speaker}  %WER {100 * errors / words:.2f} [ {errors} / {words}," in said


def test_shortened_recordings_are_unpacked_beside_the_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = ldc_layouts.switchboard(tmp_path / "ldc", shortened=True)
    code, said = run("prepare", "switchboard", "--from", root, "--out", tmp_path / "set")
    assert code == 1
    assert "sw02001.sph: its samples are compressed by shorten, which only the program sph2pipe unpacks" in said
    assert not (tmp_path / "set").exists()
    monkeypatch.setenv("PATH", str(install_unpacker(tmp_path / "bin")))
    prepared("switchboard", root, tmp_path / "set")
    assert content(tmp_path / "set", "train") == SWITCHBOARD
    paths = set(read_table(tmp_path / "set/data/train/wav.scp").values())
    assert paths == {str(tmp_path / "set/audio/sw02002.wav")}
    (tmp_path / "other/data").mkdir(parents=True)
    code, said = run("prepare", "switchboard", "--from", root, "--out", tmp_path / "other")
    assert code == 1
    assert "so it came from elsewhere" in said
    assert not (tmp_path / "other/audio").exists()


def without_a_side(root: Path) -> None:
    next(root.rglob("sw2002B*-trans.text")).unlink()


def without_a_recording(root: Path) -> None:
    next(root.rglob("sw02002.sph")).unlink()


def without_transcripts(root: Path) -> None:
    shutil.rmtree(root / "swb_ms98_transcriptions")


def a_damaged_header(root: Path) -> None:
    next(root.rglob("sw02002.sph")).write_bytes(b"RIFF")


def a_damaged_line(root: Path) -> None:
    next(root.rglob("sw2002B*-trans.text")).write_text("sw2002B-ms98-a-0001 zero 1.0 hello\n")


def without_a_transcript(root: Path) -> None:
    for path in root.rglob("sw2002*-trans.text"):
        path.unlink()


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (without_a_side, "LDC97S62 cannot be read by lhotse's recipe: 'sw2002B'"),
        (without_a_recording, "1 of 2 transcripts have no recording, first"),
        (without_transcripts, "has no swb_ms98_transcriptions: unpack switchboard_word_alignments.tar.gz"),
        (a_damaged_header, "sw02002.sph is no NIST SPHERE file"),
        (a_damaged_line, "cannot be read by lhotse's recipe: could not convert string to float: 'zero'"),
        (without_a_transcript, "sw02002.sph has no transcript"),
    ],
)
def test_damaged_packages(tmp_path: Path, damage: object, what: str) -> None:
    root = ldc_layouts.switchboard(tmp_path / "ldc")
    assert callable(damage)
    damage(root)
    code, said = run("prepare", "switchboard", "--from", root, "--out", tmp_path / "set")
    assert code == 1
    assert what in said
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ("*.glm", "needs one file *.glm, it has none: is it the package of the LDC?"),
        ("*.pem", "needs one file *.pem, it has none"),
        ("hub5e00*.stm", "needs one file hub5e*00*.stm, it has none"),
        ("en_4156.sph", "hub5e_00.pem has channel A of en_4156, which has no recording or no reference"),
    ],
)
def test_incomplete_hub5(tmp_path: Path, files: str, what: str) -> None:
    root = ldc_layouts.hub5(tmp_path / "ldc")
    for path in list(root.rglob(files)):
        path.unlink()
    code, said = run("prepare", "eval2000", "--from", root, "--out", tmp_path / "set")
    assert code == 1
    assert what in said


def test_segments_of_hub5_that_do_not_fit_are_told(tmp_path: Path) -> None:
    root = ldc_layouts.hub5(tmp_path / "ldc")
    pem = next(root.rglob("*.pem"))
    lines = pem.read_text()
    pem.write_text(lines.replace("sw_4390 B unknown_speaker 3.50 4.50\n", ""))
    code, said = run("prepare", "eval2000", "--from", root, "--out", tmp_path / "set")
    assert code == 1
    assert "leaves out sw_4390 b at 3.5 s, which the STM scores" in said
    for wrong in ("sw_4390 C x 1.0 2.0", "sw_4390 A x 2.0 1.0"):
        pem.write_text(f"{lines}{wrong}\n")
        said = run("prepare", "eval2000", "--from", root, "--out", tmp_path / "set")[1]
        assert "hub5e_00.pem:8: expected channel A or B and a length above 0 s" in said
    pem.write_text(f"{lines}sw_4390 A 1.0\n")
    said = run("prepare", "eval2000", "--from", root, "--out", tmp_path / "set")[1]
    assert "hub5e_00.pem:8: expected FILE CHANNEL SPEAKER BEGIN END" in said


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("switchboard",), "switchboard cannot be downloaded: get its packages from the LDC; --from FOLDER names"),
        (("fisher", "--download", "x"), "fisher1: LDC2004S13 and LDC2004T19; fisher2: LDC2005S13 and LDC2005T19"),
        (("callhome", "--from", "nowhere"), "nowhere is not a folder"),
        (("eval2000", "--from", "."), "hub5-00 needs LDC2002S09, LDC2002T43"),
    ],
)
def test_mistakes(words: tuple[str, ...], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "LDC97S62").mkdir()
    code, said = run("prepare", *words)
    assert code == 1
    assert what in " ".join(said.split())


def test_half_a_part_is_told(tmp_path: Path) -> None:
    root = ldc_layouts.callhome(tmp_path / "ldc")
    shutil.rmtree(root / "LDC97T14")
    code, said = run("prepare", "callhome", "--from", root, "--out", tmp_path / "set")
    assert code == 1
    assert "lacks LDC97T14, which callhome needs too: get it from the LDC" in said
