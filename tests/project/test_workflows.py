"""The workflows for hosted machines: their form, and the commands of .ci/run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
TOP = {"name", True, "permissions", "jobs"}  # YAML reads the key `on` as true
JOB = {"runs-on", "timeout-minutes", "strategy", "steps"}


def faults(workflow: Any) -> Iterator[str]:
    """Deviations from the form: keys, jobs with steps, steps with one of `uses` and `run`."""
    yield from (f"unknown key {key}" for key in workflow.keys() - TOP)
    yield from (f"no key {key}" for key in TOP - workflow.keys())
    for name, job in workflow.get("jobs", {}).items():
        yield from (f"{name}: unknown key {key}" for key in job.keys() - JOB)
        yield from (f"{name}: no {key}" for key in {"runs-on", "timeout-minutes", "steps"} - job.keys())
        for step in job.get("steps", []):
            if len(step.keys() & {"uses", "run"}) != 1:
                yield f"{name}: a step needs one of uses and run, got {sorted(step)}"
            yield from (f"{name}: unknown key {key}" for key in step.keys() - {"uses", "run", "with", "name"})


def commands(workflow: Any) -> list[str]:
    return [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]


def test_workflows_have_the_form_of_workflows_and_run_what_exists() -> None:
    read = {path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in WORKFLOWS}
    assert [f"{name}: {fault}" for name, workflow in read.items() for fault in faults(workflow)] == []
    assert ".ci/run" in commands(read["tests.yml"])
    targets = {line.partition(":")[0] for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()}
    for command in (c for workflow in read.values() for c in commands(workflow)):
        program, *words = command.split()
        assert (ROOT / program).is_file() or (program == "make" and set(words) <= targets), command


@pytest.mark.parametrize(
    ("change", "told"),
    [({"jobs": {"a": {"runs-on": "x", "timeout-minutes": 1, "steps": [{"name": "b"}]}}}, "needs one of"),
     ({"jobs": {"a": {"runs-on": "x", "timeout-minutes": 1}}}, "no steps"), ({"job": {}}, "unknown key job")],
)  # fmt: skip
def test_a_wrong_form_is_found(change: dict[str, Any], told: str) -> None:
    workflow = {"name": "n", True: {}, "permissions": {}, "jobs": {}} | change
    assert any(told in fault for fault in faults(workflow))


def test_issue_forms_have_fields_with_labels() -> None:
    for path in FORMS:
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert form.keys() >= {"name", "description", "body"}, path.name
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert fields, path.name
        assert all(field["attributes"]["label"] and field["id"] for field in fields), path.name
