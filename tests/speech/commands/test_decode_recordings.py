"""From calls of two channels at 8 kHz to words in the recordings' time, and their score against an STM by subset."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.speech.corpus.kaldi_dir import read_table, write_table
from tests.support.command_line import run
from tests.support.nist import hub_score
from tests.support.sphere_files import write_sphere
from tests.support.tone_runs import train_ctc, train_hybrid
from tests.support.tones import RATE, make_tones, tones

LOOP = ("--grammar", "loop", "--scale", 1)
NAMES = ("ANNA", "BOB", "NOB")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set for training of single files, and `data/calls`: two calls with different speech on their channels."""
    root = make_tones(tmp_path_factory.mktemp("calls") / "set", {"train": 48, "dev": 8, "test": 8})
    rng = np.random.default_rng(11)
    tables: dict[str, dict[str, str]] = {
        name: {} for name in ("text", "utt2spk", "wav.scp", "segments", "reco2file_and_channel")
    }
    stm = [';; LABEL "SWB" "Switchboard" "strangers"', ';; LABEL "CH" "CallHome" "relatives"']
    for call, label in (("sw_1", "SWB"), ("en_1", "CH")):
        channels = []
        for side in "AB":
            pieces, at = list[np.ndarray](), 0
            for _ in range(2):
                words = [NAMES[k] for k in rng.integers(3, size=3)]
                spoken = tones(words, int(rng.integers(1000)))
                begin, end = at / RATE, (at + len(spoken)) / RATE
                name = f"{call}-{side}-{len(pieces)}"
                tables["text"][name], tables["utt2spk"][name] = " ".join(words), f"{call}-{side}"
                tables["segments"][name] = f"{call}-{side} {begin:.4f} {end:.4f}"
                stm.append(f"{call} {side} {call}_{side} {begin:.4f} {end:.4f} <{label}> {' '.join(words)}")
                pieces.append(spoken)
                at += len(spoken)
            tables["wav.scp"][f"{call}-{side}"] = str(root / "wav" / f"{call}.sph")
            tables["reco2file_and_channel"][f"{call}-{side}"] = f"{call} {side}"
            channels.append(np.concatenate(pieces))
        length = min(map(len, channels))  # the last piece ends in silence, which may lack
        write_sphere(root / "wav" / f"{call}.sph", *(channel[:length] for channel in channels))
    for name, table in tables.items():
        write_table(root / "data" / "calls" / name, table)
    (root / "ref.stm").write_text("\n".join([*stm, ""]))
    return root


@pytest.fixture(scope="module")
def hybrid(corpus: Path) -> Path:
    return train_hybrid(corpus)


@pytest.fixture(scope="module")
def ctc(corpus: Path) -> Path:
    return train_ctc(corpus)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("hybrid", ()),
        ("hybrid", ("--beam", 1, "--max-active", 21)),
        ("hybrid", ("--grammar", "long.jsgf", "--scale", 1)),
        ("ctc", ()),
        ("ctc", ("--grammar", "loop", "--scale", 1)),
    ],
)
def test_words_lie_in_their_segments(
    request: pytest.FixtureRequest, corpus: Path, tmp_path: Path, model: str, options: tuple[object, ...]
) -> None:
    source = corpus.parent / "tones_experiment.py" if model == "hybrid" else "ctc"
    folder = request.getfixturevalue(model)
    long = tmp_path / "long.jsgf"  # no utterance is long enough for it, so all hypotheses are partial
    long.write_text(f"#JSGF V1.0;\ngrammar long;\npublic <r> = {'(ANNA | BOB | NOB) ' * 40};\n")
    options = tuple(long if option == long.name else option for option in options)
    data = corpus / "data" / "calls"
    said = run("decode", source, "--model", folder, "--data", data, "--out", tmp_path, *options)
    assert f"{tmp_path / 'recordings.ctm'}" in said
    rows = [line.split() for line in (tmp_path / "recordings.ctm").read_text().splitlines()]
    assert rows == sorted(rows, key=lambda row: (row[0], row[1], float(row[2])))
    recognised = read_table(tmp_path / "text")
    for utterance, segment in read_table(data / "segments").items():
        recording, begin, end = segment.split()
        inside = [
            row
            for row in rows
            if f"{row[0]}-{row[1]}" == recording and float(begin) <= float(row[2]) + float(row[3]) / 2 < float(end)
        ]
        assert " ".join(row[4] for row in inside) == recognised[utterance]
    if model == "hybrid":
        spoken: dict[str, list[str]] = {utterance: [] for utterance in recognised}
        for line in (tmp_path / "words.ctm").read_text().splitlines():
            spoken[line.split()[0]].append(line.split()[4])
        assert {utterance: " ".join(words) for utterance, words in spoken.items()} == recognised
        partial = json.loads((tmp_path / "summary.json").read_text())["partial"]
        assert set(partial) == (set(recognised) if "--grammar" in options else set())
    # The same words, so the same errors, by utterance and by time.
    by_text = run("score", data, tmp_path / "text").splitlines()[0].split("]")[0]
    by_time = run("score", corpus / "ref.stm", tmp_path / "recordings.ctm")
    assert by_time.splitlines()[0].split("]")[0] == by_text
    assert "Switchboard: %WER" in by_time
    assert "CallHome: %WER" in by_time
    if model == "hybrid" and not options:
        assert float(by_text.split()[1]) < 20


def test_the_whole_score_is_nists(corpus: Path, hybrid: Path, tmp_path: Path) -> None:
    data = ("--data", corpus / "data" / "calls")
    run("decode", corpus.parent / "tones_experiment.py", "--model", hybrid, "--out", tmp_path, *data)
    (tmp_path / "ref.stm").write_text((corpus / "ref.stm").read_text())
    found = (tmp_path / "recordings.ctm").read_text().splitlines()
    found = [line.replace("ANNA", "BOB") if k % 4 == 0 else line for k, line in enumerate(found) if k % 7]
    (tmp_path / "hyp.ctm").write_text("\n".join([*found, ""]))
    (tmp_path / "rules.glm").write_text('* format = "NIST1"\n* max_nrules = "9"\n[NOB] => [BOB] / [ ] __ [ ]\n')
    _, words, errors = hub_score(tmp_path)["sum"]
    assert errors > 3
    said = run("score", tmp_path / "ref.stm", tmp_path / "hyp.ctm", "--glm", tmp_path / "rules.glm")
    assert f"[ {errors} / {words}," in said.splitlines()[0]


def test_data_without_channels_has_no_such_file(corpus: Path, hybrid: Path, tmp_path: Path) -> None:
    run("decode", corpus.parent / "tones_experiment.py", "--model", hybrid, "--out", tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["summary.json", "text", "words.ctm"]
