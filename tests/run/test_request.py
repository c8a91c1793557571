"""Run request as data: it round-trips, and nothing unknown, missing or of another type passes."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.core.errors import SettingError
from murmur.run.request import RunRequest

TYPES = get_type_hints(RunRequest)
PATHS = st.lists(st.text(min_size=1).filter(lambda part: "\0" not in part), max_size=3).map(lambda parts: Path(*parts))
st.register_type_strategy(Path, PATHS)
NUMBERS = st.floats(allow_nan=False)
VALUES = {name: st.one_of(st.none(), NUMBERS) if "float" in str(t) else st.from_type(t) for name, t in TYPES.items()}
OTHERS: dict[str, Any] = {
    "text": "toy",
    "list": ["a"],
    "mixed list": ["a", 1],
    "object": {},
    "number": 1.5,
    "truth": True,
}
FITS = {  # fields -> values of OTHERS that are of their type
    "source": {"text"},
    "settings": {"list"},
    "strategy": {"text"},
    "out": {"text"},
    "init": {"text"},
    "secret_file": {"text"},
    "resume": {"truth"},
    "force": {"truth"},
    "lease_seconds": {"number"},
    "start_seconds": {"number"},
    "grace_seconds": {"number"},
}


@settings(deadline=None)
@given(st.builds(RunRequest, **VALUES))
def test_it_comes_back_as_it_was(request: RunRequest) -> None:
    back = RunRequest.from_json(request.to_json())
    assert back == request
    assert [type(getattr(back, f.name)) for f in fields(back)] == [type(getattr(request, f.name)) for f in fields(back)]


@pytest.mark.parametrize("name", TYPES)
def test_every_field_is_needed_and_typed(name: str) -> None:
    whole = json.loads(RunRequest(source="toy").to_json())
    with pytest.raises(SettingError, match=f"lacks the field '{name}'"):
        RunRequest.from_json(json.dumps({key: value for key, value in whole.items() if key != name}))
    with pytest.raises(SettingError, match=f"unknown field '{name}s'; did you mean '{name}'"):
        RunRequest.from_json(json.dumps({**whole, f"{name}s": 1}))
    for kind, value in OTHERS.items():
        text = json.dumps({**whole, name: value})
        if kind in FITS.get(name, ()):
            RunRequest.from_json(text)
        else:
            with pytest.raises(SettingError, match=f"field '{name}' must be of type"):
                RunRequest.from_json(text)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 50_000, "7"])
def test_another_text_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="the run request"):
        RunRequest.from_json(text)
    (tmp_path / "request.json").write_text(text)
    with pytest.raises(SettingError, match=r"request\.json is damaged"):
        RunRequest.read(tmp_path / "request.json")


def test_the_file_holds_for_learners_in_other_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    request = RunRequest(source="toy", init=Path("runs/a"), out=tmp_path / "out", lease_seconds=5)
    request.write()
    found = RunRequest.read(tmp_path / "out" / "request.json")
    assert found.init == tmp_path / "runs" / "a"
    assert found.lease_seconds == 5.0
