"""Clusters by name: the machines of published runs, with the source of every number.

Numbers missing in a paper are the maker's nominal speeds of that product, or the middle of a given range; `sources`
names them. Nominal speeds are never reached: `benchmarks/published.py` uses the ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from murmur.worlds.virtual.cluster import Cluster, ComputeTime, Link

GBIT = 1e9 / 8


@dataclass(frozen=True)
class Preset:
    """A kind of cluster.

    Attributes:
        link: Network card of a node.
        inside: Link between learners of a node.
        learners_per_node: Slots of a node.
        copy_bytes_per_second: Speed between device and host.
        reduce_bytes_per_second: Speed at which one learner adds two vectors.
        device_flops: Peak operations per second of a device in single precision.
        allreduce: Algorithm of a mean of all.
        sources: Source of each number.
    """

    link: Link
    inside: Link
    learners_per_node: int
    copy_bytes_per_second: float
    reduce_bytes_per_second: float
    device_flops: float
    allreduce: str
    sources: Mapping[str, str]

    def cluster(self, learners: int, compute: ComputeTime, message_bytes: float) -> Cluster:
        """Return a cluster of `learners` learners of this kind."""
        return Cluster(
            learners=learners,
            compute=compute,
            link=self.link,
            message_bytes=message_bytes,
            learners_per_node=self.learners_per_node,
            inside=self.inside,
            allreduce=self.allreduce,
            reduce_bytes_per_second=self.reduce_bytes_per_second,
            copy_bytes_per_second=self.copy_bytes_per_second,
        )


PCIE = "PCIe 3.0 x16: 15.75 GB/s nominal (PCI-SIG), 10-13 GB/s usual for large copies"
LATENCY = "range 5-100 us for MPI or gloo over the fabric; not in the papers"
HBM = "half of the device's memory bandwidth (maker's sheet), as adding reads two vectors and writes one"

PRESETS: Mapping[str, Preset] = {
    "ethernet-1g": Preset(
        Link(100e-6, GBIT),
        Link(20e-6, 5e9),
        1,
        float("inf"),
        5e9,
        0.2e12,
        "ring",
        {"link": "nominal 1 Gb/s", "latency": LATENCY, "reduce": "range 3-10 GB/s of one CPU core"},
    ),
    "p100-infiniband": Preset(
        Link(5e-6, 100 * GBIT),
        Link(5e-6, 12e9),
        4,
        12e9,
        366e9,
        10.6e12,
        "hierarchical",
        {
            "link": "not in the papers; 100 Gb/s InfiniBand EDR, the usual fabric of such nodes: range 25-100 Gb/s",
            "learners_per_node": "S822LC for HPC holds 4 P100 (maker)",
            "inside": PCIE,
            "copy": PCIE,
            "reduce": HBM,
            "device_flops": "P100 SXM2, 10.6 Tflop/s single precision (maker)",
        },
    ),
    "v100-ethernet": Preset(
        Link(30e-6, 100 * GBIT),
        Link(5e-6, 25e9),
        8,
        12e9,
        450e9,
        15.7e12,
        "hierarchical",
        {
            "link": "100 Gb/s Ethernet (arXiv 1907.05701, abstract)",
            "latency": LATENCY,
            "learners_per_node": "8 learners a super-learner: range 4-8",
            "inside": "NVLink 2, 25 GB/s a link and direction (maker); several links a pair may exist",
            "copy": PCIE,
            "reduce": HBM,
            "device_flops": "V100 SXM2, 15.7 Tflop/s single precision (maker)",
        },
    ),
    "v100-power9": Preset(
        Link(5e-6, 200 * GBIT),
        Link(5e-6, 50e9),
        6,
        50e9,
        450e9,
        15.7e12,
        "hierarchical",
        {
            "link": "two InfiniBand EDR cards of 100 Gb/s (AC922 as in Summit, maker); the paper says IBM P9",
            "learners_per_node": "AC922 holds 4 or 6 V100",
            "inside": "NVLink 2, two or three links of 25 GB/s between devices (maker)",
            "copy": "NVLink between CPU and device, 50 GB/s a direction (maker)",
            "reduce": HBM,
            "device_flops": "V100 SXM2, 15.7 Tflop/s single precision (maker)",
        },
    ),
}


def preset(name: str) -> Preset:
    """Return the preset of that name.

    Raises:
        ValueError: There is none.
    """
    if name not in PRESETS:
        raise ValueError(f"there is no cluster {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]
