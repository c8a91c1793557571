"""The command and the recipes of the papers."""

from __future__ import annotations

from murmur.plugins import Command, Plugin

PLUGIN = Plugin(
    "Papers",
    {
        "papers": Command(
            "murmur_papers.command",
            "Repeat experiments of five papers, small, on a virtual cluster; judge their conclusions.",
            "finished runs are kept; run the same command to continue with the current run from its start",
        ),
    },
    recipes="murmur_papers.recipes",
    install="pip install 'murmur-asr[speech,synth,viz]'",
)
