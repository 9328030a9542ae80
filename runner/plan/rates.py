"""Bytes and operations to seconds: stated rates, ring algorithms, no latency, nothing overlapped."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping

from runner.config.schema import MeshConfig, PlanConfig
from runner.engine.base import Collective
from runner.layout import mesh
from runner.plan.base import Rates, Traffic

PHASES = ("forward", "backward", "update")

# One device's GB/s to its neighbor, and GFLOP/s in float32. NVIDIA A100 data sheet: NVLink 600 GB/s both ways, 19.5
# TFLOP/s. Google Cloud TPU v4 page: 2,400 Gbit/s between chips, 275 TFLOP/s (bfloat16; float32 is slower).
_ACCELERATORS = {"gpu": (300.0, 19_500.0, "an A100's"), "tpu": (300.0, 275_000.0, "a TPU v4 chip's")}
# One device's GB/s to another process. NVIDIA DGX A100 data sheet: an InfiniBand adapter of 200 Gbit/s a GPU; machines
# whose GPUs share one have less. TPU v4 chips of all machines of a slice have the same links.
_NETWORKS = {"gpu": (25.0, "a DGX A100's"), "tpu": (300.0, "a TPU v4 slice's")}
# JAX over gloo and loopback, on two busy cores: all-reduces of 400 KB take 10 ms in two processes, latency included.
_CPU_NETWORK_GB_S = 0.04
# A CPU is one machine, whatever number of virtual devices it is split into: they share its cores and its memory.
_CPU_GB_S = 10.0
_CPU_GFLOPS_A_CORE = 30.0


def rates(config: PlanConfig, mesh_config: MeshConfig, processes: int = 1) -> Rates:
    """Returns what times are reckoned with: the config's rates, else those of the mesh's kind of device.

    Args:
      config: a rate that is set is one device's.
      mesh_config: axes resolved; the virtual devices of a CPU share its rates.
      processes: that share the mesh out.
    """
    kind = mesh.device_kind(mesh_config)
    if kind == "cpu":
        count = mesh.size(mesh_config.axes)
        cores = os.cpu_count() or 1
        bandwidth = _CPU_GB_S / count
        gflops = _CPU_GFLOPS_A_CORE * cores / count
        shared = f", shared by {count} virtual devices" if count > 1 else ""
        note = f"this machine's {cores} cores at {_CPU_GFLOPS_A_CORE:g} GFLOP/s and {_CPU_GB_S:g} GB/s{shared}"
    else:
        bandwidth, gflops, whose = _ACCELERATORS[kind]
        note = f"{whose} data sheet"
    given = [key for key in ("bandwidth_gb_s", "gflops") if getattr(config, key) is not None]
    if given:
        set_by = " and ".join(f"plan.{key}" for key in given)
        note = set_by if len(given) == 2 else f"{set_by}; else {note}"
    network = None
    if processes > 1:
        network, whose = _NETWORKS.get(kind, (_CPU_NETWORK_GB_S, "gloo's, measured over loopback"))
        note += f"; between processes {whose if config.network_gb_s is None else 'plan.network_gb_s'}"
    return Rates(
        kind, config.bandwidth_gb_s or bandwidth, config.gflops or gflops, note, config.network_gb_s or network
    )


def utilization(config: PlanConfig, measures: Mapping[str, float], steps_per_second: float) -> float | None:
    """Returns the share of one device's peak rate that the model's own operations take; None where none is stated.

    The peak is `plan.gflops`, for what a device is said to reach depends on its make and on the precision. The
    operations are the plan's: of kernels, forward and backward, without what is recomputed (PaLM, appendix B, 2022).

    Args:
      config: the plan's.
      measures: `Plan.metrics()`.
      steps_per_second: training steps.
    """
    flops = measures.get("plan/flops_per_device")
    return flops * steps_per_second / (config.gflops * 1e9) if config.gflops and flops is not None else None


def ring_factor(kind: str, devices: int, device: str) -> float:
    """Returns how many times its bytes each device sends in a ring.

    An all-reduce of n devices is a reduce-scatter and an all-gather: 2 (n - 1) / n; each of the two alone, and an
    all-to-all, is half of that (Thakur, Rabenseifner and Gropp, 2005). On CPUs DTensor makes an all-gather of an
    all-reduce of zero-padded parts.

    Args:
      kind: as in `Collective`.
      devices: that take part.
      device: `cpu`, `gpu` or `tpu`.
    """
    once = (devices - 1) / devices
    return 2 * once if kind == "all_reduce" or (kind == "all_gather" and device == "cpu") else once


def traffic(
    collectives: Iterable[Collective], axes: Mapping[str, int], at: Rates, crossing: Collection[str] = ()
) -> tuple[Traffic, ...]:
    """Groups collectives by phase, kind and axis, with the time that they would take.

    Args:
      collectives: of one step.
      axes: mesh axis to size.
      at: the rates; a ring is as fast as its slowest link.
      crossing: axes whose devices lie in several processes.
    """
    groups: dict[tuple[int, str, str], list[Collective]] = {}
    for each in collectives:
        groups.setdefault((PHASES.index(each.phase), each.kind, each.axis), []).append(each)
    found = []
    for (phase, kind, axis), members in sorted(groups.items(), key=lambda item: item[0]):
        count = sum(each.count for each in members)
        size = sum(each.bytes for each in members)
        names = axis.split("+")
        crosses = any(name in crossing for name in names)
        speed = (at.network_gb_s if crosses else None) or at.bandwidth_gb_s
        devices = mesh.size({name: axes[name] for name in names})
        seconds = size * ring_factor(kind, devices, at.device) / (speed * 1e9)
        found.append(Traffic(kind, axis, PHASES[phase], count, size, seconds, crosses))
    return tuple(found)
