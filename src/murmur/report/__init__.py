"""Records of runs as a page, and in the terminal. The page is imported on first use: watching a run needs no page."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from murmur.report.page import write_report
    from murmur.report.read import ReportError

__all__ = ["ReportError", "write_report"]
HOMES = {"ReportError": "read", "write_report": "page"}


def __getattr__(name: str) -> Any:
    if name in HOMES:
        return getattr(import_module(f"murmur.report.{HOMES[name]}"), name)
    raise AttributeError(f"module 'murmur.report' has no attribute {name!r}")
