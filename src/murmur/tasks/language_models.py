"""Language models and search settings among the saved sources of decoding graphs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from murmur.tasks.hybrid.config import Search, first_options


def copied_models(language_models: Mapping[str, Path], folder: Path) -> dict[str, str]:
    """Copy ARPA files, as they are, into a folder; return the name of each model's copy."""
    names = {}
    for number, (name, path) in enumerate(language_models.items()):
        names[name] = f"lm-{number}.arpa{'.gz' if path.suffix == '.gz' else ''}"
        shutil.copyfile(path, folder / names[name])
    return names


def search_to_json(search: Search) -> dict[str, Any]:
    """The settings in JSON's terms."""
    return asdict(search)


def search_of_json(content: Mapping[str, Any]) -> Search:
    """The inverse of `search_to_json`.

    Raises:
        LookupError, TypeError, ValueError: the content has another form.
    """
    scales, penalties = (tuple(map(float, content[name])) for name in ("scales", "insertion_penalties"))
    beams = tuple((float(beam), int(most)) for beam, most in content["beams"])
    search = Search(str(content["grammar"]), scales, penalties, beams)
    first_options(search)
    return search
