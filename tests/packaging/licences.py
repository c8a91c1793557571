"""Licences of installed distributions, and whether a program under Apache-2.0 may use them.

As a program it prints those of its own environment, as JSON; only the standard library is used here.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions

PERMISSIVE = re.compile(
    r"(apache|mit\b|mit-|bsd|0bsd|3-clause bsd|iscl?\b|psf|python software foundation|zlib|cc0|bsl|llvm-exception|hpnd"
    r"|unlicense|dfsg approved|mozilla|mpl)",
    re.IGNORECASE,
)  # MPL-2.0 binds changes of its own files alone
NAMED = {  # distribution -> the licence that it states, and why it may be used
    "soxr": ("LGPL-2.1-or-later", "a shared library, used unchanged through its interface"),
    "espeakng-loader": ("", "it brings espeak-ng (GPL-3.0-or-later), which users add by the extra synth"),
    "mpich": ("LicenseRef-MPICH", "MPICH's own permissive licence"),
}


def licence_of(found: Distribution) -> str:
    """Return the expression of a licence, else its classifiers, else the first line of its text."""
    facts = found.metadata
    classes = [c.rpartition(" :: ")[2] for c in facts.get_all("Classifier", []) if c.startswith("License ::")]
    stated = (facts.get("License-Expression"), "; ".join(classes), (facts.get("License") or "").strip())
    return next((text.partition("\n")[0] for text in stated if text), "")


def table(found: Iterable[Distribution]) -> list[list[str]]:
    """Return rows (name, version, licence), ordered by name."""
    rows = {d.metadata["Name"].lower(): [d.metadata["Name"], d.version, licence_of(d)] for d in found}
    return [rows[name] for name in sorted(rows)]


def refused(rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the distributions whose licence is not known to be compatible."""
    return [f"{name}: {licence or 'no licence'}" for name, _, licence in rows if not _may_be_used(name, licence)]


def _may_be_used(name: str, licence: str) -> bool:
    if name.lower() in NAMED:
        return NAMED[name.lower()][0] == licence
    parts = [part.strip() for part in re.split(r"\b(?:AND|OR|WITH)\b|[;()]", licence)]
    return any(parts) and all(PERMISSIVE.match(part) for part in parts if part)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(table(distributions())))
