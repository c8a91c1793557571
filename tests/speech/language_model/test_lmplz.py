"""`lmplz` of kenlm as another estimator, by a program that records its arguments in its place.

Options are those of kenlm's `lm/builder/lmplz_main.cc`.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

from murmur.speech.language_model import lmplz
from murmur.speech.language_model.kneser_ney import KneserNey
from murmur.speech.language_model.lmplz import check_lmplz, write_with_lmplz

ARPA = "\\data\\\nngram 1=3\n\n\\1-grams:\n-1\t</s>\n-99\t<s>\n-1\ta\n\n\\end\\\n"
RECORDS = f"""
import json, os, sys
from pathlib import Path
options = dict(zip(sys.argv[1:], [*sys.argv[2:], ""]))
vocabulary = options.get("--limit_vocab_file")
facts = {{
    "arguments": sys.argv[1:],
    "text": sys.stdin.read(),
    "vocabulary": vocabulary and Path(vocabulary).read_text(),
    "temporary": os.listdir(options["--temp_prefix"]),
}}
Path(RECORD).write_text(json.dumps(facts))
sys.stderr.write("=== 1/5 Counting\\nSubstituting fallback discounts for order 0: D1=0.5 D2=1 D3+=1.5\\n")
sys.stdout.write({ARPA!r})
"""
FAILS = """
import os, sys
sys.stderr.write("=== 1/5 Counting\\nBad discount for order 1\\n")
os.write(1, b"half")
sys.exit(3)
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Put a program on PATH, and return the file of its record."""
    record, program = folder / "record.json", folder / "bin" / "lmplz"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{script.replace('RECORD', repr(str(record)))}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    return record


def test_order_memory_cutoffs_and_words_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = install(tmp_path, monkeypatch, RECORDS)
    out, temporary = tmp_path / "new" / "lm.arpa.gz", tmp_path / "temporary"
    temporary.mkdir()
    how = KneserNey(3, (0, 0, 1))
    warnings = write_with_lmplz(how, ["a  b", "c\u00a0d", ""], out, ["a", "b"], 500 << 20, temporary)
    assert gzip.decompress(out.read_bytes()).decode() == ARPA
    assert warnings == ["Substituting fallback discounts for order 0: D1=0.5 D2=1 D3+=1.5"]
    facts = json.loads(record.read_text())
    assert (facts["text"], facts["vocabulary"]) == ("a b\nc d\n\n", "a b")
    order, prefix, *others = facts["arguments"][1:4:2] + facts["arguments"][4:]
    assert (order, Path(prefix).parent) == ("3", temporary)
    assert prefix.endswith("/")  # else it would begin the names of files beside the folder
    size, prune = ["--memory", "524288000b"], ["--prune", "0", "0", "1"]
    assert others == ["--discount_fallback", *size, *prune, "--limit_vocab_file", f"{prefix}vocabulary"]
    assert sorted(facts["temporary"]) == ["messages", "vocabulary"]
    assert list(temporary.iterdir()) == []
    write_with_lmplz(KneserNey(2), ["a"], tmp_path / "lm.arpa", folder=temporary)
    assert (tmp_path / "lm.arpa").read_text() == ARPA
    arguments = json.loads(record.read_text())["arguments"]
    assert (arguments[:3], arguments[4:]) == (["--order", "2", "--temp_prefix"], ["--discount_fallback"])


@pytest.mark.parametrize("sentences", [1, 200_000])
def test_a_failure_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: int) -> None:
    """With many sentences the program ends while it is still written to."""
    install(tmp_path, monkeypatch, FAILS)
    with pytest.raises(ValueError, match=r"lmplz has failed \(status 3\): Bad discount for order 1$"):
        write_with_lmplz(KneserNey(2), ["a b c"] * sentences, tmp_path / "lm.arpa", folder=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin"]


def test_an_error_of_the_text_ends_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, RECORDS)

    def sentences() -> object:
        yield "a"
        raise ValueError("damaged text")

    with pytest.raises(ValueError, match="damaged text"):
        write_with_lmplz(KneserNey(2), sentences(), tmp_path / "lm.arpa", folder=tmp_path)  # type: ignore[arg-type]
    assert not (tmp_path / "lm.arpa").exists()


def test_a_missing_program_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=f"there is no program {lmplz.PROGRAM} on PATH: build kenlm"):
        check_lmplz()
