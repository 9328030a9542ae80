"""Mesh of a run that continues on the devices that are left (`cluster.elastic`).

The rule, with the batch axis the one that shards the examples:

- every other axis keeps its size, because a model may not fit on fewer devices per copy;
- the batch axis gets the largest size, up to the configured one, that the devices allow and that divides the global
  batch (each microbatch of it, and the batch of evaluations), so that every device has equally many examples;
- if the layout shards variables over the batch axis, as FSDP does, the size also divides the configured one: then it
  divides every dim that the configured size divides;
- each process keeps its number of devices if that divides the new mesh, and otherwise there are as many processes as
  divide it.

Devices beyond that stay idle.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from runner.config.schema import REST, RunConfig
from runner.engine import devices
from runner.engine.accelerated import lack
from runner.errors import invalid, passing
from runner.host import accelerators
from runner.host.accelerators import GPU, TPU
from runner.layout import mesh
from runner.layout.axes import inner_batch_axis

# Set by the launcher for its processes, which may see only their own devices and must agree on the mesh.
VARIABLE = "RUNNER_ELASTIC_DEVICES"

_KEY = "cluster.elastic"
_FILE_KEY = "cluster.devices_file"


def fitted(config: RunConfig) -> RunConfig:
    """Returns the config with a mesh that fits the devices that there are, and the number of its processes.

    Args:
      config: its single values are checked.

    Raises:
      ConfigError: the mesh has no batch axis, or the file with the number of devices can't be read.
      PassingError: there are fewer devices than the other axes need.
    """
    if not config.cluster.elastic or devices.is_elsewhere():
        return config
    axes = dict(config.mesh.axes)
    axis = inner_batch_axis(config.layout, axes)
    if axis is None or axis not in axes:
        problem = f"the mesh ({mesh.describe(axes)}) has no axis that shards the batch, which could be reduced"
        raise invalid(_KEY, True, problem=problem, fix=f"set {_KEY}=false, or add an axis: mesh.axes.batch=2")
    others = 1
    for name, count in axes.items():
        if name != axis:
            others *= count
    if others < 1:
        # Another axis takes the rest, which `resolve_axes` settles or rejects.
        return config
    available = _available(config)
    if available < others:
        problem = f"{available} devices are left, and the axes beside {axis!r} need {others}"
        raise passing(_KEY, True, problem=problem, fix="wait for devices, or choose another mesh")
    configured = axes[axis]
    most = available // others
    if configured != REST:
        most = min(configured, most)
    axes[axis] = _largest(config, axis, most)
    fitted_mesh = replace(config.mesh, axes=axes)
    cluster = config.cluster
    if cluster.processes is not None:
        size = mesh.size(axes)
        before = size if configured == REST else configured * others
        cluster = replace(cluster, processes=_processes(cluster.processes, before, size))
    return replace(config, mesh=fitted_mesh, cluster=cluster)


def environment(config: RunConfig) -> dict[str, str]:
    """Returns the variable by which the launcher's processes get the number of devices that it has seen."""
    if not config.cluster.elastic:
        return {}
    return {VARIABLE: str(mesh.size(config.mesh.axes))}


def _available(config: RunConfig) -> int:
    """Returns the number of devices that may be used.

    Raises:
      ConfigError: the file can't be read, or has no number in it.
    """
    from_launcher = os.environ.get(VARIABLE)
    if from_launcher:
        return int(from_launcher)
    counts = [_existing(config)]
    if config.cluster.devices_file is not None:
        counts.append(_in_file(config.cluster.devices_file))
    return min(counts)


def _existing(config: RunConfig) -> int:
    """Returns the number of devices of this machine; virtual CPU devices are as many as the config allows."""
    asked = config.mesh.device
    for kind in (TPU, GPU):
        count = accelerators.find(kind).count
        is_usable = count > 0 and lack(config.engine.name, kind) is None
        if asked == kind or (asked == devices.AUTO and is_usable):
            return count
    return config.mesh.cpu_devices


def _in_file(name: str) -> int:
    try:
        text = Path(name).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        # It may be replaced at this moment.
        fix = "write the number of devices into it"
        raise passing(_FILE_KEY, name, problem=f"can't be read ({error})", fix=fix) from error
    if not text.isdecimal():
        problem = f"must contain a number, and contains {text[:20]!r}"
        raise passing(_FILE_KEY, name, problem=problem, fix="write the number of devices into it")
    return int(text)


def _largest(config: RunConfig, axis: str, most: int) -> int:
    """Returns the largest size of the batch axis up to `most` that the batches and the layout allow; 1 always is."""
    dataset = config.dataset
    must_divide = [dataset.batch_size // max(config.trainer.accumulate_steps, 1)]
    if dataset.eval_batch_size is not None:
        must_divide.append(dataset.eval_batch_size)
    configured = config.mesh.axes[axis]
    if configured != REST and _shards_variables(config, axis):
        must_divide.append(configured)
    for size in range(most, 1, -1):
        if all(count % size == 0 for count in must_divide):
            return size
    return 1


def _shards_variables(config: RunConfig, axis: str) -> bool:
    """Returns whether a rule of the layout names the batch axis."""
    layout = config.layout
    if layout.auto or layout.from_model:
        return True
    for rule in layout.rules:
        if axis in (rule.shard, rule.transformer, rule.store) or axis in (rule.spec or ()):
            return True
    return False


def _processes(configured: int, before: int, size: int) -> int:
    """Returns the number of processes of a mesh.

    Args:
      configured: number of processes of the configured mesh.
      before: its number of devices.
      size: number of devices of the mesh.
    """
    per_process = before // configured
    if per_process and size % per_process == 0 and size // per_process <= configured:
        return size // per_process
    return max(count for count in range(1, configured + 1) if size % count == 0)
