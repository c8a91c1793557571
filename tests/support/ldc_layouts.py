"""Folders in the layouts of the LDC's telephone corpora, generated: tones in place of speech, one for each side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tests.support.sphere_files import tone, write_sphere

SECONDS = 6.0
Line = tuple[float, float, str]  # begin and end in seconds, words as published


def hertz(call: str, side: str) -> float:
    """Frequency of the tone in a channel of a call."""
    return 300.0 + 40.0 * (sum(call.encode()) % 20) + (1000.0 if side == "B" else 0.0)


def samples(call: str, side: str) -> np.ndarray:
    """Samples of a channel."""
    return tone(hertz(call, side), SECONDS)


def sph(path: Path, shortened: bool = False) -> None:
    """Write the two sides of the call that the file's name tells."""
    write_sphere(path, samples(path.stem, "A"), samples(path.stem, "B"), shortened=shortened)


SWITCHBOARD: Mapping[str, Sequence[Line]] = {
    "A": (
        (0.0, 0.5, "[silence]"),
        (0.5, 2.25, "uh th[at]- that's [laughter-right] {splurgy} them_1"),
        (2.25, 3.0, "[noise] [vocalized-noise]"),
        (3.0, 4.125, "<b_aside> hang on <e_aside> -[tha]t one"),
    ),
    "B": ((0.25, 1.5, "um-hum [it'n/isn't] it"), (1.5, 6.0, "[laughter]")),
}


def switchboard(root: Path, calls: int = 2, shortened: bool = False, inside: bool = False) -> Path:
    """Make LDC97S62/swb1_dN/data/sw02001.sph and swb_ms98_transcriptions/20/2001/sw2001A-ms98-a-trans.text."""
    for n in range(calls):
        call = f"{2001 + n}"
        sph(root / "LDC97S62" / f"swb1_d{1 + n % 4}" / "data" / f"sw0{call}.sph", shortened)
        texts = (root / "LDC97S62" if inside else root) / "swb_ms98_transcriptions" / call[:2] / call
        texts.mkdir(parents=True)
        for side, lines in SWITCHBOARD.items():
            stem = f"sw{call}{side}-ms98-a"
            rows = [f"{stem}-{k:04} {begin:f} {end:f} {said}" for k, (begin, end, said) in enumerate(lines, 1)]
            (texts / f"{stem}-trans.text").write_text("\n".join(rows) + "\n")
            words = [f"{stem}-0001 {begin:f} {end:f} {said.split()[0]}" for begin, end, said in lines]
            (texts / f"{stem}-word.text").write_text("\n".join(words) + "\n")
    return root


FISHER = """# fe_03_{call}.sph
# Transcribed at the LDC

0.50 2.00 A: ((and)) i- i think [laughter] so

1.75 3.25 B: uh-huh on t._v.

3.50 4.00 A: (( ))

4.25 5.75 B: [noise]

"""


def fisher(root: Path, part: int, calls: int = 2, inner: bool = False) -> Path:
    """Make LDC200xS13/fisher_eng_tr_sp_d1/audio/000/fe_03_00001.sph, and data/trans and doc of LDC200xT19."""
    year, first = (2004, 1) if part == 1 else (2005, 5851)
    texts = root / f"LDC{year}T19" / (f"fe_03_p{part}_tran" if inner else "")
    rows = ["CALL_ID,DATE_TIME,TOPICID,SIG_GRADE,CNV_GRADE,APIN,ASX.DL,APHNUM,APHSET,APHTYP,BPIN,BSX.DL,BPHNUM"]
    for n in range(calls):
        call = f"{first + n:05}"
        sph(root / f"LDC{year}S13" / f"fisher_eng_tr_sp_d{1 + n % 2}" / "audio" / call[:3] / f"fe_03_{call}.sph")
        trans = texts / "data" / "trans" / call[:3]
        trans.mkdir(parents=True, exist_ok=True)
        (trans / f"fe_03_{call}.txt").write_text(FISHER.format(call=call))
        rows.append(f"{call},20021211 18:00:30,ENG01,,,{1000 + 2 * n},m.a,,,,{1001 + 2 * n},f.a,")
    (texts / "doc").mkdir()
    (texts / "doc" / f"fe_03_p{part}_calldata.tbl").write_text("\n".join(rows) + "\n")
    return root


HUB5: Mapping[str, Mapping[str, Sequence[Line]]] = {
    "sw_4390": {
        "A": ((1.0, 2.5, "(%HESITATION) GONNA go (th-) home"), (2.75, 4.0, "IGNORE_TIME_SEGMENT_IN_SCORING")),
        "B": ((2.0, 3.5, "that's { GOING TO / GONNA } be fine"), (3.5, 4.5, "UH-HUH")),
    },
    "en_4156": {
        "A": ((0.5, 2.0, "i'm coming home"), (4.0, 5.0, "(%HESITATION)")),
        "B": ((1.5, 3.0, "you KNOW bye-bye"),),
    },
}
GLM = """;; GLM of the generated test set
* name = "hub5"
* format = "NIST1"
* max_nrules = "99"
* copy_no_hit = "T"
* case_sensitive = "F"
[UH] => [%HESITATION] / [ ] __ [ ]
[THAT'S] => [{ THAT'S / THAT IS }] / [ ] __ [ ]
[UH-HUH] => [%BCACK] / [ ] __ [ ]
[MM-HMM] => [%BCACK] / [ ] __ [ ]
[I'M] => [I AM] / [ ] __ [ ]
"""
HUB5_TEXT = """#Language: eng
#File id: {call}
#Starting at 0 Ending at 6

0.10 2.40 A: %um, <contraction e_form="[we=>we]['re=>are]">we're home {{breath}}

1.50 3.00 B: mhm
"""


def stm() -> str:
    """The reference of the generated Hub5'00, with labels as in NIST's."""
    lines = [
        ';; CATEGORY "0" "" ""',
        ';; LABEL "O" "Overall" "Overall"',
        ';; LABEL "SWB" "Switchboard" "Calls of strangers"',
        ';; LABEL "CH" "CallHome" "Calls of relatives"',
    ]
    for call, sides in HUB5.items():
        label = "SWB" if call.startswith("sw") else "CH"
        for side, segments in sides.items():
            lines += [
                f"{call} {side} {call}_{side} {begin:.2f} {end:.2f} <O,{label}> {said}" for begin, end, said in segments
            ]
    return "\n".join(lines) + "\n"


def hub5(root: Path) -> Path:
    """Make LDC2002S09/hub5e_00/english with recordings and PEM, LDC2002T43/reference with STM, GLM and transcripts."""
    english = root / "LDC2002S09" / "hub5e_00" / "english"
    reference = root / "LDC2002T43" / "reference"
    (reference / "english").mkdir(parents=True)
    pem = [";; File Channel Speaker Begin End"]
    for call, sides in HUB5.items():
        sph(english / f"{call}.sph")
        (reference / "english" / f"{call}.txt").write_text(HUB5_TEXT.format(call=call))
        for side, segments in sides.items():
            pem += [
                f"{call} {side} unknown_speaker {begin:.2f} {end:.2f}"
                for begin, end, said in segments
                if not said.startswith("IGNORE")
            ]
    (english / "hub5e_00.pem").write_text("\n".join(pem) + "\n")
    (reference / "hub5e00.english.000405.stm").write_text(stm())
    (reference / "en20000405_hub5.glm").write_text(GLM)
    return root


CALLHOME = """# generated

0.50 2.00 A: {{laugh}} %um, I'm +coning+ home
to &Bob --

1.75 3.25 B: th- thanks ((a lot)) [distortion]

3.50 4.00 A: so (( )) then

4.25 5.75 B1: <Spanish hasta luego> bye
"""


def callhome(root: Path) -> Path:
    """Make LDC97S42/data/{train,devtest,evltest}/en_4065.sph and LDC97T14/transcrpt/{..,evaltest}/en_4065.txt."""
    for n, split in enumerate(("train", "devtest", "evaltest")):
        call = f"en_{4065 + n}"
        sph(root / "LDC97S42" / "data" / split.replace("evaltest", "evltest") / f"{call}.sph")
        folder = root / "LDC97T14" / "transcrpt" / split
        folder.mkdir(parents=True)
        (folder / f"{call}.txt").write_text(CALLHOME.replace("{{", "{").replace("}}", "}"))
    return root
