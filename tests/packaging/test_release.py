"""The quick checks of a release; those that take minutes are in release_check.py."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from importlib.metadata import distributions, requires
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from murmur.run.folder.provenance import OWN, versions
from tests.packaging import release_facts as facts
from tests.packaging.licences import refused, table
from tests.packaging.release_check import EXTRAS, normal, relative_links, requirements
from tests.packaging.wheel_check import MAY_LACK, WORKS

ROOT = facts.ROOT
DEVELOPMENT = {"dev", "docs", "crosscheck"}  # extras that no user installs
READ = ("pyproject.toml", "CITATION.cff", "CHANGELOG.md", "papers/pyproject.toml")
checkout = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the files of a checkout are listed by git")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in READ:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    return tmp_path


def change(path: Path, pattern: str, new: str) -> None:
    text, count = re.subn(pattern, new, path.read_text(encoding="utf-8"), count=1)
    assert count == 1, f"{path} has no {pattern}"
    path.write_text(text, encoding="utf-8")


@checkout
def test_no_page_hint_or_test_installs_the_package_of_another_project() -> None:
    assert [(path, line) for path, text in facts.texts() for line in facts.old_names(text)] == []


OTHERS = "mur" + "mur"  # in two pieces, so that this file holds no old form


@pytest.mark.parametrize(
    ("line", "found"),
    [(f"pip install {OTHERS}", True), (f"pip install -c constraints.txt '{OTHERS}'", True),
     (f"pip install '{OTHERS}[synth]'", True), (rf"pip install '{OTHERS}\[synth\]'", True),
     (f'needs["{OTHERS}[viz]"]', True), (f'version("{OTHERS}")', True), (f"pip install {OTHERS}==0.1.0", True),
     ("pip install 'murmur-asr[synth]'", False), ("pip install murmur-asr", False), ("pip install .", False),
     ("pip install -e . && murmur demo", False), ("`pip install .` gives the program murmur", False)],
)  # fmt: skip
def test_old_names_are_found(line: str, found: bool) -> None:
    assert bool(facts.old_names(line)) is found


def test_the_package_knows_its_distribution() -> None:
    assert facts.project()["name"] == OWN
    assert versions(("murmur",)) == {"murmur": facts.project()["version"]}
    assert any(line.startswith("kaldifst==") for line in requires(OWN) or ())  # the pins that murmur doctor compares


def test_version_and_date_agree() -> None:
    assert facts.disagreements() == []


@pytest.mark.parametrize(
    ("name", "pattern", "new"),
    [("CITATION.cff", r"(?m)^version: .*", "version: 0.0.9"), ("CHANGELOG.md", r"(?m)^## \S+", "## 0.0.9"),
     ("papers/pyproject.toml", r'(?m)^version = .*', 'version = "0.0.9"'),
     ("CHANGELOG.md", r"(?m)^(## \S+) \([^)]*\)", r"\1 (2001-02-03)")],
)  # fmt: skip
def test_a_disagreement_is_found(copy: Path, name: str, pattern: str, new: str) -> None:
    change(copy / name, pattern, new)
    (found,) = facts.disagreements(copy)
    assert name in found


def test_what_is_set_at_publication_is_told_until_it_is_set(copy: Path) -> None:
    change(copy / "pyproject.toml", r"(?m)^address = .*", 'address = "https://murmur.invalid"')
    change(copy / "CHANGELOG.md", r"(?m)^(## \S+) \([^)]*\)", r"\1 (unreleased)")
    assert [each.partition(":")[0] for each in facts.to_set(copy)] == ["the address of the repository", "the date"]
    change(copy / "pyproject.toml", r"(?m)^address = .*", 'address = "https://example.org/murmur"')
    change(copy / "CHANGELOG.md", r"(?m)^(## \S+) \([^)]*\)", r"\1 (2001-02-03)")
    assert facts.to_set(copy) == []


@checkout
def test_the_address_is_written_in_one_place() -> None:
    address = facts.address()
    found = [path for path, text in facts.texts() if address in text]
    assert set(found) - {"tests/packaging/test_release.py"} == {"pyproject.toml"}


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The hook of the build; hatchling is there only while a package is built."""
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    interface = ModuleType("hatchling.metadata.plugin.interface")
    interface.MetadataHookInterface = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    spec = spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_of_the_package_page_are_addresses_and_lead_to_files(hook: ModuleType) -> None:
    text = hook.absolute((ROOT / "README.md").read_text(encoding="utf-8"), "https://h.invalid", "v1")
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    ours = re.findall(r"\]\(https://h\.invalid/(raw|blob)/v1/([^)#\s]+)", text)
    assert len(links) == len(re.findall(r"\]\(", text))
    assert relative_links("".join(f'<a href="{link}">' for link in links)) == []
    assert [path for _, path in ours if not (ROOT / path).is_file()] == []
    assert {Path(path).suffix for kind, path in ours if kind == "raw"} == {".svg"}
    assert {Path(path).suffix for kind, path in ours if kind == "blob"} == {".md"}


def test_links_that_are_addresses_stay(hook: ModuleType) -> None:
    text = "[a](https://a.invalid/b) [c](#d) `x[0]`(y)"
    assert hook.absolute(text, "https://h.invalid", "v1") == text


def test_relative_links_of_a_page_are_found() -> None:
    html = '<a href="docs/x.md"><img src="https://h.invalid/a.svg"><img src="docs/a.svg"><a href="#b">'
    assert relative_links(html) == ["docs/x.md", "docs/a.svg"]


def test_the_image_is_built_from_all_files_that_the_build_reads() -> None:
    copied = re.findall(r"(?m)^COPY (pyproject.*) \./$", (ROOT / "Dockerfile").read_text(encoding="utf-8"))[0].split()
    sent = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE"} <= set(copied) & {name[1:] for name in sent}


def test_every_extra_of_users_is_installed_by_the_wheel_check() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(MAY_LACK) == set(extras) - DEVELOPMENT
    assert set(WORKS) == {*MAY_LACK, "core"}
    assert len(EXTRAS) == len(MAY_LACK)


def test_licences_of_the_dependencies_that_are_installed_here_are_compatible() -> None:
    wanted = {normal(re.split(r"[^\w.-]", line)[0]) for line in requirements()}
    rows = table(each for each in distributions() if normal(each.metadata["Name"]) in wanted)
    assert {normal(name) for name, _, _ in rows} >= {"torch", "numpy", "safetensors"}
    assert refused(rows) == []


@pytest.mark.parametrize(
    ("name", "licence", "compatible"),
    [("a", "MIT", True), ("a", "Apache-2.0 AND (MIT OR BSD-3-Clause)", True), ("a", "GPL-3.0-or-later", False),
     ("a", "MIT AND GPL-2.0-only", False), ("a", "MIT License; GNU General Public License", False), ("a", "", False),
     ("a", "ISC License (ISCL)", True),
     ("a", "Proprietary", False), ("a", "LGPL-2.1-or-later", False), ("soxr", "LGPL-2.1-or-later", True),
     ("soxr", "GPL-3.0-or-later", False), ("espeakng-loader", "Proprietary", False)],
)  # fmt: skip
def test_licences_that_are_not_known_to_be_compatible_are_refused(name: str, licence: str, compatible: bool) -> None:
    assert refused([(name, "1", licence)]) == ([] if compatible else [f"{name}: {licence or 'no licence'}"])
