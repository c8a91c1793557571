"""One Slurm for all tests of this folder, and the record of their figures; see `make cluster-check`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))  # for network namespaces (namespaces.py) and records of figures (measure.py)

from measure import bar, close  # noqa: E402
from tests.cluster.cluster_runs import ClusterRun, Figures  # noqa: E402
from tests.cluster.slurm_cluster import SlurmCluster, refusal, slurm_cluster  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Four nodes with four cores each."""
    why = refusal()
    if why is not None:
        pytest.skip(why)
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def begin(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Callable[[str], ClusterRun]]:
    """Factory of a test's run. Its job ends with the test, and the nodes are idle before the next one."""
    slurm.await_idle()
    runs: list[ClusterRun] = []

    def make(strategy: str = "KAVG(K=4)") -> ClusterRun:
        runs.append(ClusterRun(slurm, tmp_path / f"{len(runs)}", strategy))
        return runs[-1]

    yield make
    slurm.ask("scancel --user root")
    for name in slurm.names:
        if name not in slurm.nodes:
            slurm.start_node(name)
    slurm.await_idle()


@pytest.fixture(scope="session")
def figures(request: pytest.FixtureRequest) -> Iterator[Figures]:
    """Figures by scenario; stored in results/bench when every test of this folder has passed."""
    found: Figures = {}
    yield found
    items = [item for item in request.session.items if "figures" in getattr(item, "fixturenames", ())]
    files = {item.path for item in items} == set(Path(__file__).parent.glob("test_*.py"))
    all_tests = files and not request.config.getoption("keyword") and len(found) == len(items)
    if all_tests and request.session.testsfailed == 0:
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            close("cluster_check", found, bars(found), command="make cluster-check")


def bars(found: Figures) -> list[dict[str, Any]]:
    """Requirements of a cluster, checked on the figures of all scenarios."""
    undone = sum(each["undone"] for each in found.values())
    asked = sum(each["again"] for name, each in found.items() if name.startswith(("time limit", "scancel")))
    return [
        bar("minibatches left undone, all scenarios", undone, 0),
        bar("minibatches done again after a run was asked to stop", asked, 0),
    ]
