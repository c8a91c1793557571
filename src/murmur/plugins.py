"""Parts that join the program `murmur` from outside: commands and recipes of installed distributions.

A distribution names an object of type `Plugin` as an entry point of the group `murmur.plugins`:

    [project.entry-points."murmur.plugins"]
    speech = "murmur.speech.plugin:PLUGIN"

The module of that object must be light: `murmur --help` imports it. Modules of commands and recipes are imported when
they are used.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points

log = logging.getLogger(__name__)
GROUP = "murmur.plugins"
AGAIN = "no partial files are left; run the same command to start again"
GOES_ON = "finished parts are kept; run the same command to continue"


@dataclass(frozen=True)
class Command:
    """A command of the program.

    Attributes:
        module: Module with the typer application `app`.
        help: Its line in `murmur --help`.
        stopped: What is left after a stop signal, and how to continue.
        resumes: True if the command continues with --resume.
        many_items: True if it loops over recordings or texts, so that repeated warnings are told once.
    """

    module: str
    help: str
    stopped: str = AGAIN
    resumes: bool = False
    many_items: bool = False


@dataclass(frozen=True)
class Plugin:
    """A part of the program.

    Attributes:
        title: Heading of its commands in `murmur --help`.
        commands: Its commands by name.
        recipes: Package whose modules with a function `experiment()` are recipes; None: it has none.
        install: Command that installs the libraries of its commands, for the message about a missing one.
    """

    title: str
    commands: Mapping[str, Command]
    recipes: str | None = None
    install: str = ""


@cache
def installed() -> Mapping[str, Plugin]:
    """Return the plugins of all installed distributions by name.

    One that cannot be loaded is left out with a warning: training does not depend on packages of others.
    """
    found = ((entry.name, _loaded(entry)) for entry in sorted(entry_points(group=GROUP), key=lambda e: e.name))
    return {name: plugin for name, plugin in found if plugin is not None}


def _loaded(entry: EntryPoint) -> Plugin | None:
    try:
        plugin = entry.load()
    except Exception as error:
        log.warning("the plugin %s (%s) is left out, as it cannot be loaded: %s", entry.name, entry.value, error)
        return None
    if not isinstance(plugin, Plugin):
        log.warning("the plugin %s (%s) is left out: it is not a murmur.plugins.Plugin", entry.name, entry.value)
        return None
    return plugin


TRAINER = Plugin(
    "Training",
    {
        "train": Command(
            "murmur.commands.train", "Train an experiment with one or more learners.", GOES_ON, resumes=True
        ),
        "settings": Command(
            "murmur.commands.settings",
            "List every field of an experiment that --set changes: name, value, type, meaning.",
        ),
        "add": Command(
            "murmur.commands.add",
            "Add a learner to a running experiment.",
            "the run goes on without this learner; run the same command to add a learner again",
        ),
        "launch": Command(
            "murmur.commands.launch",
            "Start a program that calls murmur.join as several learners.",
            "the learners were ended; files that they saved are kept",
        ),
        "plan": Command(
            "murmur.commands.plan", "Estimate hours, bottleneck and cost of strategies on a cluster before buying it."
        ),
        "simulate": Command(
            "murmur.commands.simulate",
            "Train on a simulated cluster: loss against virtual hours, stragglers, failures.",
            GOES_ON,
            resumes=True,
        ),
        "timeline": Command(
            "murmur.commands.timeline", "Draw what each learner does over time: of a strategy, or of a run."
        ),
        "watch": Command(
            "murmur.commands.watch",
            "Watch a run in the terminal: progress, loss, slow and lost learners, time left.",
        ),
        "compare": Command(
            "murmur.commands.compare",
            "Run a grid of strategies, learners and seeds, real and virtual; make one table.",
            "finished runs are kept; run the same command to continue from the newest checkpoint of the current run",
        ),
        "report": Command("murmur.commands.report", "Make one HTML page from the records of runs."),
        "doctor": Command("murmur.commands.doctor", "Check libraries, store, network between learners, cores, disk."),
    },
)


@cache
def parts() -> tuple[Plugin, ...]:
    """Return the trainer and the installed plugins. A command whose name is taken is left out with a warning."""
    owners, found = dict.fromkeys(TRAINER.commands, "murmur"), [TRAINER]
    for owner, plugin in installed().items():
        for name in plugin.commands.keys() & owners:
            log.warning("the command %r of the plugin %s is left out: %s has one", name, owner, owners[name])
        own = {name: command for name, command in plugin.commands.items() if name not in owners}
        owners.update(dict.fromkeys(own, owner))
        found.append(replace(plugin, commands=own))
    return tuple(found)


@cache
def commands() -> Mapping[str, Command]:
    """Return all commands by name."""
    return {name: command for part in parts() for name, command in part.commands.items()}


def part_of(name: str) -> Plugin:
    """Return the part that has a command."""
    return next(part for part in parts() if name in part.commands)


def say_stopped(signal_name: str, words: Sequence[str]) -> None:
    """Write the line to standard error, in one call: the other threads may hold the lock of the stream."""
    os.write(2, f"murmur: stopped by {signal_name}; {how_to_go_on(words)}\n".encode())


def how_to_go_on(words: Sequence[str]) -> str:
    """Return the remark for the command that was called with these words."""
    name = next((word for word in words if not word.startswith("-")), "")
    command = commands().get(name)
    if command is None or not command.resumes:
        return AGAIN if command is None else command.stopped
    if "--dry-run" in words:
        return GOES_ON
    again = [word for word in words if word not in ("--force", "--resume")] + ["--resume"]
    return f"finished parts are kept; continue with: {shlex.join(['murmur', *again])}"
