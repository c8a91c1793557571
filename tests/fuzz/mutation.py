"""Structure-aware mutation: valid files damaged in realistic ways, and in hostile ways.

All choices come from one generator, so that a seed names a case for ever.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

NASTY_WORDS = (
    b"", b"0", b"-1", b"1", b"nan", b"NaN", b"inf", b"-inf", b"1e400", b"-1e400", b"1e-400", b"9" * 30,
    b"-" + b"9" * 30, b"2147483648", b"4294967296", b"9223372036854775808", b"1_0", b"0x10", b"1.5", b"\xff\xfe",
    b"\xc3\x28", b"\x00", b"\xef\xbb\xbf", "é".encode(), "\u202e".encode(), b"../../../../etc/passwd",
    b"/dev/zero/x", b"%s%n", b"|", b"x |", b"#0", b"<eps>", b"<s>", b"</s>", b"<unk>", b"A" * 5000, b"None", b"[]",
    b"{}", b"\\end\\", b"\r",
)  # fmt: skip
NASTY_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 10**30, -(10**30), 2**31, 2**63, 1.5, math.nan, math.inf, -math.inf, 1e308, "", "x",
    "\x00", "../../../etc/passwd", "é" * 100, "\ud800", [], {}, [[]], [None], {"x": 1}, "A" * 5000,
)  # fmt: skip
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
Operation = Callable[["Mutator", bytes], bytes]


class Mutator:
    """Mutates the bytes of a file according to the kind that its name says."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def file(self, name: str, data: bytes) -> bytes:
        """A mutant, usually of the file's structure, else of its bytes."""
        chance = self.random.random()
        if chance < 0.25:
            return self.some(BYTES)(self, data)
        if name.endswith(".gz"):
            return gzip.compress(self.file(name.removesuffix(".gz"), gzip.decompress(data)), mtime=0)
        if name.endswith((".npz", ".npy")):
            return self.archive(data) if name.endswith(".npz") else self.array_file(data)
        if name.endswith((".json", ".safetensors", ".jsonl")) and chance < 0.85:
            return self.structured(name, data)
        return self.some(LINES)(self, data)

    def some(self, choices: Any) -> Any:
        """One element of a sequence."""
        return choices[self.random.randrange(len(choices))]

    def place(self, length: int) -> int:
        """A position in a sequence of this length."""
        return self.random.randrange(length + 1)

    def structured(self, name: str, data: bytes) -> bytes:
        """JSON, lines of JSON, or the JSON header of a file of tensors, with one node of its tree changed."""
        if name.endswith(".safetensors"):
            length = int.from_bytes(data[:8], "little")
            head = _dumped(self.value(json.loads(data[8 : 8 + length])))
            return len(head).to_bytes(8, "little") + head + data[8 + length :]
        if name.endswith(".jsonl"):
            lines = data.splitlines()
            if not lines:
                return data
            at = self.random.randrange(len(lines))
            lines[at] = _dumped(self.value(json.loads(lines[at])))
            return b"\n".join(lines) + b"\n"
        if self.random.random() < 0.03:
            return b"[" * 100_000
        return _dumped(self.value(json.loads(data)))

    def value(self, tree: Any) -> Any:
        """A JSON value with one node replaced, dropped, doubled or moved."""
        if isinstance(tree, dict) and tree and self.random.random() < 0.9:
            return self._object(tree)
        if isinstance(tree, list) and tree and self.random.random() < 0.9:
            return self._list(tree)
        if isinstance(tree, int | float) and not isinstance(tree, bool) and self.random.random() < 0.4:
            return self.some((tree + 1, tree - 1, -tree, tree * 1000, tree + 0.5))
        return self.some(NASTY_VALUES)

    def _object(self, tree: dict[str, Any]) -> dict[str, Any]:
        key = self.some(sorted(tree))
        chance = self.random.random()
        if chance < 0.1:
            return {k: v for k, v in tree.items() if k != key}
        if chance < 0.15:
            return {**tree, key: tree[self.some(sorted(tree))]}
        if chance < 0.2:
            return {(f"{k}x" if k == key else k): v for k, v in tree.items()}
        return {**tree, key: self.value(tree[key])}

    def _list(self, tree: list[Any]) -> list[Any]:
        at, chance = self.random.randrange(len(tree)), self.random.random()
        if chance < 0.1:
            return tree[:at] + tree[at + 1 :]
        if chance < 0.2:
            return [*tree[:at], tree[at], *tree[at:]]
        if chance < 0.25:
            return tree[::-1]
        return [*tree[:at], self.value(tree[at]), *tree[at + 1 :]]

    def array(self, values: np.ndarray) -> np.ndarray:
        """An array of another shape, type or content; sometimes one that only a pickle can hold."""
        chance = self.random.random()
        if chance < 0.05:
            return np.array([{"a": 1}], dtype=object)
        if chance < 0.3:
            shapes = (values[1:], values[:-1], values[:0]) if values.ndim else (values.reshape(1),)
            return self.some((*shapes, values[None], values.reshape(-1), np.concatenate([values.reshape(-1)] * 2)))
        if chance < 0.5:
            kinds = ("float16", "float64", "int8", "int64", "uint8", "bool", "S3", "U2", "complex64")
            with np.errstate(all="ignore"):
                return values.astype(self.some(kinds)) if values.dtype.kind in "fiub" else np.zeros(3)
        changed = np.array(values)
        if changed.size:
            flat = changed.reshape(-1)
            at, scale = self.random.randrange(flat.size), 1 if self.random.random() < 0.5 else flat.size
            floats = (math.nan, math.inf, -math.inf, 1e30, -1e30, 0.0, -1.0)
            whole = (-1, 0, 1, 127, 2**31 - 1, -(2**31), 2**15)
            with np.errstate(all="ignore"):
                new = self.some(floats if changed.dtype.kind == "f" else whole)
                flat[at : at + scale] = (
                    np.array(new).astype(changed.dtype) if changed.dtype.kind in "fiub" else flat[at]
                )
        return changed

    def array_file(self, data: bytes) -> bytes:
        """An .npy file of a mutated array, or with another header."""
        if self.random.random() < 0.3:
            return self.number(data[:128]) + data[128:]
        out = io.BytesIO()
        np.save(out, self.array(np.load(io.BytesIO(data), allow_pickle=False)), allow_pickle=True)
        return out.getvalue()

    def archive(self, data: bytes) -> bytes:
        """An .npz file with one member mutated, dropped, or of another name."""
        with zipfile.ZipFile(io.BytesIO(data)) as source:
            members = {name: source.read(name) for name in source.namelist()}
        name, chance = self.some(sorted(members)), self.random.random()
        content = members.pop(name)
        if chance < 0.2:
            members[self.some((f"x{name}", "../../x.npy", "noname"))] = content
        elif chance < 0.9:
            as_json = name.startswith("header") and self.random.random() < 0.9
            members[name] = self._header(content) if as_json else self.array_file(content)
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as target:
            for member, raw in members.items():
                target.writestr(member, raw)
        return out.getvalue()

    def _header(self, content: bytes) -> bytes:
        """A JSON text stored as bytes in an array."""
        head = _dumped(self.value(json.loads(np.load(io.BytesIO(content)).tobytes())))
        out = io.BytesIO()
        np.save(out, np.frombuffer(head, np.uint8))
        return out.getvalue()

    def number(self, data: bytes) -> bytes:
        """One number of a text replaced."""
        found = list(NUMBER.finditer(data))
        if not found:
            return data + b" 7"
        at = self.some(found)
        chance = self.random.random()
        if chance < 0.4 and at.group().lstrip(b"-").isdigit():
            new = b"%d" % (int(at.group()) + self.some((-1, 1, 2, 1000)))
        elif chance < 0.5:
            new = b"-" + at.group()
        else:
            new = self.some(NASTY_WORDS)
        return data[: at.start()] + new + data[at.end() :]


def _dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


def _truncate(me: Mutator, data: bytes) -> bytes:
    return data[: me.place(len(data))]


def _flip(me: Mutator, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(me.random.choice((1, 1, 2, 8))):
        if changed:
            changed[me.random.randrange(len(changed))] ^= 1 << me.random.randrange(8)
    return bytes(changed)


def _insert(me: Mutator, data: bytes) -> bytes:
    at = me.place(len(data))
    new = me.random.choice(
        (me.random.randbytes(4), b"\xff", b"\x00" * 16, b"\n", b"\xed\xa0\x80", me.random.randbytes(64))
    )
    return data[:at] + new + data[at:]


def _cut(me: Mutator, data: bytes) -> bytes:
    first, last = sorted((me.place(len(data)), me.place(len(data))))
    return data[:first] + data[last:]


def _lines(change: Callable[[Mutator, list[bytes]], None]) -> Operation:
    def operation(me: Mutator, data: bytes) -> bytes:
        lines = data.split(b"\n")
        change(me, lines)
        return b"\n".join(lines)

    return operation


def _fields(change: Callable[[Mutator, list[bytes]], None]) -> Operation:
    """Change the fields of one line; the separators between them are fields too."""

    def operation(me: Mutator, data: bytes) -> bytes:
        lines = data.split(b"\n")
        at = me.random.randrange(len(lines))
        fields = lines[at].split(b" ")
        change(me, fields)
        lines[at] = b" ".join(fields)
        return b"\n".join(lines)

    return operation


def _drop(me: Mutator, items: list[bytes]) -> None:
    del items[me.random.randrange(len(items))]


def _double(me: Mutator, items: list[bytes]) -> None:
    items.insert(me.place(len(items)), me.some(items))


def _swap(me: Mutator, items: list[bytes]) -> None:
    a, b = me.random.randrange(len(items)), me.random.randrange(len(items))
    items[a], items[b] = items[b], items[a]


def _replace(me: Mutator, items: list[bytes]) -> None:
    items[me.random.randrange(len(items))] = me.some(NASTY_WORDS)


def _add(me: Mutator, items: list[bytes]) -> None:
    items.insert(me.place(len(items)), me.some(NASTY_WORDS))


BYTES: tuple[Operation, ...] = (_truncate, _flip, _flip, _insert, _cut, lambda me, data: b"", lambda me, data: data * 2)
CHANGES = (_drop, _double, _swap, _replace, _add)
LINES: tuple[Operation, ...] = (
    *(_lines(change) for change in CHANGES),
    *(_fields(change) for change in CHANGES),
    Mutator.number,
    Mutator.number,
    lambda me, data: data.replace(b"\n", b"\r\n"),
    lambda me, data: data.replace(b" ", b"\t"),
)
