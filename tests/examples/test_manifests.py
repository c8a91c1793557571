"""Manifests of Kubernetes and SkyPilot: their fields, their answers to exit statuses, and their scripts.

`SHAPES` has the fields that the manifests use, as in the API reference of Kubernetes 1.33 (Job of batch/v1, Service and
PersistentVolumeClaim of v1, NetworkPolicy of networking.k8s.io/v1), in the schema of JobSet v1alpha2
(jobset.x-k8s.io_jobsets.yaml of kubernetes-sigs/jobset), and in sky/utils/schemas.py of SkyPilot 0.14.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from murmur.cli import app
from murmur.worlds.process.endings import PEER_LOST_STATUS
from murmur.worlds.process.signals import STOPPED_STATUS

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

EXAMPLES = Path(__file__).parents[2] / "examples"
KUBERNETES = EXAMPLES / "kubernetes"
TASK = EXAMPLES / "skypilot" / "murmur.yaml"

WORDS = {str: str}
NAME = {"name": str}
CONTAINER = {
    **{"name": str, "image": str, "command": [str], "args": [str], "env": [{"name": str, "value": str}]},
    "resources": {"limits": WORDS},
    "volumeMounts": [{"name": str, "mountPath": str, "readOnly": bool}],
}
VOLUME = {
    "name": str,
    "persistentVolumeClaim": {"claimName": str},
    "secret": {"secretName": str, "defaultMode": int},
}
POD = {
    **{"subdomain": str, "restartPolicy": str, "terminationGracePeriodSeconds": int},
    "securityContext": {"runAsUser": int, "runAsGroup": int, "fsGroup": int, "fsGroupChangePolicy": str},
    **{"containers": [CONTAINER], "volumes": [VOLUME]},
}
EXIT_CODES = {"containerName": str, "operator": str, "values": [int]}
RULE = {"action": str, "onExitCodes": EXIT_CODES, "onPodConditions": [{"type": str, "status": str}]}
JOB = {
    **{"completionMode": str, "completions": int, "parallelism": int, "backoffLimit": int},
    "successPolicy": {"rules": [{"succeededIndexes": str}]},
    "podFailurePolicy": {"rules": [RULE]},
    "template": {"metadata": {"labels": WORDS}, "spec": POD},
}
PEERS = {"podSelector": {"matchLabels": WORDS}}
SHAPES = {
    ("batch/v1", "Job"): JOB,
    ("v1", "Service"): {"clusterIP": str, "publishNotReadyAddresses": bool, "selector": WORDS},
    ("v1", "PersistentVolumeClaim"): {"accessModes": [str], "resources": {"requests": WORDS}},
    ("networking.k8s.io/v1", "NetworkPolicy"): {**PEERS, "policyTypes": [str], "ingress": [{"from": [PEERS]}]},
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): {
        "network": {"enableDNSHostnames": bool, "publishNotReadyAddresses": bool, "subdomain": str},
        "failurePolicy": {"maxRestarts": int, "rules": [{"name": str, "action": str, "onJobFailureReasons": [str]}]},
        "replicatedJobs": [{"name": str, "replicas": int, "template": {"spec": JOB}}],
    },
}
SKYPILOT = {
    **{"name": str, "workdir": str, "num_nodes": int, "secrets": {str: type(None)}, "setup": str, "run": str},
    "resources": {"cpus": str, "use_spot": bool, "job_recovery": {"recover_on_exit_codes": [int]}},
}


def wrong(found: Any, shape: Any, where: str) -> Iterator[str]:
    if isinstance(shape, type):
        if type(found) is not shape:
            yield f"{where} is {found!r}"
    elif type(found) is not type(shape):
        yield f"{where} is no {type(shape).__name__}"
    elif isinstance(shape, list):
        for number, each in enumerate(found):
            yield from wrong(each, shape[0], f"{where}[{number}]")
    else:
        for name, value in found.items():
            if name in shape or str in shape:
                yield from wrong(value, shape.get(name, shape.get(str)), f"{where}.{name}")
            else:
                yield f"{where}.{name} is unknown"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((KUBERNETES / name).read_text()))


def job_of(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = documents(name)[-1]["spec"]
    return spec["replicatedJobs"][0]["template"]["spec"] if "replicatedJobs" in spec else spec


def learner_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = job_of(name)["template"]["spec"]["containers"][0]
    return found


@pytest.mark.parametrize("name", sorted(path.name for path in KUBERNETES.iterdir()))
def test_manifests_have_fields_of_their_kinds(name: str) -> None:
    for document in documents(name):
        kind = (document.pop("apiVersion"), document.pop("kind"))
        assert list(wrong(document, {"metadata": NAME, "spec": SHAPES[kind]}, name)) == []


def test_the_task_has_fields_of_skypilot() -> None:
    task = yaml.safe_load(TASK.read_text())
    assert list(wrong(task, SKYPILOT, TASK.name)) == []
    assert task["resources"]["job_recovery"]["recover_on_exit_codes"] == [PEER_LOST_STATUS, STOPPED_STATUS]


def answer(job: Mapping[str, Any], status: int, disrupted: bool = False) -> str:
    """Action of the first rule that fits the end of a pod; Count is Kubernetes' own without a rule."""
    for rule in job["podFailurePolicy"]["rules"]:
        if disrupted and {"type": "DisruptionTarget", "status": "True"} in rule.get("onPodConditions", []):
            return str(rule["action"])
        codes = rule.get("onExitCodes", {"values": []})
        assert codes.get("operator", "In") == "In"
        assert codes["values"] == sorted(set(codes["values"]))  # Kubernetes refuses others
        if status in codes["values"]:
            return str(rule["action"])
    return "Count"


@pytest.mark.parametrize("name", ["job.yaml", "jobset.yaml"])
def test_exit_statuses_decide_over_a_new_pod(name: str) -> None:
    job = job_of(name)
    assert answer(job, STOPPED_STATUS) == "Ignore"
    assert answer(job, 137, disrupted=True) == "Ignore"
    assert answer(job, PEER_LOST_STATUS) == answer(job, 137) == "Count"
    assert answer(job, 1) == answer(job, 2) == "FailJob"
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # which a policy needs
    named = {rule.get("onExitCodes", {}).get("containerName") for rule in job["podFailurePolicy"]["rules"]}
    assert named - {None} == {learner_of(name)["name"]}


@pytest.mark.parametrize(
    ("name", "first"), [("job.yaml", "{name}-0.{service}"), ("jobset.yaml", "{name}-learners-0-0.{service}")]
)
def test_learners_meet_at_the_first_pod(name: str, first: str) -> None:
    whole, job = documents(name), job_of(name)
    given = {each["name"]: each["value"] for each in learner_of(name)["env"]}
    assert job["completionMode"] == "Indexed"
    assert int(given["WORLD_SIZE"]) == job["completions"] == job["parallelism"]
    if name == "job.yaml":
        service = whole[0]["metadata"]["name"]
        assert job["template"]["spec"]["subdomain"] == service
        assert whole[0]["spec"]["selector"].items() <= job["template"]["metadata"]["labels"].items()
    else:
        service = whole[0]["spec"]["network"]["subdomain"]
    assert given["MASTER_ADDR"] == first.format(name=whole[-1]["metadata"]["name"], service=service)


def test_both_manifests_have_the_same_pods() -> None:
    one, other = (job_of(name)["template"] for name in ("job.yaml", "jobset.yaml"))
    for template in (one, other):
        template["spec"].pop("subdomain", None)
        learner = template["spec"]["containers"][0]
        learner["args"] = [learner["args"][0].removesuffix("\n").removesuffix(" --strategy 'KAVG(8)'")]
        learner["env"] = learner["env"][1:]
    assert one == other


def run_script(script: str, folder: Path, **variables: str) -> str:
    """Return the place and the words of a stand-in for murmur, which ends with 79.

    The first pod has an address only when `getent` is asked again.
    """
    place = "$RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT, ${MURMUR_SECRET-unset}"
    stand_ins = {
        "getent": f'[ -e "{folder}/asked" ] || {{ touch "{folder}/asked"; exit 2; }}',
        "murmur": f'echo "$$ {place}: $*"; exit {STOPPED_STATUS}',
    }
    for name, text in stand_ins.items():
        program = folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    given = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HOME": str(folder), **variables}
    with subprocess.Popen(["sh", "-c", script], env=given, stdout=subprocess.PIPE, text=True) as shell:
        process, _, said = shell.communicate(timeout=60)[0].partition(" ")
    assert shell.returncode == STOPPED_STATUS
    assert process == str(shell.pid), "signals do not reach murmur"
    return said


def check_options(words: str) -> None:
    told = CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "200"})
    assert {*re.findall(r"--[a-z-]+", words)} <= {*re.findall(r"--[a-z-]+", told.output)}


@pytest.mark.parametrize("name", ["job.yaml", "jobset.yaml"])
def test_a_pod_becomes_a_learner(name: str, tmp_path: Path) -> None:
    mounted, own = tmp_path / "mounted", tmp_path / "own"
    mounted.write_text("x" * 32)
    (script,) = learner_of(name)["args"]
    script = script.replace("/secret/secret", str(mounted)).replace("/tmp/secret", str(own))
    given = {each["name"]: each["value"] for each in learner_of(name)["env"]}
    who, _, words = run_script(script, tmp_path, JOB_COMPLETION_INDEX="3", **given).partition(": ")
    assert who == f"3 of 4 at {given['MASTER_ADDR']}:29500, unset"
    assert f"--resume --secret-file {own}" in words
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
    assert own.read_text() == mounted.read_text()
    check_options(words)


def test_a_node_of_skypilot_becomes_a_learner(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    given = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2"}
    script = yaml.safe_load(TASK.read_text())["run"]
    said = run_script(script, tmp_path, MURMUR_SECRET="y" * 32, **given)
    assert said.startswith("1 of 2 at 10.0.0.1:29500, unset: train ")
    assert f"--secret-file {tmp_path / 'murmur.secret'}" in said
    assert (tmp_path / "murmur.secret").read_text() == "y" * 32
    assert stat.S_IMODE((tmp_path / "murmur.secret").stat().st_mode) == 0o600
    check_options(said)
