"""Clusters by name: the machines of published runs and present ones, with the source of every number.

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

    def cluster(self, learners: int, compute: ComputeTime, message_bytes: float | None = None) -> Cluster:
        """Return a cluster of `learners` learners of this kind; None: messages of the model's own size."""
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


def _of_eight(gbit: float, nvlink: float, pcie: float, memory: float, flops: float, of: str) -> Preset:
    """Return nodes of eight devices.

    Args:
        gbit: Gb/s of the network, of which 90 % are reached (assumed).
        nvlink: Bytes per second and direction of a device, of which 80 % are reached (assumed).
        pcie: Bytes per second and direction between device and host, of which 80 % are reached (assumed).
        memory: Bytes per second of the device's memory.
        flops: Operations per second in single precision, outside the tensor cores.
        of: Device and data sheet.
    """
    sources = {
        "link": f"assumed: 90 % of {gbit:g} Gb/s, nominal, for a node; --bandwidth sets another",
        "latency": LATENCY,
        "learners_per_node": "8 devices: DGX and HGX boards (maker)",
        "inside": f"assumed: 80 % of NVLink's {nvlink / 1e9:g} GB/s a direction ({of})",
        "copy": f"assumed: 80 % of PCIe's {pcie / 1e9:g} GB/s a direction ({of})",
        "reduce": f"assumed: {HBM}, {memory / 1e9:g} GB/s ({of})",
        "device_flops": f"{flops / 1e12:g} Tflop/s single precision ({of}); tensor cores (TF32, bfloat16) reach more",
    }
    link, inside = Link(5e-6, 0.9 * gbit * GBIT), Link(5e-6, 0.8 * nvlink)
    return Preset(link, inside, 8, 0.8 * pcie, memory / 2, flops, "hierarchical", sources)


# Makers' data sheets: "NVIDIA A100 Tensor Core GPU" (80 GB SXM: NVLink 600 GB/s both ways, PCIe 4.0 64 GB/s both ways,
# 2,039 GB/s of memory, 19.5 Tflop/s FP32), "NVIDIA H100 Tensor Core GPU" (SXM: 900, PCIe 5.0 128, 3,350 GB/s, 67) and
# "NVIDIA H200 Tensor Core GPU" (SXM: 900, 128, 4,800 GB/s, 67). Networks: InfiniBand EDR, HDR and NDR have 100, 200 and
# 400 Gb/s a port (IBTA).
_A100 = (300e9, 32e9, 2.039e12, 19.5e12, "A100 80 GB SXM, data sheet")
_H100 = (450e9, 64e9, 3.35e12, 67e12, "H100 SXM, data sheet")
_H200 = (450e9, 64e9, 4.8e12, 67e12, "H200 SXM, data sheet")

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
    "workstations-1g": Preset(
        Link(50e-6, GBIT),
        Link(5e-6, 12e9),
        4,
        12e9,
        160e9,
        8.9e12,
        "hierarchical",
        {
            "link": "assumed: 1 Gb/s, the card on the board of a workstation; HPCS 2017 (abstract) gives none",
            "latency": LATENCY,
            "learners_per_node": "2 workstations of 4 devices (Rosciszewski & Kaliski, HPCS 2017, abstract)",
            "inside": f"assumed: {PCIE}",
            "copy": f"assumed: {PCIE}",
            "reduce": f"assumed: {HBM}, 320 GB/s of a GTX 1080",
            "device_flops": "assumed: GTX 1080 of 2016, 8.9 Tflop/s single precision (maker); the device is unknown",
        },
    ),
    "k20-infiniband": Preset(
        Link(5e-6, 4e9),
        Link(5e-6, 5e9),
        2,
        5e9,
        104e9,
        3.52e12,
        "hierarchical",
        {
            "link": "assumed: InfiniBand QDR, 32 Gb/s of data; recalled, low: 10-56 Gb/s (Su & Chen 2015)",
            "learners_per_node": "assumed: 2, of a range of 1-4",
            "inside": "assumed: PCIe 2.0 x16, 8 GB/s nominal (PCI-SIG), 3-6 GB/s usual",
            "copy": "assumed: as inside",
            "reduce": f"assumed: {HBM}, 208 GB/s of a K20",
            "device_flops": "K20 class recalled with low confidence: 3.52 Tflop/s single precision (maker)",
        },
    ),
    "p100-fdr": Preset(
        Link(5e-6, 6e9),
        Link(5e-6, 12e9),
        4,
        12e9,
        366e9,
        10.6e12,
        "hierarchical",
        {
            "link": "assumed: InfiniBand FDR, 54.5 Gb/s of data, 6 GB/s as reached; MLHPC 2017 (abstract) gives none",
            "learners_per_node": "assumed: 20 devices (Cong et al., MLHPC 2017, abstract) as 5 nodes of 4",
            "inside": f"assumed: {PCIE}",
            "copy": f"assumed: {PCIE}",
            "reduce": f"assumed: {HBM}, 732 GB/s of a P100",
            "device_flops": "assumed: P100, 10.6 Tflop/s single precision (maker); the device is unknown",
        },
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
    "desktops-100m": Preset(
        Link(200e-6, 0.095 * GBIT),
        Link(20e-6, 5e9),
        1,
        float("inf"),
        5e9,
        0.2e12,
        "ring",
        {
            "link": "100 Mb/s (100BASE-TX, IEEE 802.3u), of which TCP carries 1,460 of 1,538 bytes of a frame",
            "latency": "assumed: 200 us through a desktop's switch and kernel",
            "reduce": "range 3-10 GB/s of one CPU core",
            "device_flops": "assumed: 0.2 Tflop/s of a few CPU cores",
        },
    ),
    "a100-100g": _of_eight(100, *_A100),
    "a100-200g": _of_eight(200, *_A100),
    "h100-400g": _of_eight(400, *_H100),
    "h200-400g": _of_eight(400, *_H200),
}


def preset(name: str) -> Preset:
    """Return the preset of that name; ValueError if there is none."""
    if name not in PRESETS:
        raise ValueError(f"there is no cluster {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]
