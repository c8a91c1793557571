"""Names of the rules by which text becomes words."""

from __future__ import annotations

from typing import Literal

Writing = Literal["as-is", "english", "unspaced"]
