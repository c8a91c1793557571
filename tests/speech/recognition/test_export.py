"""Places that an export cannot take are refused before any work."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("soundfile", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.core.errors import SettingError
from murmur.speech.recognition.export import check_place


def test_a_mount_point_and_a_link_to_it_are_refused(tmp_path, monkeypatch):
    (tmp_path / "mounted").mkdir()
    (tmp_path / "link").symlink_to("mounted")
    monkeypatch.setattr(os.path, "ismount", lambda path: path == tmp_path / "mounted")
    check_place(tmp_path / "new", force=False)
    for out in ("mounted", "link"):
        with pytest.raises(SettingError, match=f"{out} is a mount point, which cannot be replaced: name a folder in"):
            check_place(tmp_path / out, force=False)
