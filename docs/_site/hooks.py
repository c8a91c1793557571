"""Generated pages of the site: README, results, the command line, the API, decisions.

The page of the command line comes from the typer app, the pages of the API from docstrings.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer import Context

from murmur.cli import app
from murmur.plugins import commands

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "murmur"
BORROWED = {"index.md": "README.md", "results.md": "RESULTS.md", "changelog.md": "CHANGELOG.md"} | {
    "contributing.md": "CONTRIBUTING.md"
}
ADAPTERS = (
    *("corpus", "ctc", "decoding", "features", "hmm", "ivector", "language_model", "lexicon", "models"),
    *("scoring", "sequence"),
)
PACKAGES = {  # page -> its title, and its packages
    "user_loop": ("Your own loop", ("user_loop",)),
    "strategies": ("Strategies", ("strategies",)),
    "core": ("Core", ("core", "elastic", "testing")),
    "worlds": ("Worlds", ("worlds",)),
    "engine": ("Training engine", ("engine", "run")),
    "simulation": ("Simulation and planning", ("simulation",)),
    "comparison": ("Comparison of runs", ("comparison",)),
    "speech": ("Speech", tuple(f"speech/{name}" for name in ADAPTERS)),
    "tasks": ("Tasks and recipes", ("speech/tasks", "speech/recipes", "tasks", "recipes")),
    "recognition": ("Recognition", ("speech/recognition",)),
    "report": ("Reports", ("report",)),
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put every page into the navigation; pages that mkdocs.yml does not name go under More."""
    named = set(_pages(config.nav))
    docs = Path(config.docs_dir)
    more = [p.name for p in sorted(docs.glob("*.md")) if p.name not in named]
    log = [{_title(p): f"lab/{p.name}"} for p in sorted(docs.glob("lab/*.md"))]
    decisions = [{_title(p): f"decisions/{p.name}"} for p in sorted(docs.glob("decisions/*.md"))]
    reference = [{title: f"reference/{page}.md"} for page, (title, _) in PACKAGES.items()]
    project = [{"Results": "results.md"}, {"Changes": "changelog.md"}, {"Contributing": "contributing.md"}]
    project += [{"Log": log}, {"Decisions": decisions}]
    config.nav = [*(config.nav or []), *([{"More": more}] if more else []), {"API": reference}, {"Project": project}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages and the pictures of results."""
    for name, source in BORROWED.items():
        files.append(File.generated(config, name, content=_moved((ROOT / source).read_text(encoding="utf-8"))))
    files.append(File.generated(config, "cli.md", content=command_line()))
    for page, (title, parts) in PACKAGES.items():
        files.append(File.generated(config, f"reference/{page}.md", content=reference(title, parts)))
    for picture in (*(ROOT / "results").glob("*.svg"), *(ROOT / "results").glob("*.png")):
        files.append(File.generated(config, f"results/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Adapt links to pictures of results: they lie beside docs/ in the repository, and inside it on the site."""
    return markdown.replace("](../results/", "](results/") if "/" not in page.file.src_uri else markdown


def command_line() -> str:
    """Return the page of all commands."""
    root = typer.main.get_command(app)
    context = Context(root, info_name="murmur")
    lines = ["# Command line", "", _help(root), ""]
    for name in commands():
        lines += _command(root.get_command(context, name), context, name)
    return "\n".join(lines)


def _command(command: Any, parent: Context, name: str) -> Iterator[str]:
    context = Context(command, info_name=name, parent=parent)
    yield from (f"## {context.command_path}", "", _help(command), "", "```text")
    yield from (f"{context.command_path} {' '.join(command.collect_usage_pieces(context))}", "```", "")
    panels = defaultdict(list)
    for option in command.params:
        record = option.get_help_record(context)
        if record is not None:
            panels[getattr(option, "rich_help_panel", None) or _kind(option)].append(record)
    for panel, records in panels.items():
        yield from (f"| {panel} | |", "|---|---|")
        yield from (f"| `{_cell(left)}` | {_cell(right)} |" for left, right in records)
        yield ""
    for inner in getattr(command, "commands", {}):
        yield from _command(command.get_command(context, inner), context, inner)


def _kind(option: Any) -> str:
    return "Argument" if option.param_type_name == "argument" else "Option"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("[default", "[default")


def _help(command: Any) -> str:
    """Return the help text of a command, with its examples as code."""
    text = re.sub(r"(?m)^ +", "", (command.help or "").strip())
    return re.sub(r"Example: (.+(?:\n.+)*)", lambda m: f"```sh\n{m[1]}\n```", text)


def reference(title: str, parts: tuple[str, ...]) -> str:
    """Return a page of the API: the docstrings of the modules of some packages."""
    lines = [f"# {title}", ""]
    for part in parts:
        lines += [f"::: {module}" for module in _modules(part)]
    return "\n\n".join(lines) + "\n"


def _modules(part: str) -> Iterator[str]:
    path = SOURCE / f"{part}.py"
    for file in [path] if path.is_file() else sorted((SOURCE / part).rglob("*.py")):
        if file.name != "__init__.py" and not file.name.startswith("_"):
            yield "murmur." + ".".join(file.relative_to(SOURCE).with_suffix("").parts)


def _pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for value in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from _pages(value)


def _title(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


def _moved(markdown: str) -> str:
    """Adapt the links of README.md to docs/ and RESULTS.md."""
    return markdown.replace("](docs/", "](").replace("](RESULTS.md", "](results.md")
