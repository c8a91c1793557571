"""Models estimated by `lmplz` of kenlm, an external program.

K. Heafield et al., "Scalable modified Kneser-Ney language model estimation", ACL 2013. It reads sentences from its
standard input and writes the ARPA file to its standard output.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from murmur.core.whole_files import in_place_of
from murmur.speech.corpus.file_content import naming
from murmur.speech.language_model.arpa import opened_arpa
from murmur.speech.language_model.kneser_ney import KneserNey
from murmur.speech.language_model.ngram import words_of

PROGRAM = "lmplz"


def check_lmplz() -> str:
    """Return the path of the program.

    Raises:
        FileNotFoundError: it is not installed.
    """
    if found := shutil.which(PROGRAM):
        return found
    raise FileNotFoundError(
        f"there is no program {PROGRAM} on PATH: build kenlm (https://github.com/kpu/kenlm), or leave --tool out"
    )


def write_with_lmplz(
    how: KneserNey,
    sentences: Iterable[str],
    path: Path,
    vocabulary: Iterable[str] | None = None,
    memory_bytes: int | None = None,
    folder: Path | None = None,
) -> list[str]:
    """Write an ARPA file, and return the warnings of the program. The file is whole, or not there.

    Args:
        how: order and cut-offs; the unknown word is always `<unk>`.
        sentences: sentences of space-separated words.
        path: file to write, gzip if its name ends in `.gz`.
        vocabulary: n-grams with other words are left out; None allows all words.
        memory_bytes: memory for sorting; None is the program's default, 80 % of the host's.
        folder: folder of temporary files; None is that of the system (TMPDIR).

    Raises:
        FileNotFoundError: as for `check_lmplz`.
        ValueError: the program has failed; with its last message.
        OSError: the file cannot be written.
    """
    program = check_lmplz()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".murmur-lm-", dir=folder) as scratch:
        command = [program, "--order", str(how.order), "--temp_prefix", f"{scratch}/", "--discount_fallback"]
        command += ["--memory", f"{memory_bytes}b"] if memory_bytes is not None else []
        command += ["--prune", *map(str, how.cutoffs)] if how.cutoffs else []
        if vocabulary is not None:
            allowed = Path(scratch, "vocabulary")
            allowed.write_text(" ".join(vocabulary), encoding="utf-8")
            command += ["--limit_vocab_file", str(allowed)]
        messages = Path(scratch, "messages")
        with in_place_of(path, ".gz" if path.suffix == ".gz" else "") as beside:
            _run(command, sentences, beside, messages)
        return [line for line in _lines(messages) if line.startswith(("Substituting", "Warning"))]


def _run(command: Sequence[str], sentences: Iterable[str], path: Path, messages: Path) -> None:
    pipe = subprocess.PIPE
    with messages.open("wb") as told, subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=told) as process:
        assert process.stdin is not None  # a pipe, as is the output
        assert process.stdout is not None
        try:
            with suppress(BrokenPipeError):  # it has ended; its message tells why
                try:
                    for sentence in sentences:  # all of them are read before anything is written
                        process.stdin.write(" ".join(words_of(sentence)).encode() + b"\n")
                finally:
                    process.stdin.close()
            with naming(path), opened_arpa(path, "wb") as file:
                shutil.copyfileobj(process.stdout, file)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        last = (_lines(messages) or ["without a message"])[-1]
        raise ValueError(f"{PROGRAM} has failed (status {process.returncode}): {last}")


def _lines(messages: Path) -> list[str]:
    return [line for line in messages.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
