"""Time estimates from bytes and FLOPs: stated rates, ring algorithms, no latency and no overlap."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping

from runner.config import search_path
from runner.config.schema import HardwareConfig, MeshConfig, PlanConfig
from runner.engine.base import Collective
from runner.layout import mesh
from runner.layout.axes import axis_size
from runner.plan.base import Rates, Traffic

PHASES = ("forward", "backward", "update")

# One device's GB/s to its neighbor, and GFLOP/s in float32. NVIDIA A100 data sheet: NVLink 600 GB/s both ways, 19.5
# TFLOP/s. Google Cloud TPU v4 page: 2,400 Gbit/s between chips, 275 TFLOP/s (bfloat16; float32 is slower).
_ACCELERATORS = {"gpu": (300.0, 19_500.0, "an A100's"), "tpu": (300.0, 275_000.0, "a TPU v4 chip's")}
# One device's GB/s to another process. NVIDIA DGX A100 data sheet: one InfiniBand adapter of 200 Gbit/s per GPU;
# machines whose GPUs share an adapter have less. TPU v4 chips of all machines of a slice have the same links.
_NETWORKS = {"gpu": (25.0, "a DGX A100's"), "tpu": (300.0, "a TPU v4 slice's")}
# JAX over gloo and loopback, on two busy cores: all-reduces of 400 KB take 10 ms in two processes, latency included.
_CPU_NETWORK_GB_S = 0.04
# All virtual devices of a CPU share its cores and its memory. Both rates are round numbers of the size that server
# CPUs have; they give orders of magnitude, not predictions.
CPU_GB_S = 10.0
CPU_GFLOPS_PER_CORE = 30.0


def rates(config: PlanConfig, mesh_config: MeshConfig, processes: int = 1) -> Rates:
    """Returns the rates that times are estimated with: the config's, else those of the mesh's kind of device.

    A rate that is set is the rate of one device; the virtual devices of a CPU share its rates.
    """
    kind = mesh.device_kind(mesh_config)
    if kind == "cpu":
        count = mesh.size(mesh_config.axes)
        cores = os.cpu_count() or 1
        bandwidth = CPU_GB_S / count
        gflops = CPU_GFLOPS_PER_CORE * cores / count
        note = f"this machine's {cores} cores at {CPU_GFLOPS_PER_CORE:g} GFLOP/s and {CPU_GB_S:g} GB/s"
        if count > 1:
            note += f", shared by {count} virtual devices"
    else:
        bandwidth, gflops, owner = _ACCELERATORS[kind]
        note = f"{owner} data sheet"

    note = _noted(config, ("bandwidth_gb_s", "gflops"), note)
    network = config.network_gb_s
    if processes > 1:
        owner = "plan.network_gb_s"
        if network is None:
            network, owner = _NETWORKS.get(kind, (_CPU_NETWORK_GB_S, "gloo's, measured over loopback"))
        note += f"; between processes {owner}"
    return Rates(
        device=kind,
        bandwidth_gb_s=config.bandwidth_gb_s or bandwidth,
        gflops=config.gflops or gflops,
        note=note,
        network_gb_s=network,
    )


def _noted(config: PlanConfig, keys: Iterable[str], note: str) -> str:
    """Returns the source of rates, after those of the keys that the config sets."""
    stated = [f"plan.{key}" for key in keys if getattr(config, key) is not None]
    if stated:
        return f"{' and '.join(stated)}; else {note}"
    return note


def hardware_rates(config: PlanConfig, hardware: HardwareConfig, precision: str) -> Rates:
    """Returns the rates of hardware that is not here, for layers that compute in `precision`."""
    peak = hardware.peak_tflops.get(precision) or max(hardware.peak_tflops.values())
    network = config.network_gb_s or hardware.network_gb_s
    note = f"hardware={hardware.name}"
    if hardware.node_devices and network:
        note += f", {hardware.node_devices} devices per node"
    note = _noted(config, ("gflops", "bandwidth_gb_s", "network_gb_s"), note)
    return Rates(
        device=hardware.kind or "cpu",
        bandwidth_gb_s=config.bandwidth_gb_s or hardware.link_gb_s or 0.0,
        gflops=config.gflops or peak * 1e3,
        note=note,
        network_gb_s=network,
        joins_nodes=True,
    )


def unpriced_network(config: PlanConfig, hardware: HardwareConfig, axes: Mapping[str, int]) -> list[str]:
    """Returns a warning if a mesh has several nodes, and the bandwidth between them is not known."""
    node = hardware.node_devices
    devices = math.prod(axes.values())
    if node is None or devices <= node or config.network_gb_s or hardware.network_gb_s:
        return []
    noun = "nodes"
    if hardware.kind == "tpu":
        noun = "slices"
    count = -(-devices // node)
    return [
        f"hardware.network_gb_s=null: {devices:,} devices of hardware={hardware.name} are {count} {noun} of {node:,}, "
        f"and links between {noun} are priced as those inside, which is too fast; set hardware.network_gb_s"
    ]


def borrowed(hardware: HardwareConfig, option: str) -> list[str]:
    """Returns a warning if hardware that the user describes, and names, has figures of the option it began with."""
    base = search_path.content_of(f"hardware/{option}")
    # Figures of links and nodes are the machine's, and often alike.
    same = [key for key in ("memory_gib", "peak_tflops", "memory_gb_s") if getattr(hardware, key) == base.get(key)]
    if hardware.name == base.get("name") or not same:
        return []
    return [f"hardware.name={hardware.name}: {' and '.join(same)} are those of hardware={option}; set its own"]


def node_members(hardware: HardwareConfig, axes: Mapping[str, int], axis: str) -> int | None:
    """Returns how many devices of a group along an axis (or several, `+`) are in one node; None: all of them.

    A node has `node_devices` consecutive devices of the mesh, which is numbered row-major.
    """
    node = hardware.node_devices
    names = axis.split("+")
    if node is None or math.prod(axes.values()) <= node:
        return None
    members = 1
    spans_nodes = False
    inner = 1
    for name, count in reversed(list(axes.items())):
        if name in names:
            # Devices of the group along this axis are `inner` apart.
            inside = max(1, min(count, node // inner))
            spans_nodes = spans_nodes or inside < count
            members *= inside
        inner *= count
    if not spans_nodes:
        return None
    return members


def group_gb_s(rates: Rates, members: int | None) -> float:
    """Returns the bandwidth of a ring that has so many devices in each node; None: it is inside one.

    All of them send to the next node at the same time, each over its own adapter, so that a group that has whole nodes
    is nearly as fast as the links inside.
    """
    if members is None or not rates.network_gb_s:
        return rates.bandwidth_gb_s
    return min(rates.bandwidth_gb_s, members * rates.network_gb_s)


def utilization(config: PlanConfig, measures: Mapping[str, float], steps_per_second: float) -> float | None:
    """Returns the model FLOPs utilization (MFU), from 0 to 1; None if no peak is stated.

    It is the share of a device's peak rate that the model's FLOPs take. The peak is `plan.gflops`, since it depends on
    the device's make and on the precision. The FLOPs are those of `Plan.metrics`: of kernels, forward and backward,
    without recomputation (PaLM, arXiv:2204.02311, appendix B).
    """
    flops = measures.get("plan/flops_per_device")
    if not config.gflops or flops is None:
        return None
    return flops * steps_per_second / (config.gflops * 1e9)


def ring_factor(kind: str, devices: int, device: str) -> float:
    """Returns how many times its bytes each device sends in a ring.

    An all-reduce over n devices is a reduce-scatter and an all-gather: 2 (n - 1) / n. Each of the two alone, and an
    all-to-all, is half of that (Thakur, Rabenseifner and Gropp, 2005).
    """
    one_pass = (devices - 1) / devices
    # On CPUs, DTensor computes an all-gather as an all-reduce of zero-padded parts.
    if kind == "all_reduce" or (kind == "all_gather" and device == "cpu"):
        return 2 * one_pass
    return one_pass


def traffic(
    collectives: Iterable[Collective],
    axes: Mapping[str, int],
    rates: Rates,
    crossing: Collection[str] = (),
    hardware: HardwareConfig | None = None,
) -> tuple[Traffic, ...]:
    """Groups the collectives of one step by phase, kind and axis, with the time that they would take.

    `crossing` are axes whose devices are in several processes; for hardware elsewhere, its nodes say which links a
    collective crosses. A ring is as fast as its slowest link.
    """
    groups: dict[tuple[int, str, str], list[Collective]] = {}
    for collective in collectives:
        key = (PHASES.index(collective.phase), collective.kind, collective.axis)
        groups.setdefault(key, []).append(collective)
    traffic_groups = []
    for key in sorted(groups):
        phase, kind, axis = key
        size = 0
        count = 0
        for collective in groups[key]:
            size += collective.bytes
            count += collective.count
        names = axis.split("+")
        crosses = not set(names).isdisjoint(crossing)
        # A ring over several axes is as fast as its slowest link.
        gb_per_second = rates.bandwidth_gb_s
        if crosses and rates.network_gb_s:
            gb_per_second = rates.network_gb_s
        if hardware is not None:
            members = node_members(hardware, axes, axis)
            crosses = members is not None
            gb_per_second = group_gb_s(rates, members)
        devices = axis_size(axes, axis)
        group = Traffic(
            kind=kind,
            axis=axis,
            phase=PHASES[phase],
            count=count,
            bytes=size,
            seconds=size * ring_factor(kind, devices, rates.device) / (gb_per_second * 1e9),
            crosses=crosses,
        )
        traffic_groups.append(group)
    return tuple(traffic_groups)
